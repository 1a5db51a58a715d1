"""The times of steps with speculative decoding: each decode computes its next token and verifies several drafts.

A decode gains more than one token per step, on average a rate that need not be a whole number. So that step times still
grow by a constant number of picoseconds, contexts are counted in units of 1/64 token, and a unit costs a whole number
of picoseconds. Hence the cost of a token of context is rounded to a multiple of 64 ps: by at most 32 ps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Protocol

from msgspec import Struct

from headway.latency.base import FOREVER, Chunk, LatencyModel, Run, scale_model, times
from headway.latency.base import UNITS as UNITS
from headway.latency.joint_steps import run_group_of

# Decodes, context, growth of the context per step, chunks, and context in layers with windows of a data-parallel rank,
# as `Verifier.run` has them.
RankShape = tuple[int, int, int, Sequence[Chunk], int | None]


class Verifier(Protocol):
    """The times of steps whose decodes compute several tokens each."""

    def run(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        """Return (first, increment, k_max) of a run of steps, as `LatencyModel.run` does. The contexts of the decodes
        sum to `context` units, and the sum grows by `growth` units per step. In layers with windows, the contexts sum
        to `near` units; None: it is unknown, or there are no such layers."""
        ...


class AffineVerifier(Struct, eq=False):
    """A decode that computes `width` tokens counts as `width` decodes that read one context together. A unit of context
    takes `unit_ps`."""

    model: LatencyModel
    width: int
    unit_ps: int

    def run(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        first, _, steps = self.model.run(decodes * self.width, 0, chunks)
        increment = self.model.run(0, 0, chunks)[1] if chunks else 0
        return first + self.unit_ps * context, increment + self.unit_ps * growth, steps


class WalkedVerifier(Struct, eq=False):
    """The same for a model without the method `verify`, whose times may not be affine in the context: each run is one
    step long."""

    model: LatencyModel
    width: int

    def run(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        return self.model.run(decodes * self.width, context // UNITS, chunks)[0], 0, 1


def verifier(model: LatencyModel, width: int) -> Verifier:
    make: Callable[[int], Verifier] | None = getattr(model, "verify", None)
    return WalkedVerifier(model, width) if make is None else make(width)


class Verification:
    """The step times of an engine that verifies `tokens` drafts per decode and step.

    A draft model first computes all tokens of the step, as the target does. For each further draft, it computes one
    token of each decode. In addition, a step with decodes takes `draft_ps`.
    """

    def __init__(self, model: LatencyModel, tokens: int, draft: LatencyModel | None = None, draft_ps: int = 0) -> None:
        self.model, self.tokens, self.draft, self.draft_ps = model, tokens, draft, draft_ps
        models = [model] if draft is None else [model, draft]
        self._passes = [verifier(each, tokens + 1) for each in models]
        self._again = None if draft is None or tokens < 2 else verifier(draft, 1)
        self._ranks: dict[tuple[LatencyModel, int], Verifier] = {}  # of what a data-parallel rank computes alone

    def scale(self, factor: Fraction) -> Verification:
        draft = None if self.draft is None else scale_model(self.draft, factor)
        return Verification(scale_model(self.model, factor), self.tokens, draft, times(self.draft_ps, factor))

    def run(self, decodes: int, context: int, chunks: Sequence[Chunk]) -> Run:
        """Return the times as a latency model does, with the context in tokens. The context grows by one token per
        decode and step."""
        return self.steps(decodes, context * UNITS, decodes * UNITS, chunks)

    def steps(self, decodes: int, context: int, growth: int, chunks: Sequence[Chunk], near: int | None = None) -> Run:
        """Return the times as a `Verifier` does."""
        total = increment = 0
        k_max = FOREVER
        for each in self._passes:
            first, rise, steps = each.run(decodes, context, growth, chunks, near)
            near = None  # a draft has no such layers, or windows of its own
            total += first
            increment += rise
            k_max = min(k_max, steps)
        if decodes:
            total += self.draft_ps
            if self._again is not None:
                first, rise, steps = self._again.run(decodes, context, growth, ())
                total += (self.tokens - 1) * first
                increment += (self.tokens - 1) * rise
                k_max = min(k_max, steps)
        return total, increment, k_max

    def group(self, ranks: Sequence[RankShape]) -> Run:
        """Return the joint run of data-parallel ranks that wait for each other. They do so in each pass of a model."""
        runs = [self._joint(self.model, self.tokens + 1, ranks)]
        if self.draft is not None:
            runs.append(self._joint(self.draft, self.tokens + 1, ranks))
        decoding = any(rank[0] for rank in ranks)
        if decoding and self.draft is not None and self._again is not None:
            alone: list[RankShape] = [(decodes, context, growth, (), None) for decodes, context, growth, _, _ in ranks]
            runs += [self._joint(self.draft, 1, alone)] * (self.tokens - 1)
        total = self.draft_ps if decoding else 0
        for first, _, _ in runs:
            total += first
        return total, sum(increment for _, increment, _ in runs), min(steps for _, _, steps in runs)

    def _joint(self, model: LatencyModel, width: int, ranks: Sequence[RankShape]) -> Run:
        def price(own: LatencyModel, place: int) -> Run:
            each = self._ranks.get((own, width))
            if each is None:
                each = self._ranks[own, width] = verifier(own, width)
            return each.run(*ranks[place])

        shapes = [(decodes, context // UNITS, chunks) for decodes, context, _, chunks, _ in ranks]
        return run_group_of(model)(shapes, price, width)
