"""The interface of a step-time model.

A step computes `chunks` of prompts, each (new tokens, past tokens already in the KV cache), and one token for each of
`decodes` sequences whose contexts sum to `context` tokens. A *run* repeats the step. From one step to the next, the
context of every decode grows by one token and the past of every chunk by the length of the chunk.

Over the next `k_max` steps, step j takes exactly `first + j * increment` picoseconds: a call at any of those steps
returns the same number as its `first`. A step has at least one token and takes at least one picosecond.

Therefore a coefficient of a count that grows along the run (context, past) is a whole number of picoseconds. Terms
that are constant along the run may be finer; they are rounded once per step.
"""

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any, Final, NamedTuple, Protocol

from msgspec import Struct

from headway.latency.gpus import Gpu
from headway.latency.shapes import ModelShape
from headway.types import PS_PER_SECOND
from headway.views.instance import InstanceView

FOREVER: Final = 1 << 60

Chunk = tuple[int, int]
Run = tuple[int, int, int]


class LatencyModel(Protocol):
    """A model may also have `scale(factor)`, which returns the model of an engine whose steps take `factor` times as
    long, and `doubts(tokens, sequences)`, which returns a sentence about unmeasured step times up to these sizes."""

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return (first, increment, k_max): the first two in whole picoseconds, first and k_max at least 1."""
        ...


class LatencyKind(NamedTuple):
    """The declaration of a latency model: its name in scenarios, its keys and its constructor."""

    name: str
    keys: type[Struct]
    build: Callable[[Any, str, ModelShape, Gpu, int], LatencyModel]  # (keys, place for errors, model, GPU, TP)


class Walked(Struct, eq=False):
    """A scaled model without a `scale` method: it scales each finished step time, so every run is one step long."""

    model: LatencyModel
    factor: Fraction

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        return times(self.model.run(decodes, context, chunks)[0], self.factor, 1), 0, 1


def scale_model(model: LatencyModel, factor: Fraction) -> LatencyModel:
    """Return the model of an engine whose steps take `factor` times as long."""
    if factor == 1:
        return model
    scale: Callable[[Fraction], LatencyModel] | None = getattr(model, "scale", None)
    return Walked(model, factor) if scale is None else scale(factor)


def times(value: int, factor: Fraction, least: int = 0) -> int:
    """Multiply a coefficient by a factor and round once."""
    return max(least, round(value * factor))


class Estimator:
    """The step-time estimator that policies receive; it treats prefill tokens as one chunk without a past."""

    __slots__ = ("_runs",)

    def __init__(self, models: Iterable[LatencyModel]) -> None:
        self._runs = [model.run for model in models]  # by instance

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        """Return the duration of one step, 0 if it has no tokens; `context` is the sum over all decodes."""
        run = self._runs[view.index]
        if prefill_tokens > 0:
            return run(decodes, context, ((prefill_tokens, 0),))[0] / PS_PER_SECOND
        return run(decodes, context, ())[0] / PS_PER_SECOND if decodes > 0 else 0.0
