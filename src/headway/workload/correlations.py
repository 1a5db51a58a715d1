"""Correlations: what a tenant's sessions, and the turns of one session, have to do with each other.

prefix       0 to 1: the probability that a session has the shared prefix of the tenant's session before, whatever
             that was; else it is drawn afresh, so each prefix stays as popular as it is
burst_size   0 to 1: in a burst of n sessions first prompts are 1 + burst_size log2(n) times as long
session      `prompt_growth`: what a follow-up brings of its own is so many times what the one before brought;
             `decode_variation`: an answer is the one before times a lognormal factor of mean 1 and this deviation
"""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config.section import read
from headway.errors import HeadwayError
from headway.types import Json

STEEPEST: Final = 100.0


class Evolution(Struct, frozen=True):
    """How lengths evolve within a session; None where each turn is drawn for itself."""

    prompt_growth: float | None = None
    decode_variation: float | None = None


class Correlations(Struct, frozen=True):
    """The `correlations` key."""

    prefix: float = 0.0
    burst_size: float = 0.0
    session: Any = Evolution()


def parse(spec: object, where: str) -> Correlations:
    found = read(Correlations, spec, where)
    for name in ("prefix", "burst_size"):
        if not 0 <= getattr(found, name) <= 1:
            raise HeadwayError(f"{where}.{name}: must lie between 0 and 1, got {getattr(found, name):g}.")
    if not isinstance(found.session, Evolution):
        found = replace(found, session=_evolution(found.session, f"{where}.session"))
    return found


def _evolution(spec: object, where: str) -> Evolution:
    found = read(Evolution, spec, where)
    growth, variation = found.prompt_growth, found.decode_variation
    if growth is not None and not (isfinite(growth) and 0 < growth <= STEEPEST):
        raise HeadwayError(f"{where}.prompt_growth: must be above 0 and at most {STEEPEST:g}, got {growth:g}.")
    if variation is not None and not 0 <= variation <= STEEPEST:
        raise HeadwayError(f"{where}.decode_variation: must lie between 0 and {STEEPEST:g}, got {variation:g}.")
    return found


def explicit(correlations: Correlations) -> Json:
    """The key as it would be written."""
    found = asdict(correlations)
    session = {name: value for name, value in asdict(found.pop("session")).items() if value is not None}
    return found | ({"session": session} if session else {})
