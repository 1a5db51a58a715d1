"""The live router's score over whole prompts, among the instances that are not saturated."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import bound, choice, choose, prompt, states, views

import headway
from conftest import TRACES
from headway import hashing
from headway.errors import HeadwayError
from headway.types import Path, Request
from headway.views.cluster import ClusterView

WEIGHTS = {"kv": 0.55, "load": 0.25, "power": 0.10, "capacity": 0.10}
HIGH = {"kv": 1.0, "load": 0.0, "power": 2.0, "capacity": 0.5}


def expected(
    instances: Any, request: Request, hits: list[int], weights: Any, slack: float, each: int, limit: Any
) -> int:
    """The rule as its docstring says it, with no thought for speed."""
    blocks = request.prompt_tokens // 16
    work = {
        view.index: view.pending_prefill_tokens + request.prompt_tokens - 16 * hits[view.index] + each * view.inflight
        for view in instances
    }
    left = [view for view in instances if work[view.index] <= min(work.values()) + slack * request.prompt_tokens]
    peak = max(view.watts for view in instances) or 1.0
    scores = {}
    for view in left:
        overlap = hits[view.index] / blocks if blocks else 0.0
        util = max(view.inflight / (limit or view.max_batch_size), view.busy)
        terms = {"kv": overlap, "load": 1.0 - util, "power": 1.0 - view.watts / peak, "capacity": view.capacity}
        scores[view.index] = sum(weights[name] * term for name, term in terms.items())
    band = [view for view in left if scores[view.index] >= max(scores.values()) - 0.01 - 1e-12]
    key = request.path.keys[0]
    return min(band, key=lambda view: (work[view.index], -hashing.stable(view.id, key), view.index)).index


@given(
    states(16),
    st.sampled_from([WEIGHTS, HIGH]),
    st.sampled_from([0.0, 0.5, 10.0]),
    st.sampled_from([0, 16, 256]),
    st.sampled_from([None, 2]),
)
def test_it_is_its_formula(state, weights, slack, each, limit):
    instances, request, hits = state
    settings = {"slack": slack, "request_tokens": each, "max_concurrent": limit}
    chosen = choose("kv-aware-spill", instances, request, hits, **weights, **settings)
    assert chosen == expected(instances, request, hits, weights, slack, each, limit)


def test_the_whole_prompt_counts_and_not_its_first_tokens_alone():
    instances = views(2, inflight=[2, 0])
    assert choose("kv-aware-spill", instances, prompt(1600), [100, 4]) == 0
    assert choose("kv-aware-spill", views(2), prompt(1600), [4, 100]) == 1


def test_a_request_spills_over_when_the_wait_is_longer_than_what_the_cache_saves():
    # 1,600 tokens, 1,504 of them cached on the first; half a prompt of slack: 1,504 + 800 = nine requests of 256.
    instances = views(2, inflight=[9, 0])
    policy = bound("kv-aware-spill", instances, [94, 0])
    assert choice(policy, instances, prompt(1600)) == 0
    instances[0].pending_prefill_tokens = 1
    route = policy.route(prompt(1600), ClusterView(instances))
    assert (route.target, route.reason, route.cached_tokens) == ("i1", "spilled over", 0)
    assert policy.metrics() == {"kv_aware_spilled": 1}


def test_load_has_no_upper_limit():
    instances = views(3, inflight=[900, 700, 800], busy=[1.0, 1.0, 1.0])
    assert choose("kv-aware-spill", instances, prompt(100), [0, 0, 0]) == 1


def test_low_power_and_capacity_decide_among_instances_that_are_not_saturated():
    assert choose("kv-aware-spill", views(2, watts=[700.0, 100.0]), prompt(1000)) == 1
    assert choose("kv-aware-spill", views(2, capacity=[0.5, 1.0]), prompt(1000)) == 1
    assert choose("kv-aware-spill", views(2, capacity=[0.5, 1.0], inflight=[0, 9]), prompt(1000)) == 0


def test_cold_prompts_spread_over_idle_instances():
    instances = views(4)
    policy = bound("kv-aware-spill", instances)
    spread = Counter(choice(policy, instances, prompt(200, number)) for number in range(400))
    assert all(70 < spread[index] < 130 for index in range(4))


def test_a_prompt_of_no_tokens_still_goes_somewhere():
    assert choose("kv-aware-spill", views(3), Request(0, 0, 0, Path((), ()))) in (0, 1, 2)


def test_the_scorecard_shows_the_saturated_instances_and_each_term():
    instances = views(3, inflight=[20, 0, 1], watts=[500.0, 250.0, 500.0])
    cluster = ClusterView(instances)
    cluster.explain = True
    card = bound("kv-aware-spill", instances, [4, 0, 3]).route(prompt(64), cluster).scorecard
    assert card.removed == {"saturated": ["i0", "i2"]} and card.left == ["i1"] and card.picked == "i1"
    assert card.scores == {"kv": [0.0], "load": [1.0], "power": [0.5], "capacity": [1.0]}
    assert card.totals == pytest.approx([0.25 + 0.05 + 0.10])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (dict.fromkeys(WEIGHTS, 0), r"policies\.routing: kv-aware-spill: at least one of the weights .* be positive"),
        ({"slack": -1}, r"policies\.routing\.slack: must lie between 0 and 1000"),
        ({"request_tokens": -1}, r"request_tokens: must lie between 0 and"),
        ({"prefix_tokens": 64}, r"prefix_tokens: 'kv-aware-spill' has no such parameter"),
    ],
)
def test_wrong_parameters_are_errors(parameters, message):
    with pytest.raises(HeadwayError, match=message):
        bound("kv-aware-spill", views(1), **parameters)


def run(workload: dict[str, Any], routing: str, **cluster: Any) -> tuple[float, float, float]:
    """Return the spread (most requests of an instance ÷ mean), TTFT p99 in ms, and the share of cached tokens."""
    cluster = {"instances": 4, "model": "llama-3.1-8b", "gpu": "l40s", **cluster}
    summary = headway.simulate({"seed": 7, "workload": workload, "cluster": cluster}, routing=routing).summary()
    counts = [each["requests"] for each in summary["instances"]]
    return (
        max(counts) * len(counts) / sum(counts),
        summary["latency"]["ttft"]["p99"],
        summary["cache"]["token_hit_ratio"],
    )


def test_one_prompt_that_all_requests_share_is_served_by_all_instances():
    """The docstring of `kv-aware` warns of this; the recommended policy has no such limit."""
    workload = {"requests": 300, "rate": "40/s", "prompt_tokens": 1040, "output_tokens": 50}
    workload["prefix"] = {"groups": 1, "tokens": 1024}
    assert run(workload, "kv-aware")[0] == 4
    spread, p99, hits = run(workload, "kv-aware-spill")
    plain = run(workload, "least-loaded")
    assert spread < 1.2 and p99 <= 1.02 * plain[1] and hits >= plain[2]


def test_it_keeps_most_of_the_reuse_of_shared_prefixes():
    workload = {"requests": 400, "rate": "25/s", "prompt_tokens": 1500, "output_tokens": 60}
    workload["prefix"] = {"groups": 30, "tokens": 1024}
    plain, sticky, spill = (run(workload, name) for name in ("least-loaded", "prefix-overlap", "kv-aware-spill"))
    assert spill[2] > 0.9 * sticky[2] > plain[2] + 0.05
    assert spill[1] < plain[1] and spill[0] < 1.3


@pytest.mark.full
@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout (../shared/traces)")
def test_a_conversation_trace_with_one_system_prompt_uses_all_instances():
    """The first 4,000 requests of Mooncake's conversations on eight H200, where `kv-aware` uses one instance."""
    trace = {"path": str(TRACES / "mooncake" / "conversation_trace.jsonl.gz"), "limit": 4000}
    cliff, plain, spill = (
        run({"trace": trace}, name, instances=8, gpu="h200") for name in ("kv-aware", "least-loaded", "kv-aware-spill")
    )
    assert cliff[0] == 8 and cliff[1] > 1_000_000
    assert spill[0] < 1.1 and spill[1] < plain[1] and spill[2] > 2 * plain[2]
