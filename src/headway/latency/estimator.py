"""The estimator that policies are handed: one step's time in seconds."""

from __future__ import annotations

from headway.latency.base import LatencyModel
from headway.types import PS_PER_SECOND


class Estimator:
    """Step times of a latency model as a pure function; the prefill counts as one chunk without past."""

    __slots__ = ("_run",)

    def __init__(self, model: LatencyModel) -> None:
        self._run = model.run

    def step_seconds(self, prefill_tokens: int, decodes: int, context: int) -> float:
        """`context` is the sum over all decodes; a step without tokens takes no time."""
        if prefill_tokens > 0:
            return self._run(decodes, context, ((prefill_tokens, 0),))[0] / PS_PER_SECOND
        return self._run(decodes, context, ())[0] / PS_PER_SECOND if decodes > 0 else 0.0
