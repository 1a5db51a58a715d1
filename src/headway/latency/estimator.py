"""The estimator that policies are handed: one step's time in seconds."""

from __future__ import annotations

from collections.abc import Iterable

from headway.latency.base import LatencyModel
from headway.types import PS_PER_SECOND
from headway.views.instance import InstanceView


class Estimator:
    """Step times of the instances' latency models as a pure function; the prefill counts as one chunk without past."""

    __slots__ = ("_runs",)

    def __init__(self, models: Iterable[LatencyModel]) -> None:
        self._runs = [model.run for model in models]  # by instance

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        """`context` is the sum over all decodes; a step without tokens takes no time."""
        run = self._runs[view.index]
        if prefill_tokens > 0:
            return run(decodes, context, ((prefill_tokens, 0),))[0] / PS_PER_SECOND
        return run(decodes, context, ())[0] / PS_PER_SECOND if decodes > 0 else 0.0
