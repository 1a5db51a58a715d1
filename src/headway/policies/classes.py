"""The SLO classes as policies know them by default: their order, and what each was promised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from headway.config.units import duration_ps
from headway.config.wording import cut, shown
from headway.errors import HeadwayError

CLASSES: Final = ("realtime", "standard", "batch", "best-effort")  # the most important first
TTFT: Final = {"realtime": "500ms", "standard": "2s", "batch": "60s"}


def class_targets(given: Mapping[str, Any], where: str) -> dict[str, int]:
    """Durations by class in picoseconds, each longer than nothing."""
    found = {name: duration_ps(value, f"{where}.{cut(name)}") for name, value in given.items()}
    for name, target in found.items():
        if target <= 0:
            raise HeadwayError(f"{where}.{cut(name)}: must be longer than nothing, got {shown(given[name])}.")
    return found
