"""The step times of an engine that schedules asynchronously: the host prepares a step while the GPU computes the step
before it. A step then takes as long as the GPU, or as long as the host if the host takes longer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct

from headway.latency.base import Chunk, LatencyModel, Run, StepShape, scale_model, times
from headway.latency.joint_steps import Price, run_group_of


class Overlapped(Struct, eq=False):
    gpu: LatencyModel  # the step times without the work of the host that can be hidden
    step_ps: int  # work of the host for a step
    sequence_ps: int  # work of the host for each sequence of the step
    factor: Fraction = Fraction(1)

    def scale(self, factor: Fraction) -> Overlapped:
        return Overlapped(scale_model(self.gpu, factor), self.step_ps, self.sequence_ps, self.factor * factor)

    def host_ps(self, decodes: int, chunks: Sequence[Chunk]) -> int:
        host = self.step_ps + self.sequence_ps * (decodes + len(chunks))
        return host if self.factor == 1 else times(host, self.factor)

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return the form of a run of steps. If the GPU's steps grow longer than the host's work, the run ends before
        that step."""
        return hidden(self.gpu.run(decodes, context, chunks), self.host_ps(decodes, chunks))

    def run_after_pause(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return the form of a run whose steps begin after a pause of the GPU. Only its first step is one."""
        first, increment, k_max = self.gpu.run(decodes, context, chunks)
        return first + self.host_ps(decodes, chunks), increment, k_max

    def run_group(self, shapes: Sequence[StepShape], price: Price | None = None, width: int = 1) -> Run:
        """Return the joint run of data-parallel ranks. The rank whose host works longest decides."""
        return hidden(run_group_of(self.gpu)(shapes, price, width), self.group_host_ps(shapes))

    def run_group_after_pause(self, shapes: Sequence[StepShape]) -> Run:
        first, increment, k_max = run_group_of(self.gpu)(shapes)
        return first + self.group_host_ps(shapes), increment, k_max

    def group_host_ps(self, shapes: Sequence[StepShape]) -> int:
        return max(self.host_ps(decodes, chunks) for decodes, _, chunks in shapes)

    def doubts(self, tokens: int, sequences: int) -> str | None:
        doubts: Any = getattr(self.gpu, "doubts", None)
        sentence: str | None = None if doubts is None else doubts(tokens, sequences)
        return sentence


def hidden(gpu: Run, host: int) -> Run:
    """Return the run whose steps take as long as those of the GPU, or `host` picoseconds if that is longer."""
    first, increment, k_max = gpu
    if first >= host:
        return gpu
    return host, 0, min(k_max, -((first - host) // increment)) if increment else k_max


def split_host(model: LatencyModel) -> tuple[LatencyModel, int, int]:
    """Return a model without the work of the host that can be hidden, and that work: per step, and per sequence."""
    split: Callable[[], tuple[LatencyModel, int, int]] | None = getattr(model, "split_host", None)
    return (model, 0, 0) if split is None else split()


def overlap(model: LatencyModel) -> LatencyModel:
    """Return the step times with asynchronous scheduling. A model without times of the host stays as it is."""
    gpu, step_ps, sequence_ps = split_host(model)
    return Overlapped(gpu, step_ps, sequence_ps) if step_ps or sequence_ps else model
