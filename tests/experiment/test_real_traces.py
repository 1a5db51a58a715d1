"""The public traces, whole, under every routing policy; their reuse against a cache that is plain to see right; and
hits with a CPU tier against the capacity curve of `trace inspect`."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter, OrderedDict
from functools import cache
from itertools import accumulate, cycle
from pathlib import Path
from typing import Any

import pytest

import headway as api
import headway.policies  # (declares the policies)
from conftest import TRACES, Run
from headway.policies import registry

Json = dict[str, Any]
POLICIES = registry.names("routing")
FEW = ["round-robin", "weighted", "kv-aware", "unified"]
SMALL = [
    "mooncake/synthetic_trace.jsonl.gz",
    "mooncake/arxiv_mooncake_trace_first1000.jsonl",
    "azure-llm-2023/AzureLLMInferenceTrace_code.csv",
]
LARGE = ["mooncake/conversation_trace.jsonl.gz", "azure-llm-2023/AzureLLMInferenceTrace_conv.csv"]
MOONCAKE = [name for name in SMALL + LARGE if name.startswith("mooncake")]
pytestmark = pytest.mark.skipif(
    not TRACES.is_dir(), reason="the real traces are not beside this checkout (../shared/traces)"
)


@cache
def raw(name: str) -> list[tuple[int, int, list[int]]]:
    """Read the prompt tokens, output tokens and block ids of each row from the file."""
    content = (TRACES / name).read_bytes()
    text = (gzip.decompress(content) if name.endswith(".gz") else content).decode("utf-8-sig")
    if name.endswith(".csv"):
        lines = csv.DictReader(text.splitlines())
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"]), []) for row in lines]
    rows = [json.loads(line) for line in text.splitlines()]
    return [(row["input_length"], row["output_length"], row["hash_ids"]) for row in rows]


def run(name: str, routing: Any, limit: int | None = None, **cluster: Any) -> api.Result:
    return api.simulate(
        {
            "seed": 7,
            "workload": {"trace": {"path": str(TRACES / name), "limit": limit}},
            "cluster": {"instances": 8, "model": "llama-3.1-8b", "gpu": "h100", **cluster},
            "policies": {"routing": routing},
            "slo": {"ttft": "2s", "tpot": "50ms"},
        }
    )


def check_conservation(result: api.Result, name: str, most: int | None = None) -> None:
    """Check that every request ends once, with the lengths of the file, on an instance that counted it."""
    rows, columns, summary = raw(name)[:most], result.requests, result.summary()
    assert len(columns) == len(rows)
    assert columns["prompt_tokens"] == [prompt for prompt, _, _ in rows]
    counts = summary["requests"]
    assert counts["arrived"] == len(rows) == counts["completed"] + counts["rejected"]
    assert Counter(columns["outcome"]) == {kind: counts[kind] for kind in ("completed", "rejected") if counts[kind]}
    for row, (outcome, reason) in enumerate(zip(columns["outcome"], columns["reason"], strict=True)):
        if outcome == "completed":
            assert not reason
            assert columns["output_tokens"][row] == rows[row][1]
            times = [columns[key][row] for key in ("arrival_ps", "started_ps", "first_token_ps", "finished_ps")]
            assert times == sorted(times)
            assert 0 <= columns["cached_tokens"][row] < rows[row][0]
        else:
            assert "KV blocks" in reason
            assert columns["first_token_ps"][row] == -1
    instances = summary["instances"]
    routed = Counter(columns["instance"])
    assert [each["requests"] for each in instances] == [routed[index] for index in range(8)]
    for key in ("output_tokens", "cached_tokens", "preemptions"):
        assert sum(each[key] for each in instances) == sum(columns[key])
    computed = sum(each["prefill_tokens"] + each["cached_tokens"] for each in instances)
    process = zip(columns["outcome"], columns["prompt_tokens"], strict=True)
    prompts = sum(prompt for outcome, prompt in process if outcome == "completed")
    # After a preemption a prompt may find cached what another request has computed meanwhile: neither figure counts it.
    assert computed <= prompts if summary["preemptions"] else computed == prompts
    assert all(0 <= each["peak_kv_utilization"] <= 1 for each in instances)


def test_the_whole_catalogue_is_here() -> None:
    assert len(POLICIES) >= 20
    assert {"round-robin", "random", "least-loaded", "weighted", "lmetric", "kv-aware", "cost-escalation"} <= set(
        POLICIES
    )


@pytest.mark.parametrize(("name", "routing"), list(zip(cycle(SMALL + LARGE), POLICIES)))
def test_the_beginning_of_a_trace_runs_under_every_policy(name: str, routing: str) -> None:
    result = run(name, routing, limit=150)
    check_conservation(result, name, 150)
    assert result.summary()["requests"]["rejected"] == 0


def pairs(traces: list[str], few: list[str]) -> list[Any]:
    """All pairs of a trace and a policy. `make test-full` runs every policy on one of the traces, which take turns, and
    some policies on all of them: what a policy does to a request does not depend on the file that it comes from."""
    return [
        pytest.param(name, routing, marks=pytest.mark.full if name == own or routing in few else pytest.mark.long)
        for own, routing in zip(cycle(traces), POLICIES)
        for name in traces
    ]


@pytest.mark.parametrize(("name", "routing"), pairs(SMALL, FEW))
def test_a_trace_runs_whole_under_every_policy(name: str, routing: str) -> None:
    result = run(name, routing)
    check_conservation(result, name)
    assert result.summary()["requests"]["rejected"] == 0


@pytest.mark.full
@pytest.mark.parametrize("routing", FEW)
@pytest.mark.parametrize("name", LARGE)
def test_a_large_trace_runs_whole(name: str, routing: str) -> None:
    result = run(name, routing)
    check_conservation(result, name)
    assert result.summary()["requests"]["rejected"] == 0


@pytest.mark.long
@pytest.mark.parametrize("routing", [routing for routing in POLICIES if routing not in FEW])
@pytest.mark.parametrize("name", LARGE)
def test_a_large_trace_runs_whole_under_every_policy(name: str, routing: str) -> None:
    check_conservation(run(name, routing), name)


@pytest.mark.full
@pytest.mark.parametrize("routing", ["round-robin", "weighted", "least-kv"])
def test_what_can_never_fit_is_rejected_with_its_reason_and_all_else_is_served(routing: str) -> None:
    """4000 blocks are 64,000 tokens; the last token of an output needs no room."""
    name = "mooncake/synthetic_trace.jsonl.gz"
    result = run(name, routing, kv={"gpu_blocks": 4000})
    check_conservation(result, name)
    too_long = ["rejected" if prompt + output - 1 > 64_000 else "completed" for prompt, output, _ in raw(name)]
    assert too_long.count("rejected") > 10
    assert result.requests["outcome"] == too_long


@pytest.mark.full
@pytest.mark.parametrize("routing", ["weighted", "kv-aware"])
def test_leaping_and_walking_agree_on_a_real_trace_in_a_tight_cache(routing: str) -> None:
    name = "mooncake/arxiv_mooncake_trace_first1000.jsonl"
    scenario = {
        "workload": {"trace": {"path": str(TRACES / name), "limit": 400}},
        "cluster": {"instances": 2, "kv": {"gpu_blocks": 9000}},
        "policies": {"routing": routing},
    }
    runs = [api.simulate({**scenario, "leap": leap}) for leap in (True, False, "random-cuts")]
    assert runs[0].summary()["preemptions"] > 0
    assert sum(each["evicted_blocks"] for each in runs[0].summary()["instances"]) > 1000
    for other in runs[1:]:
        assert other.requests == runs[0].requests
        assert other.to_json() == runs[0].to_json()


# --- reuse in order of arrival -----------------------------------------------------------------------------------


def brute_force(prompts: list[list[int]], caches: int, capacity: int | None) -> float:
    """Count hits block by block: the leading blocks that are resident before the request. Then touch every block."""
    resident: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(caches)]
    hits = 0
    for number, blocks in enumerate(prompts):
        lru = resident[number % caches]
        for block in blocks:
            if block not in lru:
                break
            hits += 1
        for block in blocks:
            lru[block] = None
            lru.move_to_end(block)
            if capacity is not None and len(lru) > capacity:
                lru.popitem(last=False)
    return hits / sum(map(len, prompts))


@pytest.mark.full
@pytest.mark.parametrize("name", MOONCAKE)
def test_reuse_figures_are_right_to_four_digits(name: str, headway: Run) -> None:
    process = headway(
        "trace", "inspect", str(TRACES / name), "--capacity", "1000,10000,inf", "--instances", "1,8", "--json"
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)["reuse"]
    assert [(each["instances"], each["capacity"]) for each in result] == [
        (n, c) for n in (1, 8) for c in (1000, 10_000, None)
    ]
    prompts = [ids for _, _, ids in raw(name)]
    for each in result:
        expected = brute_force(prompts, each["instances"], each["capacity"])
        assert round(each["block_hit_ratio"], 4) == round(expected, 4), each
    ratios = {(each["instances"], each["capacity"]): each["block_hit_ratio"] for each in result}
    for instances in (1, 8):
        assert ratios[instances, 1000] <= ratios[instances, 10_000] <= ratios[instances, None]
    assert ratios[8, None] < ratios[1, None]


@pytest.mark.full
def test_no_cluster_saves_more_than_one_endless_cache_could() -> None:
    """In tokens: the leading blocks that any earlier prompt had."""
    name = "mooncake/synthetic_trace.jsonl.gz"
    values: set[int] = set()
    shared = total = 0
    for prompt, _, ids in raw(name):
        leading = 0
        while leading < len(ids) and ids[leading] in values:
            leading += 1
        values.update(ids)
        shared += min(prompt, 512 * leading)
        total += prompt
    for routing in ("round-robin", "weighted"):
        assert 0 < run(name, routing).summary()["cache"]["token_hit_ratio"] < shared / total


# --- a CPU tier against the capacity curve -----------------------------------------------------------------------

GPU = 3300  # blocks; the longest prompt has 3,181


@pytest.fixture(scope="module")
def weka(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write overlapping sessions with answers of one token, which is never computed, so no answer is cached."""
    path = tmp_path_factory.mktemp("weka") / "short.headway.jsonl.gz"
    changes = [{"starts": {"rate": "1/s", "seed": 3}}, {"scale": {"output_tokens": 0.00001}}]
    api.convert_trace(TRACES / "agentic-coding-weka" / "raw-sample", path, transforms=changes)
    return path


def curve(path: Path, capacity: int, order: Any) -> float:
    result = api.inspect_trace(path, capacities=[capacity], instances=[1], order=order)
    return float(result["reuse"][0]["block_hit_ratio"])


def tiered(trace: Json, offload: str, cpu: int, **cluster: Any) -> api.Result:
    """Run a trace on one instance with a tier. At level 1 the GPU is full before blocks move."""
    tiers = {"cpu": {"blocks": cpu, "bandwidth": "1000GB/s", "latency": "0s"}}
    kv = {"block_tokens": 64, "gpu_blocks": GPU, "tiers": tiers, "offload": offload, "offload_level": 1.0}
    return api.simulate(
        {
            "workload": {"trace": trace},
            "cluster": {"instances": 1, "kv": kv, **cluster},
            "policies": {"routing": "round-robin"},
        }
    )


def combined(offload: str, cpu: int) -> int:
    """Return the capacity of all stores together, or of the larger if each keeps copies. One GPU block has the tokens
    after a prompt's last whole block, which are never cached."""
    return max(GPU - 1, cpu) if offload == "eager" else GPU - 1 + cpu


@pytest.mark.full
@pytest.mark.parametrize(
    ("offload", "cpu", "either_order"),
    [
        *(("lazy", 300, False), ("lazy", 2000, True), ("lazy", 4000, True), ("lazy", 6000, True)),
        *(("threshold", 300, False), ("threshold", 2000, True)),
        *(("eager", 2000, False), ("eager", 3600, False), ("eager", 5000, True), ("eager", 9000, True)),
    ],
)
def test_sessions_with_a_cpu_tier_hit_exactly_what_the_capacity_curve_says(
    weka: Path, offload: str, cpu: int, either_order: bool
) -> None:
    """One request in flight and no generated tokens: the tail-first curve to the last block. The other curve is within
    two points where more than one and a half of the longest prompt have room."""
    latency = {"model": "fixed", "prefill_tokens_per_s": 10**9, "decode_tokens_per_s": 10**6}
    trace = {"path": str(weka), "replay": "timestamps"}
    result = tiered(trace, offload, cpu, max_batch_size=1, max_batch_tokens=10**6, latency=latency)
    capacity = combined(offload, cpu)
    ratio = result.summary()["cache"]["block_hit_ratio"]
    assert result.summary()["requests"]["completed"] == 698
    assert ratio == curve(weka, capacity, "tail-first")
    assert (capacity > 1.5 * GPU) == either_order
    assert (ratio - curve(weka, capacity, "first-to-last") <= 0.02) == either_order


@pytest.mark.full
@pytest.mark.parametrize(("offload", "cpu"), [("lazy", 300), ("lazy", 4000), ("threshold", 1500), ("eager", 5000)])
def test_sessions_that_run_beside_each_other_hit_about_what_the_capacity_curve_says(
    tmp_path: Path, offload: str, cpu: int
) -> None:
    """A quarter of the requests come while others run, and answers take room: still within two points of the curve."""
    path = tmp_path / "weka.headway.jsonl.gz"
    starts = [{"starts": {"rate": "1/s", "seed": 3}}]
    api.convert_trace(TRACES / "agentic-coding-weka" / "raw-sample", path, transforms=starts)
    result = tiered({"path": str(path), "replay": "think", "speed": 20}, offload, cpu, model="llama-3.1-8b", gpu="h100")
    assert result.summary()["requests"]["completed"] == 698
    ends = accumulate(result.requests["finished_ps"], max)
    assert sum(come < end for end, come in zip(ends, result.requests["arrival_ps"][1:], strict=False)) > 698 / 4
    ratio = result.summary()["cache"]["block_hit_ratio"]
    assert abs(ratio - curve(path, combined(offload, cpu), "tail-first")) <= 0.02
