"""How many examples Hypothesis draws, in one place: a test names the number for `make test`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings

# No clock fails a test, and in `make test` and `make test-full` every run draws the same; `make test-long` draws anew.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "steady")
MORE = 50 if PROFILE == "anew" else 1
settings.load_profile(PROFILE)


def draws(count: int, **more: Any) -> settings:
    """Return settings for so many examples; `make test-long` draws 50 times as many."""
    return settings(max_examples=count * MORE, **more)
