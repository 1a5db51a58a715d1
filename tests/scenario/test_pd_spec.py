"""`architecture: disaggregated` in a scenario: what it means, what it inherits, and what is told of mistakes."""

from __future__ import annotations

from typing import Any

import pytest

from headway.errors import HeadwayError
from headway.experiment.engines import engines
from headway.scenario.scenario import Scenario

APART = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 1}}


def load(**cluster: Any) -> Scenario:
    return Scenario.load({"workload": {"requests": 10, "rate": "10/s"}, "cluster": cluster})


def test_the_halves_inherit_what_they_do_not_give() -> None:
    prefill = {"instances": 2, "tp": 4, "max_batch_tokens": 8192}
    decode = {"instances": 1, "gpu": "h200", "kv": {"gpu_blocks": 1000}}
    kv = {"block_tokens": 32, "gpu_blocks": 500}
    scenario = load(**{**APART, "model": "llama-3.1-70b", "tp": 2, "kv": kv, "prefill": prefill, "decode": decode})
    found = engines(scenario.cluster)
    views = [engine.view for engine in found]
    assert [(view.id, view.role, view.pool) for view in views] == [
        ("prefill-0", "prefill", "default"),
        ("prefill-1", "prefill", "default"),
        ("decode-0", "decode", "default"),
    ]
    assert [engine.gpus for engine in found] == [4, 4, 2]
    assert [view.kv_blocks for view in views] == [500, 500, 1000]
    assert [view.max_batch_tokens for view in views] == [8192, 8192, 2048]
    assert {view.model for view in views} == {"llama-3.1-70b"}
    moves = found[0].transfer
    assert moves is not None and found[2].transfer is None
    assert (moves.spec.latency_ps, moves.spec.bandwidth) == (500_000_000, 50_000_000_000)
    assert (moves.token_bytes, moves.grain_tokens) == (80 * 8 * 128 * 2 * 2, 32)
    assert moves.first_token and not moves.spec.keep_prefill_copy


def test_null_takes_the_parts_of_a_split_cluster_away() -> None:
    whole = load(architecture="monolithic", instances=8, prefill=None, decode=None, transfer=None)
    assert not whole.cluster.disaggregated() and len(engines(whole.cluster)) == 8
    assert load(**APART, transfer=None).resolved() == load(**APART).resolved()


@pytest.mark.parametrize(("granularity", "tokens"), [("block", 16), ("chunk", 700), ("stream", 1)])
def test_the_granularity_is_in_tokens(granularity: str, tokens: int) -> None:
    prefill = {"instances": 1, "max_batch_tokens": 700}
    found = engines(load(**{**APART, "prefill": prefill}, transfer={"granularity": granularity}).cluster)
    assert found[0].transfer is not None and found[0].transfer.grain_tokens == tokens


def test_deployments_may_be_split_beside_others() -> None:
    deployments = {"chat": {**APART, "instances": 3}, "plain": {"instances": 2, "serves": ["other"]}}
    found = [engine.view for engine in engines(load(deployments=deployments).cluster)]
    assert [(view.id, view.role, view.pool) for view in found] == [
        ("chat-prefill-0", "prefill", "chat"),
        ("chat-prefill-1", "prefill", "chat"),
        ("chat-decode-0", "decode", "chat"),
        ("plain-0", "both", "plain"),
        ("plain-1", "both", "plain"),
    ]


@pytest.mark.parametrize(
    "cluster",
    [
        APART,
        {
            **APART,
            "transfer": {"latency": "1ms", "bandwidth": "3GB/s", "granularity": "chunk", "first_token": "decode"},
        },
        {**APART, "instances": 3, "kv": {"block_tokens": 4, "tiers": {"cpu": {"blocks": 9}}}, "gpu": "h200"},
        {**APART, "adapters": {"slots": 2, "load_time": "5ms"}, "latency": {"model": "fixed"}},
        {
            "prefill": {"instances": 1},
            "decode": {"instances": 2},
            "deployments": {"a": {"architecture": "disaggregated"}},
        },
        {"deployments": {"a": {**APART, "model": "llama-3.1-70b", "tp": 4}, "b": {"model": "llama-3.1-70b", "tp": 4}}},
    ],
)
def test_the_resolved_scenario_is_the_same_one(cluster: dict[str, Any]) -> None:
    models = {"models": {"llama-3.1-70b": 1}} if "b" in cluster.get("deployments", {}) else {}
    scenario = Scenario.load({"workload": {"requests": 10, "rate": "10/s", **models}, "cluster": cluster})
    again = Scenario.load(scenario.resolved())
    assert again.resolved() == scenario.resolved()
    assert again.key() == scenario.key()
    assert engines(again.cluster)[0].view.kv_blocks == engines(scenario.cluster)[0].view.kv_blocks


def test_the_parts_of_a_pair_are_written_out() -> None:
    short = {"name": "pair", "prefill": "weighted", "decider": "prompt-threshold"}
    base = {"workload": {"requests": 1, "rate": "1/s"}, "cluster": APART}
    scenario = Scenario.load({**base, "policies": {"routing": short}})
    routing = scenario.resolved()["policies"]["routing"]
    assert routing["decider"] == {"name": "prompt-threshold", "colocate_below_tokens": 256}
    assert routing["prefill"]["scorers"][0]["name"] == "prefix-affinity"
    assert routing["decode"] == {"name": "least-kv"}
    assert Scenario.load(scenario.resolved()).key() == scenario.key()
    assert Scenario.load({**base, "policies": {"routing": routing}}).key() == scenario.key()


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({**APART, "instances": 8}, "cluster.instances: is 8, but prefill and decode have 2 + 1 = 3; make them equal"),
        ({"deployments": {"a": {**APART, "instances": 4}}}, "cluster.deployments.a.instances: is 4, but prefill and"),
        ({**APART, "decode": None}, "cluster.decode: is missing; describe these instances"),
        ({**APART, "decode": {"gpu": "h100"}}, "cluster.decode: 'instances' is missing."),
        ({**APART, "decode": 3}, "cluster.decode: expected a mapping, got 3."),
        ({**APART, "prefill": {"instances": 0}}, "cluster.prefill.instances: expected a whole number of at least 1"),
        ({**APART, "prefill": {"instances": 1, "model": "x"}}, "cluster.prefill.model: there is no such key."),
        ({**APART, "prefill": {"instances": 1, "gpu": "x"}}, "cluster.prefill.gpu: no GPU in the table is called 'x'"),
        (
            {**APART, "prefill": {"instances": 1, "kv": {"block_tokens": 4}}},
            "cluster.prefill.kv.block_tokens: must be equal in the whole cluster; set it as cluster.kv.block_tokens.",
        ),
        ({"prefill": {"instances": 2}}, "cluster.prefill: is valid only with 'architecture: disaggregated'"),
        ({"transfer": {}}, "cluster.transfer: is valid only with 'architecture: disaggregated'"),
        ({"architecture": "split"}, "cluster.architecture: expected 'monolithic' or 'disaggregated', got 'split'."),
        ({**APART, "transfer": {"latency": "5"}}, "cluster.transfer.latency: '5' is not a duration"),
        ({**APART, "transfer": {"granularity": "page"}}, "cluster.transfer.granularity: expected 'block' or 'chunk'"),
        ({**APART, "transfer": {"bandwith": "5GB/s"}}, "cluster.transfer.bandwith: there is no such key."),
        ({"deployments": {"a": APART, "a-decode": {}}}, "cluster.deployments.a-decode: the decode instances of the"),
        (
            {
                **APART,
                "kv": {"tiers": {"storage": {"blocks": 9, "shared": True}}},
                "decode": {"instances": 1, "kv": {"tiers": {"storage": {"blocks": 8, "shared": True}}}},
            },
            "cluster.decode.kv.tiers.storage: prefill and decode share this store",
        ),
        (
            {
                **APART,
                "kv": {"tiers": {"storage": {"blocks": 9, "shared": True}}},
                "decode": {"instances": 1, "kv": {"eviction": "lfu"}},
            },
            "cluster.decode.kv.eviction: prefill and decode share the storage tier",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(cluster: dict[str, Any], told: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        load(**cluster)
    assert str(caught.value).startswith(told)
