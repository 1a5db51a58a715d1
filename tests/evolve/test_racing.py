"""Racing: candidates that fall behind all finalists stop early, and count as worse than every finalist."""

from __future__ import annotations

from pathlib import Path

import pytest
from small import suite

from headway.evolve import Bundle, Cache, evaluate_many
from headway.evolve.compiled_engine import is_current
from headway.evolve.evaluation import CaseResult, Evaluation
from headway.evolve.objectives import PRIMARY
from headway.evolve.racing import FINALISTS, Race, looks

SMALL = suite()
NAMES = [objective.name for objective in SMALL.objectives]


def evaluation(number: int, gains: list[float], stopped: str | None = None) -> Evaluation:
    cases = [
        CaseResult(f"workload {place}", 1, True, {PRIMARY: gain, **dict.fromkeys(NAMES, gain)})
        for place, gain in enumerate(gains)
    ]
    return Evaluation(True, None, {PRIMARY: sum(gains) / len(gains)}, cases, "", f"id {number}", stopped=stopped)


def test_looks_are_close_together_at_first_and_rarer_later() -> None:
    assert looks(1) == []
    assert looks(6) == [1, 2, 3, 4]
    assert looks(30) == [1, 2, 3, 4, 6, 8, 12, 16, 24]


def test_the_bar_is_the_lowest_mean_of_the_finalists_over_the_same_cases() -> None:
    finalists = [evaluation(place, [0.1 * place, 0.5, 0.6 - 0.1 * place]) for place in range(FINALISTS)]
    worse = evaluation(90, [-1.0, -1.0, -1.0])
    stopped = evaluation(91, [0.0], "stopped")
    race = Race.of([*finalists, worse, stopped, finalists[0]], SMALL.objectives)
    assert race.bars == pytest.approx({1: 0.0, 2: 0.25})
    assert race.whole == pytest.approx(1.1 / 3)


def test_without_enough_finalists_no_candidate_stops() -> None:
    few = [evaluation(place, [0.1, 0.2]) for place in range(FINALISTS - 1)]
    assert Race.of(few, SMALL.objectives) == Race()
    repeated = [few[0]] * FINALISTS
    assert Race.of(repeated, SMALL.objectives) == Race()


def test_a_candidate_behind_the_bar_stops_and_counts_as_worse_than_the_finalists() -> None:
    cache = Cache()
    candidates = [Bundle.of(routing="random"), Bundle.of(routing="least-loaded")]
    whole = evaluate_many(candidates, SMALL, cache=cache)
    first = whole[1].cases[0].gains[PRIMARY]
    assert first < whole[0].cases[0].gains[PRIMARY]
    race = Race({1: first + 1e-9, 2: -10.0}, whole=0.02)
    ahead, behind = evaluate_many(candidates, SMALL, cache=cache, race=race)
    assert ahead == whole[0]
    assert behind.ok and len(behind.cases) == 1
    assert (
        behind.stopped
        == f"stopped after 1 of 3 cases: primary {first:+.3f} is below {first:+.3f}, the lowest of the finalists."
    )
    assert behind.fitness[PRIMARY] <= race.whole
    equal = Race({1: first}, whole=0.0)
    assert evaluate_many(candidates, SMALL, cache=cache, race=equal) == whole


def test_an_engine_compiled_from_other_sources_is_not_used(tmp_path: Path) -> None:
    from importlib.machinery import EXTENSION_SUFFIXES

    for package in ("sources", "same", "stale", "plain"):
        (tmp_path / package / "sim").mkdir(parents=True)
        (tmp_path / package / "sim" / "instance.py").write_text("x = 2" if package == "stale" else "x = 1")
        if package != "plain":
            (tmp_path / package / "sim" / f"instance{EXTENSION_SUFFIXES[0]}").touch()
    assert is_current(tmp_path / "sources", tmp_path / "same")
    assert not is_current(tmp_path / "sources", tmp_path / "stale")
    assert not is_current(tmp_path / "sources", tmp_path / "plain")
    (tmp_path / "sources" / "new.py").touch()
    assert not is_current(tmp_path / "sources", tmp_path / "missing")
