"""Weights by name, as whole ratios: shares are then decided without rounding."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from math import isfinite

from headway.config.wording import cut, shown
from headway.errors import HeadwayError


def exact_weights(given: Mapping[str, float], where: str) -> dict[str, Fraction]:
    """Each weight as it is written, which must be positive."""
    for name, weight in given.items():
        if not (isfinite(weight) and 1e-9 <= weight <= 1e9):
            raise HeadwayError(f"{where}.{cut(name)}: must lie between 1e-9 and 1e9, got {shown(weight)}.")
    return {name: Fraction(str(weight)) for name, weight in given.items()}
