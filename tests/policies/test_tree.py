"""Decision trees: what they compile to, that they decide as they read, and where a mistake in one is told."""

from __future__ import annotations

import ast
from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.code import check
from headway.policies.tree import LONGEST, tree_source

LOAD: dict[str, Any] = {
    "workload": {"requests": 60, "rate": "40/s", "prompt_tokens": 200, "output_tokens": 40},
    "cluster": {"instances": 3, "latency": {"model": "fixed"}},
}
TREE = {
    "parameters": {"cache": [0.7, 0, 1], "busy": {"default": 8, "low": 0, "high": 64}},
    "let": {"warm": "ratio(cached_tokens(instance), request.prompt_tokens)", "free": "1 / (1 + instance.inflight)"},
    "if": {"all": ["instance.kv_utilization > 0.9", {"not": "warm > 0.5"}]},
    "then": -1,
    "else": {
        "rules": [
            {"if": {"any": ["instance.inflight > busy", 'request.slo_class == "batch"']}, "then": "free"},
            {"if": "warm > 0.9", "then": {"value": 2}},
            {"if": "warm > 0.1", "then": "cache * warm + free", "else": "free"},
        ]
    },
}
SOURCE = """cache = parameter(0.7, 0, 1)
busy = parameter(8, 0, 64)


def score(request, instance, cluster):
    warm = ratio(cached_tokens(instance), request.prompt_tokens)
    free = 1 / (1 + instance.inflight)
    if (instance.kv_utilization > 0.9) and (not (warm > 0.5)):
        return -1
    if (instance.inflight > busy) or (request.slo_class == 'batch'):
        return free
    if warm > 0.9:
        return 2
    if warm > 0.1:
        return cache * warm + free
    return free
"""


def test_a_tree_becomes_the_source_that_one_would_write() -> None:
    assert tree_source(TREE, "routing").text == SOURCE
    assert check(SOURCE, "routing") == []


def test_a_tree_decides_as_its_source_does() -> None:
    tree = headway.simulate(LOAD, routing={"name": "tree", "tree": TREE, "parameters": {"busy": 3}})
    code = headway.simulate(LOAD, routing={"name": "code", "source": SOURCE, "parameters": {"busy": 3}})
    assert tree.requests == code.requests
    assert len(set(tree.requests["instance"])) == 3


@pytest.mark.parametrize(
    ("stage", "tree", "wanted"),
    [
        ("admission", {"if": "cluster.now < 1", "then": "reject", "else": "admit"}, "    return False\n"),
        ("admission", {"if": "cluster.now < 1", "then": 0.5, "else": True}, "    return 0.5\n"),
        ("priority", "-request.prompt_tokens", "    return -request.prompt_tokens\n"),
        ("scheduler", {"value": "ticket.enqueued"}, "    return ticket.enqueued\n"),
        (
            "scaling",
            {"if": "pool.pending > 3", "then": "pool.replicas + 1", "else": "stay"},
            "    return pool.replicas\n",
        ),
    ],
)
def test_every_stage_has_trees(stage: str, tree: Any, wanted: str) -> None:
    source = tree_source(tree, stage).text
    assert wanted in source
    assert check(source, stage) == []
    assert registry.build(stage, {"name": "tree", "tree": tree}, "x").entry.name == "tree"


def test_an_admission_tree_admits_and_turns_away() -> None:
    tree = {"if": "request.arrival < 0.5", "then": "reject", "else": "admit"}
    found = headway.simulate(LOAD, admission={"name": "tree", "tree": tree}).requests
    early = [at < 500_000_000_000 for at in found["arrival_ps"]]
    assert [outcome == "rejected" for outcome in found["outcome"]] == early
    assert 0 < sum(early) < 60


def test_what_a_tree_reads_is_declared() -> None:
    entry = registry.build("routing", {"name": "tree", "tree": TREE}, "x").entry
    assert entry.exact == ("prefix_index", "inflight")
    assert entry.reported == ("kv_used",)


MISTAKES: list[tuple[Any, str]] = [
    ({"if": "True", "then": 1}, "tree: a branch has if, then and else; 'else' is missing."),
    ({"rules": [1], "else": 2}, "tree.else: there is no such key here. It cannot be used together with 'rules'."),
    ({"if": "True", "then": 1, "else": {"thn": 1}}, "tree.else.thn: there is no such key here. Did you mean 'then'?"),
    ({"if": "1 +", "then": 1, "else": 2}, "tree.if: '1 +' is not an expression (invalid syntax)."),
    ({"if": "x = 1", "then": 1, "else": 2}, "tree.if: 'x = 1' is not an expression"),
    ("1\n    import os", "tree: '1\\n    import os' is not an expression"),
    ("1; 2", "tree: '1; 2' is not an expression"),
    ("x" * (LONGEST + 1), "tree: an expression may have at most 2,000 characters, got 2,001."),
    ("(" * 900 + "1" + ")" * 900, "is not an expression"),
    (float("nan"), "tree: expected a finite number, got nan."),
    (None, "tree: give the tree as 'tree'"),
    ([1], "tree: expected a number, an expression or a branch, got [1]."),
    ({"if": {"some": ["True"]}, "then": 1, "else": 2}, "tree.if: expected an expression, or all, any or not"),
    ({"if": {"all": []}, "then": 1, "else": 2}, "tree.if.all: expected a list of conditions, got []."),
    ({"rules": [{"if": "True", "then": 1}]}, "tree.rules[0]: the last rule must not be conditional"),
    ({"rules": [1, 2]}, "tree.rules[0]: every rule except the last must have the keys if and then only"),
    ({"rules": []}, "tree.rules: expected a list of {if, then} that ends with a tree, got []."),
    ({"parameters": {"a": [1, 2]}, "value": "a"}, "tree.parameters.a: expected [default, low, high], got [1, 2]."),
    ({"parameters": {"a b": [1, 0, 2]}, "value": 1}, "tree.parameters: 'a b' is not a name"),
    ({"let": [1], "value": 1}, "tree.let: expected a mapping of names to an expression, got [1]."),
    ({"parameters": {"a": [3, 0, 2]}, "value": "a"}, "tree.parameters.a: a: a parameter's default must be between"),
    ({"if": "instance.infligt > 2", "then": 1, "else": 2}, "tree.if: .infligt: an instance has no such field"),
    ({"if": "True", "then": 1, "else": {"value": "open(1)"}}, "tree.else.value: open: there is no such function"),
    ({"let": {"warm": "lambda: 1"}, "value": "warm"}, "tree.let.warm: lambda: a lambda may only be the key="),
]


@pytest.mark.parametrize(("tree", "message"), MISTAKES, ids=[message[:40] for _, message in MISTAKES])
def test_a_mistake_is_told_with_its_place_in_the_tree(tree: Any, message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        registry.build("routing", {"name": "tree", "tree": tree}, "policies.routing")
    assert str(caught.value).startswith("policies.routing: ")
    assert message in str(caught.value)


def test_a_tree_that_fails_in_a_run_tells_its_place() -> None:
    tree = {"if": "instance.index > 1", "then": "1 / (instance.inflight - instance.inflight)", "else": 0}
    with pytest.raises(HeadwayError, match=r"policies\.routing: tree\.then: division by zero.*at request 0"):
        headway.simulate(LOAD, routing={"name": "tree", "tree": tree})


def test_a_tree_that_is_too_deep_is_refused() -> None:
    tree: Any = 1
    for _ in range(60):
        tree = {"if": "True", "then": tree, "else": 0}
    with pytest.raises(HeadwayError, match="a tree may have at most 30 nested branches"):
        tree_source(tree, "routing")


def test_every_line_has_its_place() -> None:
    made = tree_source(TREE, "routing")
    lines = made.text.splitlines()
    assert len(made.places) == len(lines)
    assert made.place(lines.index("    if warm > 0.9:") + 1) == "tree.else.rules[1].if"
    assert isinstance(ast.parse(made.text), ast.Module)
