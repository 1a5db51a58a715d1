"""`lru_blocks`: a number, or `auto` for as many blocks as each instance has."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.prefix_index import PrefixIndex
from headway.scenario.scenario import Policies, Scenario
from headway.types import Path
from headway.views.instance import InstanceView

KV_BLOCKS = (1000, 64, 1)
STAGES = ("routing", "scorer", "decider")
SIZED = [
    (stage, entry.name)
    for stage in STAGES
    for entry in registry.entries(stage)
    if not entry.blank and any(parameter.name == "lru_blocks" for parameter in entry.parameters)
]
OTHERS = [
    {"name": "code", "source": "def score(request, instance, cluster):\n    return cached_tokens(instance)\n"},
    {"name": "tree", "tree": "cached_tokens(instance)"},
]


def context(auto: bool = False, block_tokens: int = 16) -> Context:
    views = [InstanceView(place, f"i{place}", kv_blocks=blocks) for place, blocks in enumerate(KV_BLOCKS)]
    return Context(views, Random, None, block_tokens, auto=auto)  # type: ignore[arg-type]


def bound_index(stage: str, spec: Any, where: Context) -> PrefixIndex:
    registry.build(stage, spec, f"policies.{stage}").bind(where)
    (index,) = where.indexes
    return index


@pytest.mark.parametrize(("stage", "name"), SIZED)
def test_auto_gives_every_policy_an_index_as_large_as_each_instance(stage: str, name: str) -> None:
    index = bound_index(stage, {"name": name, "lru_blocks": "auto", "block_tokens": 32}, context())
    assert index.capacities == [500, 32, 1]  # half as many blocks of twice the size, and at least one


@pytest.mark.parametrize("spec", OTHERS)
def test_code_and_trees_have_the_same_key(spec: dict[str, Any]) -> None:
    assert bound_index("routing", {**spec, "lru_blocks": "auto"}, context()).capacities == list(KV_BLOCKS)
    assert bound_index("routing", spec, context()).capacities == [31_250] * 3
    assert bound_index("routing", spec, context(auto=True)).capacities == list(KV_BLOCKS)


def test_templates_follow_the_defaults() -> None:
    assert bound_index("routing", "prefill-cost-routing", context()).capacities == [31_250] * 3
    assert bound_index("routing", "prefill-cost-routing", context(auto=True)).capacities == list(KV_BLOCKS)


@pytest.mark.parametrize(("name", "usual"), [("prefix-overlap", 31_250), ("lmetric", 976)])
def test_the_defaults_decide_what_a_policy_leaves_open_and_only_that(name: str, usual: int) -> None:
    assert bound_index("routing", name, context()).capacities == [usual] * 3
    blocks = [max(1, 16 * each // (16 if usual == 31_250 else 512)) for each in KV_BLOCKS]
    assert bound_index("routing", name, context(auto=True)).capacities == blocks
    assert bound_index("routing", {"name": name, "lru_blocks": usual}, context(auto=True)).capacities == [usual] * 3


@pytest.mark.parametrize("auto", [False, True])
def test_resolved_copies_write_what_the_defaults_say(auto: bool) -> None:
    def sizes(routing: Any) -> Any:
        return Policies(routing=routing).resolved(auto)["routing"]

    assert sizes("lmetric")["lru_blocks"] == ("auto" if auto else 976)
    assert type(sizes("lmetric")["lru_blocks"]) is (str if auto else int)
    scorer = sizes({"name": "weighted", "scorers": "prefix-affinity:1"})["scorers"][0]
    assert scorer["lru_blocks"] == ("auto" if auto else 31_250)
    assert sizes({"name": "lmetric", "lru_blocks": 976})["lru_blocks"] == 976


def test_policies_with_equal_sizes_share_an_index_and_auto_is_a_size_of_its_own() -> None:
    shared = context()
    assert shared.prefix_index(16, "auto") is shared.prefix_index(16, "auto")
    assert shared.prefix_index(16, "auto") is not shared.prefix_index(16, 1000)
    assert len(shared.indexes) == 2


@pytest.mark.parametrize("wrong", ["all", 0, 1.5, None, True])
def test_any_other_size_is_an_error(wrong: Any) -> None:
    with pytest.raises(HeadwayError, match="capacity must be a whole number of at least 1 or 'auto'"):
        context().prefix_index(16, wrong)
    with pytest.raises(HeadwayError, match=r"lru_blocks: (expected a whole number or 'auto'|must lie between 1 and)"):
        registry.build("routing", {"name": "lmetric", "lru_blocks": wrong}, "policies.routing")


def test_an_instance_that_changes_its_size_changes_its_part_of_the_index() -> None:
    where = context()
    automatic, fixed = where.prefix_index(16, "auto"), where.prefix_index(16, 500)
    for index in (automatic, fixed):
        index.touch(0, Path((1, 2), (160, 320)))
        index.touch(1, Path((1, 2), (160, 320)))
    where.instances[0].kv_blocks = 8
    where.fit(0)
    assert automatic.capacities == [8, 64, 1] and fixed.capacities == [500] * 3
    assert automatic.matches(Path((1, 2), (160, 320))) == [8, 20, 0]  # the tail goes first
    assert fixed.matches(Path((1, 2), (160, 320))) == [20, 20, 0]
    where.instances[0].kv_blocks = 9
    where.fit(0)
    automatic.touch(0, Path((1, 2), (160, 320)))
    assert automatic.matches(Path((1, 2), (160, 320))) == [9, 20, 0]


SMALL = {
    "workload": {"rate": "40/s", "requests": 400, "kind": "chat"},
    "cluster": {
        "deployments": {
            "big": {"instances": 1, "kv": {"gpu_blocks": 4000}},
            "small": {"instances": 1, "kv": {"gpu_blocks": 300}},
        }
    },
}


def test_each_instance_of_a_mixed_cluster_has_its_own_size() -> None:
    routing = {
        "name": "weighted",
        "scorers": {"prefix-affinity": {"weight": 1, "lru_blocks": "auto"}, "queue-depth": 1},
    }
    scenario = Scenario.load({**SMALL, "policies": {"routing": routing}})
    assert scenario.resolved()["policies"]["routing"]["scorers"][0]["lru_blocks"] == "auto"
    summary = headway.simulate(scenario).summary()
    assert summary["policy_metrics"]["prefix_index_capacity"] == 4300.0
