"""Controls: the tuned linear rule and the best of random rules, beside which a winner has to prove itself."""

from __future__ import annotations

from small import suite

from headway.evolve import Cache, evaluate
from headway.evolve.controls import GUESS, LIMITS, LinearTuner, RandomRules, find_controls
from headway.evolve.evaluation import Evaluation
from headway.evolve.objectives import PRIMARY

SMALL = suite(train=[{"workload": "prefixes", "seeds": [1]}], validation=[])


def told(gain: float, stopped: str | None = None) -> Evaluation:
    return Evaluation(True, None, {PRIMARY: gain}, [], "", "id", stopped=stopped)


def test_the_linear_rule_starts_from_the_guess_and_ends_near_the_best_that_ran_every_case() -> None:
    tuner = LinearTuner(SMALL, seed=1, evaluations=8)
    first = tuner.ask(4)
    assert first[0].policies["routing"]["parameters"] == dict(zip("AB", GUESS, strict=True))
    assert len({bundle.id for bundle in first}) == 4
    gains = [told(0.1), told(0.3), told(0.2), told(0.9, "stopped early")]
    tuner.tell(list(zip(first, gains, strict=True)))
    best = first[1].policies["routing"]["parameters"]
    for bundle in tuner.ask(4):
        for value, middle, (low, high) in zip(
            bundle.policies["routing"]["parameters"].values(), best.values(), LIMITS, strict=True
        ):
            assert low <= value <= high and 1 / 5 < value / middle < 5  # four standard deviations


def test_random_rules_depend_only_on_the_seed_and_their_number() -> None:
    one, other = RandomRules(SMALL, 3), RandomRules(SMALL, 3)
    whole = [bundle.id for bundle in one.ask(6)]
    assert [bundle.id for size in (2, 4) for bundle in other.ask(size)] == whole
    assert [bundle.id for bundle in RandomRules(SMALL, 4).ask(6)] != whole


def test_both_controls_have_the_budget_of_the_search_and_run() -> None:
    cache = Cache()
    linear, random = find_controls(SMALL, 1, 3, 2, cache, None, True)
    assert linear.name.startswith("tuned linear(") and random.name == "best of 3 random rules"
    for control in (linear, random):
        misses = cache.misses
        assert evaluate(control.bundle, SMALL, cache=cache, told=False).ok and cache.misses == misses
