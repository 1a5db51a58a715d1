"""Bundles: the policies of all five stages as one document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import headway
from headway.errors import HeadwayError
from headway.policies.bundle import STAGES, Bundle, complexity
from headway.policies.code import Program
from headway.policies.registry import DEFAULT_POLICIES
from headway.policies.tree import tree_source

SOURCE = "weight = parameter(2, 0, 9)\n\n\ndef key(ticket):\n    return weight * ticket.enqueued\n"
TREE = {"if": "request.prompt_tokens > 500", "then": "reject", "else": "admit"}
ALL = Bundle(
    "all forms",
    {
        "admission": {"name": "tree", "tree": TREE},
        "routing": {"name": "weighted_affinity_routing", "cache_affinity_weight": 0.9},
        "scheduler": {"name": "code", "source": SOURCE, "parameters": {"weight": 3}, "chunk_tokens": 256},
    },
    generation=3,
    parent="0123456789abcdef",
    mutations=("cache_affinity_weight 0.7 -> 0.9",),
)
LOAD: dict[str, Any] = {
    "workload": {
        "requests": 40,
        "rate": "40/s",
        "prompt_tokens": {"dist": "uniform", "min": 300, "max": 700},
        "output_tokens": 30,
    },
    "cluster": {"instances": 2, "latency": {"model": "fixed"}},
}


def test_a_bundle_is_written_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "best.yaml"
    ALL.write(file)
    found = Bundle.read(file)
    assert found == ALL == Bundle.read(ALL.document()) == Bundle.read(str(file))
    assert yaml.safe_load(file.read_text()) == ALL.document()
    assert "    source: |\n" in file.read_text()  # readable, not one long line


def test_all_five_stages_are_written_each_with_its_type() -> None:
    document = ALL.document()
    assert list(document) == ["format", "name", "generation", "parent", "mutations", "policies"]
    assert {stage: spec["type"] for stage, spec in document["policies"].items()} == {
        "admission": "tree",
        "priority": "parameters",
        "routing": "parameters",
        "scheduler": "code",
        "scaling": "parameters",
    }
    assert document["policies"]["routing"] == {
        "type": "parameters",
        "template": "weighted-affinity-routing",
        "parameters": {"cache_affinity_weight": 0.9},
    }


def test_a_stage_that_is_missing_has_its_default_policy() -> None:
    found = Bundle.of(routing="lmetric").policies
    assert list(found) == list(STAGES)
    assert found == {**{stage: DEFAULT_POLICIES[stage] for stage in STAGES}, "routing": "lmetric"}
    assert Bundle.read({"policies": {}}).policies == Bundle.of().policies


def test_the_id_stands_for_the_policies_alone() -> None:
    other = Bundle("another", ALL.policies, generation=9, parent=None)
    assert other.id == ALL.id and len(ALL.id) == 16 and int(ALL.id, 16) >= 0
    changed = Bundle("all forms", {**ALL.policies, "priority": "by-class"}, 3, ALL.parent, ALL.mutations)
    assert changed.id != ALL.id
    assert Bundle.of(routing="least_loaded").id == Bundle.of(routing={"name": "least-loaded"}).id
    assert Bundle.of(routing="random").id != Bundle.of(scheduler="fcfs").id


def test_complexity_counts_nodes_and_parameters() -> None:
    nodes = Program(SOURCE, "scheduler").nodes
    assert complexity("scheduler", ALL.policies["scheduler"]) == nodes > 5
    tree = Program(tree_source(TREE, "admission").text, "admission").nodes
    assert complexity("routing", "weighted-affinity-routing") == 4
    assert ALL.complexity == nodes + tree + 4
    assert complexity("scheduler", {"name": "code", "source": "import os\nx y"}) == 4


def test_a_bundle_is_what_a_scenario_takes() -> None:
    given = headway.simulate(LOAD, **ALL.policies)
    within = headway.simulate({**LOAD, "policies": ALL.policies})
    assert given.requests == within.requests
    tokens = within.requests["prompt_tokens"]
    assert [outcome == "rejected" for outcome in within.requests["outcome"]] == [one > 500 for one in tokens]
    ALL.check()


def test_code_in_a_file_is_read_with_the_bundle(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_text(SOURCE)
    file = tmp_path / "b.yaml"
    for spec in ({"type": "code", "path": "rule.py"}, {"name": "code", "path": "rule.py"}):
        file.write_text(yaml.safe_dump({"format": 1, "policies": {"scheduler": spec}}))
        found = Bundle.read(file)
        assert found.policies["scheduler"] == {"name": "code", "source": SOURCE}
        assert found.name == "b"


MISTAKES: list[tuple[Any, str]] = [
    ([1], "bundle.yaml: a bundle is a mapping with 'format' and 'policies', got [1]."),
    ({"format": 2, "policies": {}}, "bundle.yaml: format: 2 is not supported. Use format 1."),
    ({"policies": {}}, "bundle.yaml: 'format' is missing; a bundle has 'format: 1' and 'policies'."),
    ({"format": 1}, "'policies' is missing;"),
    ({"format": 1, "policies": []}, "bundle.yaml: policies: expected a mapping of stages to policies, got []."),
    ({"format": 1, "policies": {}, "parents": 1}, "parents: there is no such key. Did you mean 'parent'?"),
    ({"format": 1, "policies": {}, "generation": "x"}, "generation: expected"),
    ({"format": 1, "policies": {"rooting": "lmetric"}}, "policies.rooting: there is no such stage."),
    ({"format": 1, "policies": {"routing": 3}}, "policies.routing: expected a name or a mapping with 'name', got 3."),
    ({"format": 1, "policies": {"routing": {"type": "wasm"}}}, "policies.routing.type: there is no type 'wasm'."),
    (
        {"format": 1, "policies": {"routing": {"type": "code"}}},
        "policies.routing: a policy of type code needs source or",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "code", "source": "x", "path": "y"}}},
        "a policy of type code needs source or path.",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "code", "path": "nowhere.py"}}},
        "policies.routing.path: nowhere.py: cannot be read",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "code", "path": "a" * 5000}}},
        "policies.routing.path: aaa",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "code", "path": "~nobody-of-that-name/rule.py"}}},
        "policies.routing.path: ~nobody-of-that-name/rule.py: cannot be read",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "tree", "tree": 1, "depth": 3}}},
        "policies.routing.depth: there is no such key.",
    ),
    (
        {"format": 1, "policies": {"routing": {"type": "parameters", "template": "lmetric", "parameters": [1]}}},
        "policies.routing.parameters: expected a mapping of names to values, got [1].",
    ),
]


@pytest.mark.parametrize(("document", "message"), MISTAKES, ids=[message[:50] for _, message in MISTAKES])
def test_a_mistake_is_told_with_its_place(document: Any, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bundle.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(HeadwayError) as caught:
        Bundle.read(file)
    assert str(caught.value).startswith(str(file))
    assert message in str(caught.value)


def test_check_tells_which_stage_is_wrong() -> None:
    with pytest.raises(HeadwayError, match=r"^x\.scheduler: code line 2: import: "):
        Bundle.of(scheduler={"name": "code", "source": "\nimport os\n"}).check("x")
    with pytest.raises(
        HeadwayError, match=r"^policies\.routing\.cash: 'weighted-affinity-routing' has no such parameter"
    ):
        Bundle.of(routing={"name": "weighted-affinity-routing", "cash": 1}).check()
