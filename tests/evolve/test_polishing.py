"""The constants of a rule are tuned by CMA-ES, without simulations."""

from __future__ import annotations

import math

import pytest

from headway.evolve.expression import CONSTANT, Node, call, constant, feature, walk
from headway.evolve.known_rules import RULES
from headway.evolve.polishing import Polisher, moved, slots
from headway.evolve.rule_text import text_of
from headway.streams import stream

WEIGHTED = call("multiply", constant(2), feature("uncached"))
SUM = call("negate", call("add", feature("pending"), call("add", WEIGHTED, feature("inflight"))))


def constants(rule: Node) -> dict[str, float]:
    """Return the weight of each feature in a sum of weighted features."""
    nodes = [node for _, node in walk(rule) if node.name == "multiply"]
    return {node.arguments[1].name: abs(node.arguments[0].value) for node in nodes}


@pytest.mark.parametrize("name", RULES["routing"])
def test_a_rule_is_unchanged_without_steps_and_keeps_its_features_with_steps(name: str) -> None:
    rule = RULES["routing"][name]
    assert moved(rule, [0.0] * slots(rule)) == rule
    other = moved(rule, [0.3] * slots(rule))
    names = [{node.name for _, node in walk(one)} - {CONSTANT, "multiply", "negate"} for one in (rule, other)]
    assert names[0] == names[1]


def test_every_term_of_a_sum_has_a_weight_and_no_sign_changes() -> None:
    assert slots(SUM) == 3
    changed = moved(SUM, [math.log(3), math.log(5), math.log(7)])
    assert text_of(changed) == "-3.0 * instance.inflight - 5.0 * pending - 14.0 * uncached"


def test_it_finds_constants_of_unlike_sizes() -> None:
    """The fitness is best where the weights have given ratios; a step of one generation is far from there."""
    wanted = {"pending": 1.0, "uncached": 9.0, "inflight": 0.15}

    def fitness(rule: Node) -> float:
        found = constants(rule) | {}
        values = [math.log(found.get(name, 1.0) / value) for name, value in wanted.items()]
        middle = sum(values) / len(values)
        return -sum((value - middle) ** 2 for value in values)

    polisher = Polisher(SUM)
    first = fitness(SUM)
    for generation in range(40):
        rules = polisher.ask(6, stream(generation, "test"))
        polisher.tell([fitness(rule) for rule in rules])
    assert first < -1 and fitness(moved(SUM, polisher.mean)) > -0.005


def test_a_rule_without_constants_has_nothing_to_tune() -> None:
    assert Polisher(feature("inflight")).done
