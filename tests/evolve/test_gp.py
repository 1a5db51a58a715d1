"""Genetic programming without simulations: the fitness is the agreement with a hidden rule."""

from __future__ import annotations

import pytest
from small import suite

import headway
from headway.evolve import Bundle, Evaluation
from headway.evolve.expression import call, constant, feature, leaves_of
from headway.evolve.gp import CAPACITY, PARSIMONY, Islands, Rule, survivors
from headway.evolve.known_rules import RULES
from headway.evolve.rule_text import source_of
from headway.evolve.situations import decisions
from headway.policies.code import plain_program

# No rule that a search starts from decides like this.
TARGET = call(
    "subtract",
    call("multiply", constant(3), feature("cached")),
    call("add", feature("backlog"), call("multiply", constant(0.2), feature("excess"))),
)


def decided(source: str) -> bytes:
    result = decisions(plain_program(source, "routing"))
    assert result is not None
    return result


WANTED = decided(source_of(TARGET))


def judged(bundle: Bundle) -> tuple[Bundle, Evaluation]:
    source = bundle.policies["routing"]["source"]
    agreed = sum(one == other for one, other in zip(decided(source), WANTED, strict=True)) / len(WANTED)
    fitness = {"primary": agreed, "complexity": float(bundle.complexity)}
    return bundle, Evaluation(True, None, fitness, [], "", bundle.id)


def searched(seed: int, generations: int, batch: int = 20) -> list[list[tuple[Bundle, Evaluation]]]:
    islands = Islands(suite(), seed)
    batches = []
    for _ in range(generations):
        batches.append([judged(bundle) for bundle in islands.ask(batch)])
        islands.tell(batches[-1])
    return batches


def primary(pair: tuple[Bundle, Evaluation]) -> float:
    return pair[1].fitness["primary"]


def test_the_first_batch_has_the_rules_that_are_known() -> None:
    first = Islands(suite(), 1).ask(20)
    assert [one.name for one in first[: len(RULES["routing"])]] == list(RULES["routing"])
    sources = [one.policies["routing"]["source"] for one in first[: len(RULES["routing"])]]
    assert sources == [source_of(one) for one in RULES["routing"].values()]


@pytest.mark.full
def test_rules_get_better_than_the_best_that_is_known() -> None:
    batches = searched(seed=3, generations=15)
    known = max(map(primary, batches[0][: len(RULES["routing"])]))
    best = max(primary(pair) for batch in batches for pair in batch)
    assert best > known + 0.03


@pytest.mark.full
def test_the_same_seed_breeds_the_same_rules_and_another_seed_others() -> None:
    one, same, other = searched(5, 3, 12), searched(5, 3, 12), searched(6, 3, 12)
    assert one == same
    assert [pair[0].id for pair in one[-1]] != [pair[0].id for pair in other[-1]]


@pytest.mark.full
def test_hardly_any_candidate_decides_as_one_before_it() -> None:
    sources = [pair[0].policies["routing"]["source"] for batch in searched(7, 4) for pair in batch]
    assert len(dict.fromkeys(sources)) == len(sources)
    assert len({decided(source) for source in sources}) > 0.95 * len(sources)


def test_children_name_their_parent_and_what_was_done() -> None:
    batches = searched(8, 3, 12)
    known = {pair[0].id for batch in batches for pair in batch}
    for bundle, _ in batches[-1]:
        assert bundle.generation == 2 and bundle.parent in known and bundle.mutations


def test_of_rules_that_fare_alike_the_shortest_survives() -> None:
    short, long = feature("inflight"), call("add", feature("inflight"), feature("kv"))
    assert survivors([Rule(long, "a", 0.5), Rule(short, "b", 0.5)]) == [Rule(short, "b", 0.5)]


def test_a_longer_rule_must_earn_its_nodes() -> None:
    short, long = feature("inflight"), call("add", feature("inflight"), feature("kv"))
    slightly = PARSIMONY * (long.size - short.size) / 2
    assert survivors([Rule(long, "a", 0.5 + slightly), Rule(short, "b", 0.5)])[0].tree == short
    assert survivors([Rule(long, "a", 0.5 + 3 * slightly), Rule(short, "b", 0.5)])[0].tree == long


@pytest.mark.full
def test_an_island_holds_so_many_rules_and_the_best_reach_the_others() -> None:
    islands = Islands(suite(), 9)
    for _ in range(9):
        islands.tell([judged(bundle) for bundle in islands.ask(12)])
        assert all(0 < len(one) <= CAPACITY for one in islands.populations)
    best = max((rule for one in islands.populations for rule in one), key=lambda rule: rule.worth)
    assert sum(best in one for one in islands.populations) >= 2  # the ninth generation has just exchanged


def test_other_stages_are_as_in_the_baseline() -> None:
    made = suite(baseline={"routing": "round-robin", "scheduler": "sjf"})
    assert {one.policies["scheduler"] for one in Islands(made, 1).ask(12)} == {"sjf"}


@pytest.mark.parametrize("stage", ["decider", "estimator"])
def test_the_stages_of_deciders_and_estimators_are_bred_too(stage: str) -> None:
    """Every rule is a program of its stage, which the stage's features and only these appear in; hardly any decides as
    another one."""
    islands = Islands(suite(), 2, stage)
    found = []
    for _ in range(3):
        bundles = islands.ask(12)
        sources = [bundle.policies[stage]["source"] for bundle in bundles]
        found += [decisions(plain_program(source, stage)) for source in sources]
        islands.tell(
            [
                (one, Evaluation(True, None, {"primary": len(s) / 999}, [], "", one.id))
                for one, s in zip(bundles, sources, strict=True)
            ]
        )
    assert None not in found and len(set(found)) > 18
    assert [bundle.name for bundle in Islands(suite(), 2, stage).ask(8)][: len(RULES[stage])] == list(RULES[stage])


@pytest.mark.parametrize("stage", ["decider", "estimator"])
@pytest.mark.parametrize("part", ["rules", "features"])
def test_what_they_start_from_runs_in_a_simulation(stage: str, part: str) -> None:
    trees = RULES[stage].values() if part == "rules" else [feature(name) for name in leaves_of(stage)]
    for tree in trees:
        policies = {"routing": "least-loaded", stage: {"name": "code", "source": source_of(tree, stage)}}
        halves = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}}
        result = headway.simulate(
            {
                "workload": {"requests": 8, "rate": "20/s", "prompt_tokens": 300, "output_tokens": 5},
                "cluster": {"model": "llama-3.1-8b", "gpu": "h200", **halves},
                "policies": policies,
            }
        )
        assert result.summary()["requests"]["completed"] == 8


def test_from_the_third_batch_on_a_part_tunes_the_constants_of_the_best_rule_so_far() -> None:
    batches = searched(4, 4)
    best: dict[str, float] = {}
    for number, batch in enumerate(batches):
        tuned = [pair for pair in batch if pair[0].mutations == ("constants tuned",)]
        assert len(tuned) == (0 if number < 2 else 6)
        assert all(bundle.parent in best for bundle, _ in tuned)
        best |= {bundle.id: evaluation.fitness["primary"] for bundle, evaluation in batch}


@pytest.mark.full
def test_tuned_constants_bring_a_rule_nearer_to_the_hidden_rule() -> None:
    tuned = [primary(pair) for batch in searched(3, 15) for pair in batch if pair[0].mutations == ("constants tuned",)]
    assert max(tuned[len(tuned) // 2 :]) > max(tuned[:6])
