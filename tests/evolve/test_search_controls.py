"""Controls: tuned constants and the best of random rules, beside which a winner has to prove itself."""

from __future__ import annotations

from typing import Any

import pytest
from small import suite

from headway.evolve import Cache, evaluate
from headway.evolve.controls import TUNED, RandomRules, Tuned, Tuner, find_controls
from headway.evolve.evaluation import Evaluation
from headway.evolve.objectives import PRIMARY

SMALL = suite(train=[{"workload": "prefixes", "seeds": [1]}], validation=[])


def told(gain: float, stopped: str | None = None) -> Evaluation:
    return Evaluation(True, None, {PRIMARY: gain}, [], "", "id", stopped=stopped)


def constants(spec: dict[str, Any]) -> dict[str, float]:
    return spec.get("parameters") or {key: value for key, value in spec.items() if key not in ("name", "lru_blocks")}


@pytest.mark.parametrize("tuned", TUNED, ids=[tuned.name for tuned in TUNED])
def test_constants_start_from_the_guess_and_end_near_the_best_that_ran_every_case(tuned: Tuned) -> None:
    tuner = Tuner(tuned, SMALL, seed=1, evaluations=8)
    first = tuner.ask(4)
    assert constants(first[0].policies["routing"]) == {name: each.guess for name, each in tuned.constants.items()}
    assert len({bundle.id for bundle in first}) == 4
    gains = [told(0.1), told(0.3), told(0.2), told(0.9, "stopped early")]
    tuner.tell(list(zip(first, gains, strict=True)))
    best = constants(first[1].policies["routing"])
    for bundle in tuner.ask(4):
        bundle.check()
        for name, value in constants(bundle.policies["routing"]).items():
            low, high = tuned.constants[name].limits
            assert low <= value <= high and 1 / 5 < value / best[name] < 5  # four standard deviations


def test_random_rules_depend_only_on_the_seed_and_their_number() -> None:
    one, other = RandomRules(SMALL, 3), RandomRules(SMALL, 3)
    whole = [bundle.id for bundle in one.ask(6)]
    assert [bundle.id for size in (2, 4) for bundle in other.ask(size)] == whole
    assert [bundle.id for bundle in RandomRules(SMALL, 4).ask(6)] != whole


def test_both_controls_have_the_budget_of_the_search_and_run() -> None:
    cache = Cache()
    linear, delay, random = find_controls(SMALL, 1, 3, 2, cache, None, True)
    assert linear.name.startswith("tuned linear(") and random.name == "best of 3 random rules"
    assert delay.name.startswith("tuned least-delay(")
    for control in (linear, delay, random):
        misses = cache.misses
        assert evaluate(control.bundle, SMALL, cache=cache, told=False).ok and cache.misses == misses
