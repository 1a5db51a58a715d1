"""How much of a large space of cases each tier of the tests runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No clock fails a test, and in `make test` and `make test-full` every run draws the same; `make test-long` draws anew.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
USUAL, MORE = 25, 80 if PROFILE == "anew" else 1
settings.register_profile(
    PROFILE,
    max_examples=USUAL * MORE,
    deadline=None,
    derandomize=PROFILE == "steady",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(PROFILE)


def draws(count: int, **more: Any) -> settings:
    """Return settings for so many examples; `make test-long` draws 80 times as many."""
    return settings(max_examples=count * MORE, **more)


def grid(rows: Sequence[Any], columns: Sequence[Any], each: int = 1) -> list[Any]:
    """Return all pairs as parameters of a test. `make test` runs every row with `each` columns, which take turns;
    `make test-full` runs the others."""
    cases = []
    for number, row in enumerate(rows):
        quick = {(number * each + turn) % len(columns) for turn in range(each)}
        cases += [
            pytest.param(row, column, marks=() if place in quick else pytest.mark.full)
            for place, column in enumerate(columns)
        ]
    return cases
