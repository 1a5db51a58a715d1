"""Pairs of features of engines: leaping, walking and cutting runs at random places give the same bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import ahead_draws
from draw_sources import Scattered
from drawn_scenarios import BASES, scattered
from drawn_traits import traits
from exact_runs import check
from rank_draws import rank_traits
from speculation_draws import speculating, speculation_traits

Json = dict[str, Any]
QUICK, FULL, PARTS, WATCHED = 30, 400, 4, 3


def ranks_ahead(number: int, folder: Path) -> Json:
    """Draw an engine with data-parallel ranks that schedules asynchronously."""
    return ahead_draws.ahead(Scattered(number), scattered("ranked", number, folder))


def speculating_ahead(number: int, folder: Path) -> Json:
    """Draw an engine that speculates and schedules asynchronously."""
    families, draws = [*BASES, "reporting"], Scattered(number)
    drawn = scattered(families[number % len(families)], number, folder)
    return ahead_draws.ahead(draws, speculating(draws, drawn))


def check_pair(
    draw: Callable[[int, Path], Json], chosen: Iterable[int], folder: Path, watched: int = 1
) -> Counter[str]:
    """Check the scenarios of these numbers, watch one of so many, and count how many showed each trait."""
    seen: Counter[str] = Counter()
    for number in chosen:
        scenario = draw(number, folder)
        try:
            result = check(scenario, watching=number % watched == 0)
        except Exception as error:
            error.add_note(f"{draw.__name__} {number}: {scenario!r}")
            raise
        ranks = [name for name, holds in rank_traits(scenario, result).items() if holds]
        seen.update(["scenarios", *traits(scenario, result), *ranks, *speculation_traits(scenario, result)])
    return seen


def test_ranks_in_lockstep_that_schedule_asynchronously(tmp_path: Path) -> None:
    seen = check_pair(ranks_ahead, range(QUICK), tmp_path, WATCHED)
    assert min(seen[name] for name in ("ranks in lockstep", "dummy steps", "several ranks used", "queueing")) > 2


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_ranks_in_lockstep_that_schedule_asynchronously_on_many_scenarios(part: int, tmp_path: Path) -> None:
    each = FULL // PARTS
    seen = check_pair(ranks_ahead, range(QUICK + part * each, QUICK + (part + 1) * each), tmp_path)
    for name in ("ranks in lockstep", "ranks apart", "whole experts", "balance vllm", "balance direct", "preemption"):
        assert seen[name], name


def test_engines_that_speculate_and_schedule_asynchronously(tmp_path: Path) -> None:
    seen = check_pair(speculating_ahead, range(QUICK), tmp_path, WATCHED)
    assert min(seen[name] for name in ("drafts", "all accepted", "by class", "draft model", "preemption")) > 0


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_engines_that_speculate_and_schedule_asynchronously_on_many_scenarios(part: int, tmp_path: Path) -> None:
    each = FULL // PARTS
    seen = check_pair(speculating_ahead, range(QUICK + part * each, QUICK + (part + 1) * each), tmp_path)
    for name in ("drafts", "by position", "draft model", "preemption", "polled signals", "tiers", "split", "timed out"):
        assert seen[name], name
