"""How fast an instance computes: a step function of time, by which its steps take longer while it warms up or ails."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from headway.latency.base import LatencyModel, scaled
from headway.types import NEVER


class Pace:
    __slots__ = ("model", "models", "slowed", "warming")

    def __init__(self, model: LatencyModel) -> None:
        self.model = model
        self.models: dict[Fraction, LatencyModel] = {}
        self.warming: list[tuple[int, Fraction]] = []  # from when on which factor holds, in order
        self.slowed: list[tuple[int, Fraction]] = []  # until when it is slower, and by which factor

    def warm(self, now: int, pieces: Sequence[tuple[int, Fraction]]) -> None:
        """From now on it warms up."""
        self.warming = [(now + offset, factor) for offset, factor in pieces]

    def at(self, now: int) -> tuple[LatencyModel, int]:
        """The model of a step that begins now, and until when it holds."""
        factor, until = Fraction(1), NEVER
        for since, own in self.warming:  # the last of them is 1
            if since > now:
                until = since
                break
            factor = own
        self.slowed = [(end, own) for end, own in self.slowed if end > now]
        for end, own in self.slowed:
            factor *= own
            until = min(until, end)
        model = self.models.get(factor)
        if model is None:
            model = self.models[factor] = scaled(self.model, factor)
        return model, until
