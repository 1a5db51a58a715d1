"""The seeds of an experiment: how the n-th follows from a scenario's own, alike for everything that is compared."""

from __future__ import annotations

from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Json

MOST: Final = 1000


def seeded(resolved: Json, number: int) -> Json:
    """A resolved scenario under its n-th seed, from 0 on: workload, simulation and jitter are counted up together, so
    that whoever runs under the same number meets the same requests and the same luck."""
    if not number:
        return resolved
    seeds = {name: (value + number + 2**63) % 2**64 - 2**63 for name, value in resolved["seed"].items()}
    return {**resolved, "seed": seeds}


def check_seeds(seeds: int) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST:
        raise HeadwayError(f"seeds: must lie between 1 and {MOST:,}, got {shown(seeds)}.")
