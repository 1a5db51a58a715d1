"""The SLO classes as policies know them by default, with what each was promised; and weights by name."""

from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from typing import Any, Final

from headway.config.units import positive_duration_ps
from headway.config.wording import cut, shown
from headway.errors import HeadwayError

CLASSES: Final = ("realtime", "standard", "batch", "best-effort")  # the most important first
TTFT: Final = {"realtime": "500ms", "standard": "2s", "batch": "60s"}


def class_targets(targets: Mapping[str, Any], where: str) -> dict[str, int]:
    """Durations by class in picoseconds, each above 0."""
    return {name: positive_duration_ps(target, f"{where}.{cut(name)}") for name, target in targets.items()}


def exact_weights(weights: Mapping[str, float], where: str) -> dict[str, Fraction]:
    """Positive weights as they are written, so that shares are decided without rounding."""
    for name, weight in weights.items():
        if not (isfinite(weight) and 1e-9 <= weight <= 1e9):
            raise HeadwayError(f"{where}.{cut(name)}: must lie between 1e-9 and 1e9, got {shown(weight)}.")
    return {name: Fraction(str(weight)) for name, weight in weights.items()}
