"""Speculative decoding: leaping, walking and cutting runs at random places give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from draw_sources import Scattered
from drawn_scenarios import BASES, scattered
from exact_runs import check
from speculation_draws import speculating, speculation_traits

QUICK, FULL, PARTS = 18, 510, 6
WATCHED = 3  # of so many scenarios, `make test` watches one after each event
SHOWN = (
    *("drafts", "accepted", "all accepted", "by class", "by position", "draft model", "preemption", "polled signals"),
    *("tiers", "split", "evictions", "timed out", "in flight"),
)


def check_speculating(chosen: Iterable[int], folder: Path, watched: int = 1) -> Counter[str]:
    families = [*BASES, "reporting"]
    seen: Counter[str] = Counter()
    for number in chosen:
        scenario = speculating(Scattered(number), scattered(families[number % len(families)], number, folder))
        try:
            result = check(scenario, watching=number % watched == 0)
        except Exception as error:
            error.add_note(f"speculating {number}: {scenario!r}")
            raise
        seen.update(speculation_traits(scenario, result))
    return seen


def test_speculation_gives_the_same_bytes_in_all_modes(tmp_path: Path) -> None:
    seen = check_speculating(range(QUICK), tmp_path, WATCHED)
    assert not [name for name in SHOWN if not seen[name]]


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_speculation_gives_the_same_bytes_in_all_modes_on_many_scenarios(part: int, tmp_path: Path) -> None:
    each = FULL // PARTS
    seen = check_speculating(range(QUICK + part * each, QUICK + part * each + each), tmp_path)
    assert not [name for name in SHOWN if not seen[name]]
