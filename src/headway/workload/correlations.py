"""Correlations between a tenant's sessions, and between the turns of a session."""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.section import check_range
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload.shapes import PROBABILITY
from headway.workload.traces.record import present

STEEPEST: Final = 100


class Evolution(Struct, frozen=True):
    """How lengths change within a session. If a key is None, the length of each turn is drawn independently."""

    prompt_growth: Annotated[
        float | None, "ratio of the new tokens of a turn to the new tokens of the previous turn, above 0, at most 100"
    ] = None
    decode_variation: Annotated[
        float | None, "CV of the lognormal factor (mean 1) between successive output lengths, 0 to 100"
    ] = None

    def validate(self, where: str) -> Evolution:
        growth, variation = self.prompt_growth, self.decode_variation
        if growth is not None and not (isfinite(growth) and 0 < growth <= STEEPEST):
            raise HeadwayError(f"{where}.prompt_growth: must be above 0 and at most {STEEPEST:g}, got {growth:g}.")
        if variation is not None:
            check_range(variation, 0, STEEPEST, f"{where}.decode_variation")
        return self


class Correlations(Struct, frozen=True):
    """The `correlations` key."""

    prefix: Annotated[
        float, PROBABILITY, "probability that a session has the same shared prefix as the previous session"
    ] = 0.0
    burst_size: Annotated[
        float, PROBABILITY, "in a burst of n sessions, first prompts are 1 + burst_size log2(n) times as long"
    ] = 0.0
    session: Annotated[Evolution, "how lengths change within a session"] = Evolution()

    def validate(self, where: str) -> Correlations:
        check_range(self.prefix, 0, 1, f"{where}.prefix")
        check_range(self.burst_size, 0, 1, f"{where}.burst_size")
        return self

    def explicit(self) -> Json:
        """Return the `correlations` key as a mapping."""
        session = present(asdict(self.session))
        return {"prefix": self.prefix, "burst_size": self.burst_size} | ({"session": session} if session else {})
