"""Numeric search without simulations: the fitness is a formula."""

from __future__ import annotations

import contextlib
import math
import sys

import pytest
from small import CODE, suite

from headway.errors import HeadwayError
from headway.evolve import Bundle, Evaluation
from headway.evolve.evolution import Plan, template_of
from headway.evolve.numeric import SAMPLERS, Numeric, Sampler, dimensions, with_values
from headway.policies import registry
from headway.policies.registry import DEFAULT_POLICIES as STAGES
from installed import need

need("optuna", "evolve")
need("cmaes", "evolve")
BATCH = 10


def made(template: object, stages: tuple[str, ...] = ("routing",)) -> Bundle:
    return template_of(template, suite(), stages[0])


def searcher(sampler: Sampler, seed: int = 1, template: object = "prefill-cost-routing") -> Numeric:
    bundle = made(template)
    return Numeric(suite(), bundle, dimensions(bundle, ("routing",)), sampler, seed, BATCH)


def judged(bundle: Bundle) -> tuple[Bundle, Evaluation]:
    """Return a fitness that rises towards a point far from the defaults."""
    values = bundle.policies["routing"]
    wanted = {"pending_weight": 3.0, "cache_weight": 0.4, "load_exponent": 2.0, "load_offset": 20.0}
    scale = {"pending_weight": 4.0, "cache_weight": 1.0, "load_exponent": 3.0, "load_offset": 32.0}
    loss = math.fsum(((values[name] - wanted[name]) / scale[name]) ** 2 for name in wanted)
    fitness = {"primary": -loss, "ttft": -loss, "e2e": -loss - values["kv_weight"] / 1000, "complexity": 6.0}
    return bundle, Evaluation(True, None, fitness, [], "", bundle.id)


def searched(sampler: Sampler, seed: int, evaluations: int = 50) -> list[tuple[Bundle, Evaluation]]:
    made = searcher(sampler, seed)
    result: list[tuple[Bundle, Evaluation]] = []
    while len(result) < evaluations:
        batch = [judged(bundle) for bundle in made.ask(BATCH)]
        made.tell(batch)
        result += batch
    return result


@pytest.mark.full
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_six_parameters_are_better_than_the_defaults_within_fifty_evaluations(sampler: Sampler) -> None:
    result = searched(sampler, 1)
    default = result[0][1].fitness["primary"]
    assert max(one.fitness["primary"] for _, one in result) > default / 3  # a third of the default's loss


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_templates_own_numbers_come_first_and_the_same_seed_gives_the_same(sampler: Sampler) -> None:
    result = searched(sampler, 2, 16)
    assert result[0][0].mutations == () and result[0][0].policies["routing"]["load_offset"] == 1.0
    assert result == searched(sampler, 2, 16)
    assert [one.id for one, _ in result] != [one.id for one, _ in searched(sampler, 3, 16)]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_candidate_is_within_its_bounds(sampler: Sampler) -> None:
    for bundle, _ in searched(sampler, 4, 16):
        bundle.check()


def test_a_catalogue_policy_has_its_bounded_parameters_searched() -> None:
    result = dimensions(made("prefix-overlap"), ("routing",))
    assert [one.keys for one in result] == [("cache_weight",), ("max_load",), ("block_tokens",), ("lru_blocks",)]
    assert [one.whole for one in result] == [False, False, True, True]


def test_code_has_its_declared_parameters_searched() -> None:
    bundle = made({"name": "code", "source": CODE})
    (one,) = dimensions(bundle, ("routing",))
    assert (one.default, one.low, one.high) == (1.0, 0.0, 5.0)
    assert with_values(bundle, {one: 2.5}, "x", 1).policies["routing"]["parameters"] == {"W": 2.5}


def test_weighted_has_the_weights_of_its_scorers_searched_by_their_ratios() -> None:
    bundle = made({"name": "weighted", "scorers": "prefix-affinity:3,load-balance:1"})
    result = dimensions(bundle, ("routing",))
    assert [(one.keys[1], one.default, one.log) for one in result] == [
        ("prefix-affinity", 3.0, True),
        ("load-balance", 1.0, True),
    ]
    changed = with_values(bundle, {result[0]: 5.0, result[1]: 0.25}, "x", 1)
    assert changed.policies["routing"]["scorers"] == {"prefix-affinity": 5.0, "load-balance": 0.25}
    assert changed.mutations == ("prefix-affinity 3 -> 5", "load-balance 1 -> 0.25")
    changed.check()


def test_several_stages_of_a_bundle_are_searched_together() -> None:
    bundle = Bundle.of("two", routing="prefix-overlap", scaling={"name": "code", "source": SCALING})
    assert {one.stage for one in dimensions(bundle, ("routing", "scaling"))} == {"routing", "scaling"}


SCALING = "TARGET = parameter(4, 1, 16)\n\n\ndef scale(pool):\n    return pool.inflight / TARGET\n"


def test_a_template_without_numbers_is_told_so() -> None:
    with pytest.raises(HeadwayError, match="least-loaded has no numbers to search"):
        Plan(template="least-loaded").searcher(suite())


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        (Plan(stages=("routes",)), "stages: there is no stage"),
        (Plan(engine="gp", stages=("scheduler",)), "genetic programming supports routing, decider or estimator"),
        (Plan(batch=1), "batch: expected 2"),
        (Plan(template="no-such-policy"), "no routing policy is called"),
    ],
)
def test_what_is_wrong_with_a_plan_is_told(plan: Plan, why: str) -> None:
    with pytest.raises(HeadwayError, match=why):
        plan.searcher(suite())


@pytest.mark.parametrize(("sampler", "missing"), [("tpe", "optuna"), ("cmaes", "cmaes")])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    sampler: Sampler, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(HeadwayError, match=rf"{missing} is not installed\. Run: pip install 'headway\[evolve\]'"):
        Plan(sampler=sampler).searcher(suite())
    Plan(engine="gp").searcher(suite())  # needs no package


def test_a_number_that_is_given_as_a_whole_one_is_looked_for_between_whole_ones_as_well() -> None:
    bundle = made({"name": "prefill-cost-routing", "load_exponent": 2})
    result = {one.keys[-1]: one for one in dimensions(bundle, ("routing",))}
    assert result["load_exponent"].default == 2 and not result["load_exponent"].whole
    counted = {one.keys[-1]: one.whole for one in dimensions(made("unified"), ("routing",))}
    assert counted["lru_blocks"] and not counted["overload_factor"]


def test_a_belief_that_fits_the_instance_is_searched_as_a_number_and_stays_as_it_is_at_first() -> None:
    for spec in ("lmetric", {"name": "lmetric", "lru_blocks": "auto"}):
        bundle = made(spec)
        (size,) = [each for each in dimensions(bundle, ("routing",)) if each.keys == ("lru_blocks",)]
        assert (size.default, type(size.default), size.low) == (976, int, 1)
        assert with_values(bundle, {size: 976}, "x", 1).policies["routing"] == spec
        assert with_values(bundle, {size: 5000}, "x", 1).policies["routing"]["lru_blocks"] == 5000


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "flow"])  # flow has no policy with numbers
def test_every_stage_has_a_policy_whose_numbers_are_searched(stage: str) -> None:
    spaces = {}
    for entry in registry.entries():
        if entry.stage == stage:
            with contextlib.suppress(HeadwayError):
                spaces[entry.name] = dimensions(Bundle.of(**{stage: entry.name}), (stage,))
    name, space = max(spaces.items(), key=lambda item: len(item[1]))
    bundle = template_of(name, suite(), stage)
    for candidate in Numeric(suite(), bundle, space, "tpe", 1, 2).ask(2):
        candidate.check()
        assert registry.split(candidate.policies[stage], stage)[0] == name
