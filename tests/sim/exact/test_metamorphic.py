"""Rules that tie two runs together: what must stay the same, double, never grow worse, when something is changed."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import fmean, pstdev
from typing import Any

import pytest

import headway
from drawing import grid

Json = dict[str, Any]
MS = 10**9
FIXED = {"model": "fixed", "prefill_tokens_per_s": 10_000, "decode_tokens_per_s": 100}
TIMES = ("arrival_ps", "started_ps", "first_token_ps", "finished_ps")
# Those that weigh a time of their own (a decay, a window) are left out where times are scaled or moved.
TIMELESS = [
    "round-robin",
    "random",
    "least-loaded",
    "always-busiest",
    "prefix-affinity",
    "least-kv",
    "power-of-two",
    "lmetric",
    "load-only",
    "sticky",
    "unified",
    "lmetric-plus-one",
    "least-prefill-work",
    "least-outstanding",
    "prefix-aware",
    "prefix-overlap",
    "session-affinity",
    "weighted",
]


def synthetic(requests: int = 400, rate: str = "40/s", **more: Any) -> Json:
    return {
        "requests": requests,
        "rate": rate,
        "prompt_tokens": {"dist": "normal", "mean": 300, "std": 150, "min": 1, "max": 900},
        "output_tokens": {"dist": "exponential", "mean": 60, "min": 1, "max": 400},
        **more,
    }


def run(workload: Json, routing: Any, seed: int = 1, latency: Json | None = None, **cluster: Any) -> headway.Result:
    return headway.simulate(
        {
            "defaults": "2026-11",  # ticks are neither scaled nor moved
            "seed": seed,
            "workload": workload,
            "cluster": {"instances": 4, "latency": latency or FIXED, **cluster},
            "policies": {"routing": routing},
        }
    )


def waits(result: headway.Result) -> list[int]:
    return [
        start - came for start, came in zip(result.requests["started_ps"], result.requests["arrival_ps"], strict=True)
    ]


def trace(folder: Path, rows: list[Json], speed: float = 1.0, block: int = 16) -> Json:
    file = folder / f"{len(list(folder.iterdir()))}.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"trace": {"format": "mooncake", "path": str(file), "speed": speed, "block_tokens": block}}


def row(at: int, prompt: int, output: int, ids: list[int]) -> Json:
    return {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids}


def sharing_rows(requests: int, share: float, gap: int, seed: int = 3) -> tuple[list[Json], list[int]]:
    """Requests of 320 tokens of which a share begin with 160 tokens of one of four groups, and the group of each, -1
    for none."""
    rng = Random(seed)
    rows, groups = [], []
    for number in range(requests):
        group = rng.randrange(4) if rng.random() < share else -1
        own = list(range(100_000 + 20 * number, 100_000 + 20 * number + 20))
        ids = [group * 10 + block for block in range(10)] + own[:10] if group >= 0 else own
        rows.append(row(number * gap + rng.randrange(gap), 320, rng.randint(1, 60), ids))
        groups.append(group)
    return rows, groups


# --- instances ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("few", "many"), [(1, 2), (1, 5), (2, 6), (3, 6), (4, 16)])
def test_a_multiple_of_the_instances_worsens_no_request_s_wait(few: int, many: int, seed: int) -> None:
    """Round robin: each of the many serves a part of what one of the few served, in the same order."""
    fixed = {"max_batch_size": 1, "kv": {"prefix_caching": False, "gpu_blocks": 200}}
    workload = synthetic(300, "5/s", prefix={"groups": 3, "tokens": 100})
    before = run(workload, "round-robin", seed, instances=few, **fixed)
    after = run(workload, "round-robin", seed, instances=many, **fixed)
    assert max(waits(before)) > 0
    assert all(now <= then for now, then in zip(waits(after), waits(before), strict=True))
    assert sum(waits(after)) < sum(waits(before))


def test_under_heavy_load_more_instances_never_raise_the_mean_ttft() -> None:
    means = []
    for instances in (1, 2, 3, 4, 6, 8, 12, 16):
        result = run(synthetic(400, "60/s"), "least-loaded", instances=instances, max_batch_size=16)
        means.append(result.summary()["latency"]["ttft"]["mean"])
    assert all(more <= fewer for fewer, more in pairwise(means))
    assert means[-1] < means[0] / 20


def test_round_robin_over_n_instances_is_n_runs_of_one_instance_each(tmp_path: Path) -> None:
    rows, _ = sharing_rows(240, 0.7, 40)
    tight = {"kv": {"gpu_blocks": 40}, "max_batch_tokens": 256}
    whole = run(trace(tmp_path, rows), "round-robin", instances=3, **tight)
    assert whole.summary()["preemptions"] > 0
    for index in range(3):
        part = run(trace(tmp_path, rows[index::3]), "round-robin", instances=1, **tight)
        for name in (*TIMES, "cached_tokens", "preemptions", "output_tokens"):
            assert part.requests[name] == whole.requests[name][index::3]


# --- time --------------------------------------------------------------------------------------------------------


LINEAR = {"step": 3, "prefill_token": 20_000, "prefill_pair": 7, "sequence": 13_000_001, "context_token": 41_003}


@pytest.mark.parametrize(("routing", "model"), grid(TIMELESS, ["fixed", "linear"]))
def test_doubling_every_time_constant_doubles_every_latency(routing: str, model: str, tmp_path: Path) -> None:
    rows, _ = sharing_rows(100, 0.7, 30)
    tight = {"instances": 3, "kv": {"gpu_blocks": 60}, "max_batch_tokens": 200}
    runs = []
    for factor in (1, 2):
        latency: Json = {"model": "linear", **{key: f"{figure * factor}ps" for key, figure in LINEAR.items()}}
        if model == "fixed":  # 50 µs and 8 ms a token, and twice that
            rates = {"prefill_tokens_per_s": 20_000 // factor, "decode_tokens_per_s": 125 / factor}
            latency = {"model": "fixed", **rates}
        spread = [{**one, "timestamp": one["timestamp"] * factor} for one in rows]
        runs.append(run(trace(tmp_path, spread), routing, latency=latency, **tight))
    before, after = (result.requests for result in runs)
    assert after["instance"] == before["instance"]
    for name in TIMES:
        assert after[name] == [2 * at for at in before[name]]
    for name in ("cached_tokens", "preemptions"):
        assert after[name] == before[name]


def test_half_the_speed_is_twice_the_time(tmp_path: Path) -> None:
    rows, _ = sharing_rows(100, 0.7, 30)
    slow = trace(tmp_path, [{**one, "timestamp": one["timestamp"] * 2} for one in rows])
    assert run(trace(tmp_path, rows, speed=0.5), "weighted").requests == run(slow, "weighted").requests


@pytest.mark.parametrize("routing", TIMELESS)
def test_a_later_start_moves_everything_by_as_much(routing: str, tmp_path: Path) -> None:
    rows, _ = sharing_rows(100, 0.7, 30)
    late = [{**one, "timestamp": one["timestamp"] + 12_345} for one in rows]
    before, after = (run(trace(tmp_path, these), routing) for these in (rows, late))
    for name in TIMES:
        assert after.requests[name] == [at + 12_345 * MS for at in before.requests[name]]
    assert after.summary() == before.summary()


def test_simultaneous_prefills_take_as_long_as_their_tokens() -> None:
    """However they are batched: the prefill rate is the instance's, not a request's."""
    for count in (1, 2, 7, 20):
        for budget in (64, 300, 2048):
            workload = {"requests": count, "rate": "1000000000/s", "arrival": "constant", "prompt_tokens": 300}
            result = run({**workload, "output_tokens": 1}, "round-robin", instances=1, max_batch_tokens=budget)
            assert set(result.requests["arrival_ps"]) == {0}
            assert max(result.requests["first_token_ps"]) == count * 300 * 10**8
            decoding = run({**workload, "output_tokens": 9}, "round-robin", instances=1, max_batch_tokens=budget)
            assert max(decoding.requests["first_token_ps"]) >= count * 300 * 10**8


# --- caching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_round_robin_routes_the_same_with_caching_on_and_off(seed: int) -> None:
    workload = synthetic(prefix={"groups": 5, "tokens": 200})
    on, off = (
        run(workload, "round-robin", seed, kv={"prefix_caching": caching, "gpu_blocks": 150})
        for caching in (True, False)
    )
    assert on.requests["instance"] == off.requests["instance"] == [number % 4 for number in range(400)]
    assert sum(on.requests["cached_tokens"]) > 0 == sum(off.requests["cached_tokens"])


def test_a_prefix_is_reusable_only_once_it_is_computed(tmp_path: Path) -> None:
    """Of two equal prompts in one step the second finds nothing; one that starts after that step finds all but the
    last token's block."""
    ids = list(range(10))
    rows = [row(0, 160, 5, ids), row(0, 160, 5, ids), row(1000, 160, 5, ids)]
    together = run(trace(tmp_path, rows), "round-robin", instances=1, max_batch_tokens=2048).requests
    assert together["started_ps"][:2] == [0, 0]
    assert together["first_token_ps"][:2] == [320 * 10**8] * 2
    assert together["cached_tokens"] == [0, 0, 144]
    # A budget for just one prompt: the second starts when the first is done, and computes 16 tokens.
    apart = run(trace(tmp_path, rows), "round-robin", instances=1, max_batch_tokens=160).requests
    assert apart["started_ps"][:2] == [0, 160 * 10**8]
    assert apart["cached_tokens"] == [0, 144, 144]
    # A budget for one prompt and a half: the second starts in the first's step, when nothing is computed yet.
    half = run(trace(tmp_path, rows), "round-robin", instances=1, max_batch_tokens=240).requests
    assert half["started_ps"][:2] == [0, 0]
    assert half["cached_tokens"] == [0, 0, 144]


def test_hits_are_whole_blocks_and_leave_a_token_to_compute() -> None:
    workload = synthetic(prefix={"groups": 2, "tokens": 500})  # many prompts are nothing but their group's prefix
    for block in (1, 16, 64):
        columns = run(workload, "prefix-aware", kv={"block_tokens": block}).requests
        assert sum(columns["cached_tokens"]) > 0
        for prompt, cached in zip(columns["prompt_tokens"], columns["cached_tokens"], strict=True):
            assert cached % block == 0
            assert 0 <= cached < prompt


# --- policies ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_on_prompts_with_no_shared_block_prefix_affinity_is_least_loaded(seed: int) -> None:
    workload = synthetic(prefix={"groups": 2, "tokens": 15})  # less than a block
    one, other = (run(workload, routing, seed) for routing in ("prefix-affinity", "least-loaded"))
    assert one.requests == other.requests
    assert len(set(one.requests["instance"])) == 4


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kv", [{}, {"gpu_blocks": 120}], ids=["ample", "tight"])
def test_weighted_with_load_balance_alone_is_least_loaded(kv: Json, seed: int) -> None:
    workload = synthetic(200, prefix={"groups": 4, "tokens": 128})
    least_loaded = run(workload, "least-loaded", seed, kv=kv).requests
    for weight in (1, 7, 0.25):
        profile = {"name": "weighted", "scorers": {"load-balance": weight}}
        assert run(workload, profile, seed, kv=kv).requests == least_loaded


PROFILES = {
    "3:2:2": {"prefix-affinity": 3, "queue-depth": 2, "kv-utilization": 2},
    "6:4:4": {"prefix-affinity": 6, "queue-depth": 4, "kv-utilization": 4},
    ".3:.2:.2": {"prefix-affinity": 0.3, "queue-depth": 0.2, "kv-utilization": 0.2},
    "text": "prefix-affinity:0.3,queue-depth:0.2,kv-utilization:0.2",
    "another order": {"kv_utilization": 20, "prefix_affinity": 30, "queue_depth": 20},
    "list": [
        {"name": "queue-depth", "weight": 1.0},
        {"name": "prefix-affinity", "weight": 1.5, "lru_blocks": 31250},
        {"name": "kv-utilization", "weight": 1},
    ],
}


@pytest.mark.parametrize("scorers", PROFILES.values(), ids=PROFILES.keys())
def test_only_the_ratios_of_the_weights_count(scorers: Any) -> None:
    workload = synthetic(200, "60/s", prefix={"groups": 8, "tokens": 200})
    tight = {"instances": 7, "kv": {"gpu_blocks": 400}, "max_batch_size": 8}
    default = run(workload, "weighted", **tight)
    assert len(set(default.requests["instance"])) == 7
    found = run(workload, {"name": "weighted", "scorers": scorers}, **tight)
    assert found.requests == default.requests
    assert found.to_json() == default.to_json()


def test_a_weight_that_differs_in_a_far_digit_is_another_profile() -> None:
    """So that the test above does not pass because weights count for nothing."""
    workload = synthetic(200, "60/s", prefix={"groups": 8, "tokens": 200})
    runs = [
        run(workload, {"name": "weighted", "scorers": {"prefix-affinity": weight, "queue-depth": 2}}, instances=7)
        for weight in (0.2, 3)
    ]
    assert runs[0].requests["instance"] != runs[1].requests["instance"]


def concentration(instances: list[int], groups: list[int], count: int) -> float:
    """How unevenly each group's requests are spread: the standard deviation over instances, averaged over groups."""
    by_group = []
    for group in range(4):
        routed = Counter(index for index, member in zip(instances, groups, strict=True) if member == group)
        by_group.append(pstdev([routed[index] for index in range(count)]))
    return fmean(by_group)


@pytest.mark.full
def test_a_growing_prefix_weight_concentrates_routing(tmp_path: Path) -> None:
    """70 % of the prompts share the first half with others of their group."""
    rows, groups = sharing_rows(600, 0.7, 12)
    workload = trace(tmp_path, rows)
    found = []
    for weight in (0.001, 1.2, 1.5, 20):
        profile = {"name": "weighted", "scorers": {"prefix-affinity": weight, "queue-depth": 1}}
        result = run(workload, profile, instances=8, max_batch_size=16)
        found.append(concentration(result.requests["instance"], groups, 8))
    assert all(lighter < heavier for lighter, heavier in pairwise(found)), found
    assert found[-1] > 5 * found[0]


@pytest.mark.parametrize("capacity", [1, 7, 100, 31_250])
def test_the_index_never_exceeds_instances_times_capacity(capacity: int) -> None:
    scorers = [{"name": "prefix-affinity", "weight": 1, "lru_blocks": capacity}, {"name": "queue-depth", "weight": 1}]
    routing = {"name": "weighted", "scorers": scorers}
    metrics = run(synthetic(prefix={"groups": 3, "tokens": 64}), routing, instances=5).summary()["policy_metrics"]
    assert metrics["prefix_index_capacity"] == 5 * capacity
    assert 0 < metrics["prefix_index_blocks"] <= 5 * capacity
    if capacity <= 100:
        assert metrics["prefix_index_blocks"] == 5 * capacity


# --- what counts -------------------------------------------------------------------------------------------------


def test_a_warm_up_changes_the_statistics_and_neither_counts_nor_costs() -> None:
    scenario = {"seed": 1, "workload": synthetic(), "cluster": {"instances": 4, "latency": FIXED}}
    whole, less = (headway.simulate({**scenario, "warmup": warmup}) for warmup in (0, 100))
    assert less.requests == whole.requests
    for name in ("requests", "duration_s", "cost", "preemptions", "instances"):
        assert less.summary()[name] == whole.summary()[name]
    for name in ("latency", "throughput", "slo"):
        assert less.summary()[name] != whole.summary()[name]


def test_without_targets_whatever_is_completed_is_good() -> None:
    summary = run(synthetic(), "round-robin").summary()
    assert summary["slo"]["ttft_attainment"] is summary["slo"]["tpot_attainment"] is None
    assert summary["slo"]["goodput_requests_per_s"] == summary["throughput"]["requests_per_s"] > 0
    assert summary["slo"]["goodput_ratio"] == 1


def test_a_run_in_which_no_time_passes_has_rates_of_zero(tmp_path: Path) -> None:
    workload = trace(tmp_path, [row(10, 100, 5, list(range(7)))])
    scenario = {"workload": workload, "cluster": {"instances": 1, "latency": FIXED}, "horizon": "10ms"}
    summary = headway.simulate(scenario).summary()
    assert (summary["duration_s"], summary["requests"]["in_flight"]) == (0, 1)
    assert set(summary["throughput"].values()) == {0}
