"""Rules as typed trees: simplified when built, always runnable, and bred without type errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.config.documents import presets
from headway.evolve.breeding import DEEPEST, LARGEST, Breeder, fits
from headway.evolve.expression import (
    BRANCH,
    CONDITION,
    FEATURES,
    NUMBER,
    OPERATORS,
    TRUTH,
    Node,
    call,
    constant,
    feature,
    leaves_of,
    walk,
)
from headway.evolve.known_rules import RULES
from headway.evolve.rule_text import source_of, text_of
from headway.evolve.situations import decisions, situations
from headway.policies.code import Program, check
from headway.streams import stream

SEEDS = st.integers(0, 2**32)
X, Y, Q = feature("inflight"), feature("kv"), feature("queued")
LESS = call("less", X, Y)


def drawn(seed: int, branching: float = 0.3) -> Breeder:
    return Breeder(stream(seed, "test"), branching)


def typed(rule: Node) -> bool:
    """Return whether every operator has arguments of the right types, and the tree is simplified."""
    return all(
        node.name != TRUTH and tuple(one.gives for one in node.arguments) == OPERATORS[node.name].takes
        for _, node in walk(rule)
        if node.arguments or node.name == TRUTH
    )


def program(rule: Node) -> Program:
    source = source_of(rule)
    assert check(source, "routing") == [], source
    return Program(source, "routing")


@pytest.mark.parametrize("name", RULES["routing"])
def test_every_rule_that_a_search_starts_from_runs(name: str) -> None:
    result = decisions(program(RULES["routing"][name]))
    assert result is not None and any(result)


@pytest.mark.parametrize("name", ["lmetric", "lmetric-plus-one", "least-loaded"])
def test_known_rules_decide_as_the_built_in_policies_that_they_are_called_after(name: str) -> None:
    cookbook = presets("cookbook", ".py")
    assert decisions(program(RULES["routing"][f"as {name}"])) == decisions(Program(cookbook[name], "routing"))


@given(SEEDS, st.sampled_from([0.0, 0.3, 0.8]))
@draws(25)
def test_every_rule_that_is_grown_compiles_and_decides(seed: int, branching: float) -> None:
    rule = drawn(seed, branching).grow(NUMBER, 6)
    assert typed(rule)
    result = decisions(program(rule))
    assert result is not None and len(result) == len(situations())


@pytest.mark.full
@given(SEEDS)
@draws(12)
def test_crossing_and_mutation_keep_types_and_limits_and_give_rules_that_run(seed: int) -> None:
    breeder = drawn(seed)
    known = list(RULES["routing"].values())
    rule, other = breeder.draw.choice(known), breeder.draw.choice(known)
    for _ in range(4):
        crossed = breeder.cross(rule, other)
        mutated, _ = breeder.mutate(crossed)
        for one in (crossed, mutated):
            assert typed(one) and fits(one) and one.size <= LARGEST and one.depth <= DEEPEST
            assert decisions(program(one)) is not None
        rule, other = mutated, rule


@given(SEEDS)
@draws(30)
def test_a_condition_is_never_put_where_a_number_belongs(seed: int) -> None:
    breeder = drawn(seed, 0.9)
    condition = breeder.grow(CONDITION, 4)
    assert condition.gives == CONDITION
    with pytest.raises(AssertionError):
        call("add", condition, X)


@pytest.mark.parametrize(
    ("made", "simple"),
    [
        (call("add", constant(0), X), X),
        (call("multiply", X, constant(1)), X),
        (call("multiply", X, constant(0)), constant(0)),
        (call("multiply", constant(2), call("multiply", X, constant(3))), call("multiply", constant(6), X)),
        (call("add", call("add", X, constant(1)), constant(2)), call("add", constant(3), X)),
        (call("subtract", X, X), constant(0)),
        (call("subtract", X, constant(2)), call("add", constant(-2), X)),
        (call("add", X, call("negate", Y)), call("subtract", X, Y)),
        (call("negate", call("negate", X)), X),
        (call("negate", call("subtract", X, Y)), call("subtract", Y, X)),
        (call("ratio", X, constant(4)), call("multiply", constant(0.25), X)),
        (call("ratio", X, constant(0)), constant(0)),
        (call("min", X, X), X),
        (call("root", constant(-4)), constant(2)),
        (call("add", X, Y), call("add", Y, X)),
        (call(BRANCH, call("less", constant(1), constant(2)), X, Y), X),
        (call(BRANCH, call("less", X, X), X, Y), Y),
        (call(BRANCH, call("not", call("less", X, Y)), X, Y), call(BRANCH, call("less", X, Y), Y, X)),
        (call(BRANCH, call("and", call("less", X, Y), call("less", X, X)), X, Y), Y),
        (call(BRANCH, call("or", LESS, call("less", X, X)), X, Y), call(BRANCH, LESS, X, Y)),
    ],
)
def test_what_changes_nothing_is_left_out(made: Node, simple: Node) -> None:
    assert made == simple


NUMBERS = st.recursive(
    st.sampled_from([X, Y, Q, constant(1), constant(2), constant(-1), constant(0)]),
    lambda inner: st.one_of(
        st.builds(
            lambda name, a, b: Node(name, (a, b)),
            st.sampled_from(["add", "subtract", "multiply", "min", "max"]),
            inner,
            inner,
        ),
        st.builds(lambda a: Node("negate", (a,)), inner),
        st.builds(lambda a, b, c, d: Node(BRANCH, (Node("less", (a, b)), c, d)), inner, inner, inner, inner),
    ),
    max_leaves=7,
)


def value(node: Node, known: dict[str, float]) -> float:
    if node.name in OPERATORS:
        return OPERATORS[node.name].value(*(value(one, known) for one in node.arguments))
    return known.get(node.name, node.value)


def simplified(node: Node) -> Node:
    return call(node.name, *map(simplified, node.arguments)) if node.arguments else node


@given(NUMBERS, st.tuples(*[st.integers(-5, 5)] * 3))
@draws(60)
def test_a_simplified_rule_is_worth_the_same_and_no_longer(rule: Node, values: tuple[int, int, int]) -> None:
    known = dict(zip((X.name, Y.name, Q.name), map(float, values), strict=True))
    simple = simplified(rule)
    assert value(simple, known) == value(rule, known)
    assert simple.size <= rule.size + sum(node.name == "subtract" for _, node in walk(rule))
    assert simplified(simple) == simple


def test_constants_have_three_digits_and_are_always_finite() -> None:
    assert constant(3.14159).value == 3.14
    assert constant(float("inf")).value == constant(float("nan")).value == constant(1e300).value == 0.0


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (call("multiply", call("add", X, Q), Q), "(instance.inflight + instance.queued) * instance.queued"),
        (call("subtract", X, call("subtract", Q, X)), "2.0 * instance.inflight - instance.queued"),
        (call("add", X, call("multiply", constant(0.5), X)), "1.5 * instance.inflight"),
        (call("negate", call("add", X, Q)), "-instance.inflight - instance.queued"),
        (call("subtract", constant(3), X), "3.0 - instance.inflight"),
        (call("add", X, call("multiply", constant(-2), Y)), "instance.inflight - 2.0 * instance.kv_utilization"),
        (call("add", X, constant(-2)), "instance.inflight - 2.0"),
        (call("multiply", constant(-2), X), "-2.0 * instance.inflight"),
        (call("negate", call("multiply", X, Y)), "-(instance.inflight * instance.kv_utilization)"),
    ],
)
def test_a_rule_is_written_with_no_more_parentheses_than_it_needs(rule: Node, text: str) -> None:
    assert text_of(rule) == text


def test_branches_at_the_top_are_written_as_a_tree_of_decisions() -> None:
    rule = call(BRANCH, call("less", X, constant(4)), feature("cached"), call("negate", X))
    assert source_of(rule) == (
        "def score(request, instance, cluster):\n"
        "    cached = ratio(cached_tokens(instance), request.prompt_tokens)\n"
        "    if instance.inflight < 4.0:\n"
        "        return cached\n"
        "    return -instance.inflight\n"
    )


@pytest.mark.parametrize("name", leaves_of("routing"))
def test_every_feature_can_stand_alone_and_what_candidates_share_is_worked_out_once(name: str) -> None:
    made = program(call("subtract", feature(name), X))
    assert decisions(made) is not None
    looks = FEATURES[name].shared or bool(FEATURES[name].needs)
    assert made.entrance == ("route" if looks else "score")


@given(SEEDS)
@draws(30)
def test_a_long_rule_is_broken_into_lines_that_can_be_read(seed: int) -> None:
    rule = drawn(seed, 0.2).grow(NUMBER, 7)
    assert all(len(line.lstrip()) <= 80 for line in source_of(rule).splitlines())
