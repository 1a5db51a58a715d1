"""Leaping, walking and cutting runs at random places give the same bytes on models with groups of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

import ahead_draws
from draw_sources import Draws, Scattered
from drawn_scenarios import BASES, scattered
from drawn_traits import traits
from exact_runs import check, contents, run
from group_draws import Json, aligned, fits, grouped, kept, pressed

QUICK, FULL, PARTS = 24, 416, 4


def check_grouped(chosen: Iterable[int], folder: Path, ahead: bool = False) -> Counter[str]:
    """Check the scenarios of these numbers, and count how many showed each trait."""
    seen: Counter[str] = Counter()
    families = [*BASES, "reporting"]
    for number in chosen:
        scenario = scattered(families[number % len(families)], number, folder)
        if not fits(scenario):
            continue
        draws = Scattered(number)
        scenario = grouped(scenario, draws)
        if ahead:
            scenario = ahead_draws.ahead(draws, scenario)
        try:
            result = check(scenario, watching=False)
        except Exception as error:
            error.add_note(f"grouped {number}: {scenario!r}")
            raise
        kinds = [kind["kind"] for kind in scenario["cluster"]["model"]["kv_groups"]]
        seen.update(["scenarios", kinds[-1], *traits(scenario, result)])
    return seen


def test_models_with_groups_of_layers_give_the_same_bytes(tmp_path: Path) -> None:
    seen = check_grouped(range(QUICK), tmp_path)
    assert min(seen[name] for name in ("sliding", "preemption", "eviction", "prefix hit")) > 0


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_models_with_groups_of_layers_give_the_same_bytes_on_many_scenarios(part: int, tmp_path: Path) -> None:
    each = FULL // PARTS * 3
    seen = check_grouped(range(QUICK + part * each, QUICK + (part + 1) * each), tmp_path)
    for name in ("sliding", "state", "latent", "preemption", "eviction", "prefix hit", "in flight at the horizon"):
        assert seen[name], name


def check_pressed(chosen: Iterable[int], ahead: bool = False, draw: Callable[[Draws], Json] = pressed) -> Counter[str]:
    seen: Counter[str] = Counter()
    for number in chosen:
        draws = Scattered(number)
        scenario = ahead_draws.ahead(draws, draw(draws)) if ahead else draw(draws)
        try:
            result = check(scenario, watching=False)
        except Exception as error:
            error.add_note(f"pressed {number}: {scenario!r}")
            raise
        seen.update(["scenarios", *traits(scenario, result)])
    return seen


def test_windows_that_compete_for_few_pages_give_the_same_bytes() -> None:
    seen = check_pressed(range(QUICK))
    for name in ("preemption", "eviction", "prefix hit", "prefill in several chunks", "queueing"):
        assert seen[name] > 1, name


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_windows_that_compete_for_few_pages_give_the_same_bytes_on_many_scenarios(part: int) -> None:
    each = FULL // PARTS
    check_pressed(range(QUICK + part * each, QUICK + (part + 1) * each))


def test_windows_and_asynchronous_scheduling_give_the_same_bytes(tmp_path: Path) -> None:
    seen = check_pressed(range(QUICK // 2), ahead=True)
    for name in ("preemption", "eviction", "prefix hit", "prefill in several chunks", "queueing"):
        assert seen[name], name
    assert check_grouped(range(QUICK), tmp_path, ahead=True)["scenarios"] > 2


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
def test_windows_and_asynchronous_scheduling_give_the_same_bytes_on_many_scenarios(part: int, tmp_path: Path) -> None:
    each = FULL // PARTS
    check_pressed(range(QUICK + part * each, QUICK + (part + 1) * each), ahead=True)
    each *= 3
    seen = check_grouped(range(QUICK + part * each, QUICK + (part + 1) * each), tmp_path, ahead=True)
    for name in ("sliding", "state", "latent", "preemption", "eviction", "prefix hit"):
        assert seen[name], name


def test_asynchronous_scheduling_changes_what_a_model_with_windows_does() -> None:
    scenario = pressed(Scattered(1))
    ahead = {**scenario, "cluster": {**scenario["cluster"], "async_scheduling": True}}
    assert contents(run(ahead))["column finished_ps"] != contents(run(scenario))["column finished_ps"]


@pytest.mark.parametrize("draw", [kept, aligned], ids=["all", "align"])
def test_kept_states_give_the_same_bytes(draw: Callable[[Draws], Json]) -> None:
    seen = check_pressed(range(QUICK // 2), draw=draw)
    for name in ("preemption", "eviction", "prefix hit", "queueing"):
        assert seen[name], name


@pytest.mark.full
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("draw", [kept, aligned], ids=["all", "align"])
def test_kept_states_give_the_same_bytes_on_many_scenarios(draw: Callable[[Draws], Json], part: int) -> None:
    each = FULL // PARTS
    check_pressed(range(QUICK + part * each, QUICK + (part + 1) * each), ahead=part % 2 == 0, draw=draw)
