"""The interface of a step-time model.

A step computes `chunks` of prompts and decodes one token for each of `decodes` sequences. A chunk is a pair: the number
of new tokens, and the number of past tokens, which are already in the KV cache. The contexts of the decoding sequences
sum to `context` tokens. A *run* is a sequence of such steps with the same sequences. From one step of a run to the
next, the context of every decode grows by one token, and the past of every chunk grows by the length of the chunk.

For a run, a model returns `first`, `increment` and `k_max`. They mean that step j of the run, counted from 0, takes
exactly `first + j * increment` picoseconds, for every j below `k_max`. If a caller later asks for the
rest of the same run, starting with step j, the model must return the same time of step j, now as `first`. A step has at
least one token and takes at least one picosecond.

The numbers of context tokens and past tokens grow from step to step. Therefore a model must charge a whole number of
picoseconds for each of these tokens. Terms that are constant along the run may have fractions of a picosecond; they are
rounded once per step.
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
UNITS: Final = 64  # units of a token, in which `verification` counts contexts

Chunk = tuple[int, int]
Run = tuple[int, int, int]
StepShape = tuple[int, int, Sequence[Chunk]]  # decodes, context, chunks; no decodes and no chunks: an idle rank


class LatencyModel(Protocol):
    """A latency model. Four methods are optional. `scale(factor)` returns the model of an engine whose steps take
    `factor` times as long. `doubts(tokens, sequences)` returns a sentence for the user if a step of up to this many
    tokens and sequences can be outside the measured range. `split_host()` returns the model without the work of the
    host, and this work in picoseconds: for each step, and for each sequence of the step. `verify(width)` returns a
    `Verifier` of `verification.py`, which prices steps whose decodes compute several tokens each."""

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return (first, increment, k_max) of a run of steps, as the module docstring defines them. `first` and
        `increment` are whole picoseconds; `first` and `k_max` are at least 1."""
        ...


class LatencyKind(NamedTuple):
    """The declaration of a latency model: its name in scenarios, its keys and its constructor."""

    name: str
    keys: type[Struct]
    build: Callable[[Any, str, ModelShape, Gpu, int], LatencyModel]  # (keys, location for errors, model, GPU, TP)
    # The same with the number of data-parallel ranks, and whether GPUs have whole experts. None: the model does not
    # tell these apart, and each rank takes the times of an engine of its own.
    build_ranks: Callable[[Any, str, ModelShape, Gpu, int, int, bool], LatencyModel] | None = None


class Walked(Struct, eq=False):
    """Multiplies the step times of a model that has no `scale` method. Each product is rounded, so the step times no
    longer grow by a constant increment. Therefore every run of steps is one step long."""

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
    """Return `value` times `factor`, rounded to a whole number, but at least `least`."""
    return max(least, round(value * factor))


class Estimator:
    """The step-time estimator that policies receive. It treats all prefill tokens as one chunk without a past."""

    __slots__ = ("_runs",)

    def __init__(self, models: Iterable[LatencyModel]) -> None:
        self._runs = [model.run for model in models]  # `run` method of each instance's model, by instance index

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        """Return the duration of one step in seconds. If the step has no tokens, return 0. `context` is the sum of the
        contexts of all decodes."""
        run = self._runs[view.index]
        if prefill_tokens > 0:
            return run(decodes, context, ((prefill_tokens, 0),))[0] / PS_PER_SECOND
        return run(decodes, context, ())[0] / PS_PER_SECOND if decodes > 0 else 0.0
