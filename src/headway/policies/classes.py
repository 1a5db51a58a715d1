"""The default SLO classes with their TTFT targets, and functions that read targets and weights by name."""

from collections.abc import Mapping
from fractions import Fraction
from math import isfinite
from typing import Annotated, Any, Final

from headway.config.keys import DURATION, Form, PositiveDuration
from headway.config.units import positive_duration_ps
from headway.config.wording import cut, shown
from headway.errors import HeadwayError

CLASSES: Final = ("realtime", "standard", "batch", "best-effort")  # from the most to the least important
TTFT: Final = {"realtime": "500ms", "standard": "2s", "batch": "60s"}
ClassTargets = Annotated[dict[str, Any], Form.of(dict[str, PositiveDuration])]
OneDuration = Annotated[str | int | float, DURATION]


def class_targets(targets: Mapping[str, Any], where: str) -> dict[str, int]:
    """Convert the durations of all classes to picoseconds. Each duration must be positive."""
    return {name: positive_duration_ps(target, f"{where}.{cut(name)}") for name, target in targets.items()}


def exact_weights(weights: Mapping[str, float], where: str) -> dict[str, Fraction]:
    """Convert positive weights to exact fractions, so that computations with them do not round."""
    for name, weight in weights.items():
        if not (isfinite(weight) and 1e-9 <= weight <= 1e9):
            raise HeadwayError(f"{where}.{cut(name)}: must lie between 1e-9 and 1e9, got {shown(weight)}.")
    return {name: Fraction(str(weight)) for name, weight in weights.items()}
