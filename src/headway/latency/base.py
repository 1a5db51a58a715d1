"""The contract of a step-time model.

A step computes `chunks` of prompts, each (tokens, past tokens already in the KV cache), and one token for each of
`decodes` sequences whose contexts sum to `context` tokens. A *run* repeats the step: from one step to the next every
decode's context grows by one, and, where there is a chunk, it moves on by its own length. Over the next `k_max` steps
step j lasts `first + j * increment` picoseconds, exactly: a call at any of those steps gives that very figure as its
`first`. A step has at least one token, and none lasts less than one picosecond.

So whatever multiplies a count that grows along the run (context, past) is a whole number of picoseconds; what stays
the same along the run may be finer and is rounded once a step.
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
    """A model may have two more methods. `scale(factor)` returns the model of an engine whose steps take `factor` times
    as long: each coefficient times the factor, rounded once. `doubts(tokens, sequences)` says which of the times of
    steps of up to so many tokens and sequences were never measured; None if all were."""

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """(first, increment, k_max) in whole picoseconds, first and k_max at least 1."""
        ...


class LatencyKind(NamedTuple):
    """A latency model as scenarios name it: its keys, and how to build it from them."""

    name: str
    keys: type[Struct]
    build: Callable[[Any, str, ModelShape, Gpu, int], LatencyModel]  # keys, their place, model, GPU, TP


class Walked:
    """A model that cannot scale its coefficients, with each step's time scaled: no two steps are planned together."""

    def __init__(self, model: LatencyModel, factor: Fraction) -> None:
        self.model = model
        self.factor = factor

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        return times(self.model.run(decodes, context, chunks)[0], self.factor, 1), 0, 1


def scale_model(model: LatencyModel, factor: Fraction) -> LatencyModel:
    """The model of an engine whose steps take `factor` times as long."""
    if factor == 1:
        return model
    scale: Callable[[Fraction], LatencyModel] | None = getattr(model, "scale", None)
    return Walked(model, factor) if scale is None else scale(factor)


def times(value: int, factor: Fraction, least: int = 0) -> int:
    """A coefficient times a factor, rounded once."""
    return max(least, round(value * factor))


# The estimator that policies are handed: one step's time in seconds.


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
