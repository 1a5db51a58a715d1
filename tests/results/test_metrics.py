from __future__ import annotations

import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorders import MS, SECOND, facts, fleet, record, rows

from headway.results.metrics import summarise
from headway.results.recorder import Targets
from headway.results.statistics import NAMES, spread_of

REQUESTS = [
    {
        "arrival_ps": 1 * SECOND,
        "started_ps": 1 * SECOND + 10 * MS,
        "first_token_ps": 1 * SECOND + 100 * MS,
        "finished_ps": 1 * SECOND + 400 * MS,
        "instance": 0,
        "outcome": "completed",
        "prompt_tokens": 40,
        "output_tokens": 4,
        "cached_tokens": 16,
        "gaps": [(50 * MS, 50 * MS, 3, 1)],
    },
    {
        "arrival_ps": 2 * SECOND,
        "started_ps": 2 * SECOND,
        "first_token_ps": 2 * SECOND + 300 * MS,
        "finished_ps": 2 * SECOND + 300 * MS,
        "instance": 1,
        "outcome": "completed",
        "prompt_tokens": 60,
        "output_tokens": 1,
    },
    {"arrival_ps": 3 * SECOND, "outcome": "rejected", "reason": "no room"},
    {"arrival_ps": 4 * SECOND, "started_ps": 4 * SECOND, "instance": 0, "prompt_tokens": 100, "cached_tokens": 48},
]
TARGETS = {"slo": Targets(200 * MS, 100 * MS)}


def test_a_run_worked_out_by_hand() -> None:
    instances = fleet(2, busy_ps=SECOND, requests=1, preemptions=2, gpus=2)
    instances[0].requests = 3
    instances[0].peak_kv_blocks = 25
    actual = summarise(record(REQUESTS), instances, facts(started_ps=SECOND, ended_ps=5 * SECOND, **TARGETS))
    assert actual["requests"] == {
        "arrived": 4, "completed": 2, "rejected": 1, "timed_out": 0, "failed": 0, "in_flight": 1,
        "retried": 0, "not_issued": 0, "abandoned": 0,
    }  # fmt: skip
    assert actual["duration_s"] == 4.0
    assert actual["latency"]["ttft"] == {
        "mean": 200.0, "p50": 200.0, "p75": 250.0, "p90": 280.0, "p95": 290.0, "p99": 298.0, "min": 100.0, "max": 300.0
    }  # fmt: skip
    assert actual["latency"]["tpot"] == dict.fromkeys(NAMES, 100.0)
    assert actual["latency"]["itl"] == {
        "mean": 100.0, "p50": 100.0, "p75": 125.0, "p90": 140.0, "p95": 145.0, "p99": 149.0, "min": 50.0, "max": 150.0
    }  # fmt: skip
    assert (actual["latency"]["e2e"]["mean"], actual["latency"]["queue_wait"]["mean"]) == (350.0, 5.0)
    assert actual["throughput"] == {"requests_per_s": 0.5, "input_tokens_per_s": 25.0, "output_tokens_per_s": 1.25}
    assert actual["cache"] == {"token_hit_ratio": 0.32, "block_hit_ratio": 4 / 11, "request_hit_ratio": 2 / 3}
    assert actual["balance"] == {"cv": pytest.approx(1 / 3), "jain": 0.9}
    assert actual["slo"] == {
        "ttft_attainment": 0.5, "tpot_attainment": 1.0, "e2e_attainment": None,
        "goodput_requests_per_s": 0.25, "goodput_ratio": 0.25,
    }  # fmt: skip
    assert actual["cost"] == {
        "gpu_seconds_per_request": 2.0,
        "gpu_held_seconds": 16.0,
        "usd": pytest.approx(16 / 3600 * 2),
        "usd_per_1k_tokens": pytest.approx(16 / 3600 * 2 / 0.105),
        "usd_per_1m_tokens": pytest.approx(16 / 3600 * 2 / 0.000105),
    }
    assert actual["preemptions"] == 4
    first = actual["instances"][0]
    assert (first["id"], first["requests"], first["share"], first["busy_s"]) == ("i0", 3, 0.75, 1.0)
    assert (first["utilization"], first["peak_kv_utilization"], first["kv_blocks"]) == (0.25, 0.25, 100)


def test_warmup_leaves_the_statistics_but_not_the_counts() -> None:
    rest = [{**row, "gaps": []} for row in REQUESTS]
    actual = summarise(record(rest), fleet(2), facts(started_ps=SECOND, ended_ps=5 * SECOND, warmup=1, **TARGETS))
    assert (actual["requests"]["arrived"], actual["requests"]["completed"]) == (4, 2)
    assert actual["latency"]["ttft"]["min"] == 300.0
    assert actual["throughput"]["requests_per_s"] == pytest.approx(1 / 3)
    assert actual["balance"] == {"cv": 0.0, "jain": 1.0}
    assert actual["slo"]["goodput_ratio"] == 0.0
    assert actual["cost"]["gpu_held_seconds"] == 8.0


@pytest.mark.parametrize("warmup", [0, 4, 9])
def test_figures_without_a_sample_are_null(warmup: int) -> None:
    none = [{"arrival_ps": row["arrival_ps"], "outcome": "rejected"} for row in REQUESTS]
    actual = summarise(record(none), fleet(2), facts(warmup=warmup))
    assert all(actual["latency"][name] == dict.fromkeys(NAMES) for name in ("ttft", "tpot", "itl", "e2e", "queue_wait"))
    assert set(actual["cache"].values()) == set(actual["balance"].values()) == {None}
    assert actual["slo"]["ttft_attainment"] is None
    assert actual["cost"]["usd_per_1k_tokens"] is None
    assert set(actual["throughput"].values()) == {0.0 if warmup == 0 else None}


def test_a_run_without_requests_has_a_summary() -> None:
    actual = summarise(record([]), fleet(1), facts(ended_ps=0))
    assert actual["requests"]["arrived"] == 0
    assert actual["instances"][0]["utilization"] is None


@given(st.lists(st.integers(0, 10**14), min_size=2, max_size=300))
def test_percentiles_lie_linearly_between_order_statistics(values: list[int]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    actual = spread_of(values)
    for percent in (50, 75, 90, 95, 99):
        assert actual[f"p{percent}"] == pytest.approx(cuts[percent - 1] / MS, rel=1e-12)
    assert actual["mean"] == pytest.approx(statistics.fmean(values) / MS)
    assert (actual["min"], actual["max"]) == (min(values) / MS, max(values) / MS)


def plain(values: list[float]) -> dict[str, Any]:
    """Spread of a sample, the short way."""
    cuts = statistics.quantiles(values, n=100, method="inclusive") if len(values) > 1 else values * 99
    figures = {f"p{percent}": cuts[percent - 1] / MS for percent in (50, 75, 90, 95, 99)}
    return {"mean": statistics.fmean(values) / MS, **figures, "min": min(values) / MS, "max": max(values) / MS}


def share(part: float, whole: float) -> Any:
    return pytest.approx(part / whole) if whole else None


@given(rows(), st.integers(0, 10), st.tuples(*[st.integers(0, SECOND)] * 3))
def test_the_summary_equals_a_plain_computation(
    made: list[dict[str, Any]], warmup: int, slo: tuple[int, int, int]
) -> None:
    ttft, tpot, e2e = slo
    for row in made[:warmup]:
        row["gaps"] = []
    actual = summarise(record(made), fleet(3), facts(warmup=warmup, slo=Targets(*slo), ended_ps=20 * SECOND))
    counted = made[warmup:]
    events = [row for row in counted if row["outcome"] == "completed"]
    window = 20 - counted[0]["arrival_ps"] / SECOND if counted else 0.0
    samples = {
        "ttft": [row["first_token_ps"] - row["arrival_ps"] for row in events],
        "tpot": [
            (row["finished_ps"] - row["first_token_ps"]) / (row["output_tokens"] - 1)
            for row in events
            if row["output_tokens"] > 1
        ],
        "itl": [
            first + step * rise for row in events for first, rise, steps, _ in row["gaps"] for step in range(steps)
        ],
        "e2e": [row["finished_ps"] - row["arrival_ps"] for row in events],
        "queue_wait": [row["started_ps"] - row["arrival_ps"] for row in events],
    }
    for name, sample in samples.items():
        assert actual["latency"][name] == (pytest.approx(plain(sample), rel=1e-9) if sample else dict.fromkeys(NAMES))
    outputs = sum(row["output_tokens"] for row in events)
    assert actual["throughput"]["output_tokens_per_s"] == share(outputs, window)
    fast = [row["first_token_ps"] - row["arrival_ps"] <= ttft for row in events]
    smooth = [row["finished_ps"] - row["first_token_ps"] <= tpot * (row["output_tokens"] - 1) for row in events]
    short = [row["finished_ps"] - row["arrival_ps"] <= e2e for row in events]
    good = list(map(all, zip(fast, smooth, short, strict=True))).count(True)
    assert actual["slo"] == {
        "ttft_attainment": share(fast.count(True), len(events)),
        "tpot_attainment": share(smooth.count(True), len(events)),
        "e2e_attainment": share(short.count(True), len(events)),
        "goodput_requests_per_s": share(good, window),
        "goodput_ratio": share(good, len(counted)),
    }
    begun = [row for row in counted if "started_ps" in row]
    assert actual["cache"] == {
        "token_hit_ratio": share(sum(r["cached_tokens"] for r in begun), sum(r["prompt_tokens"] for r in begun)),
        "block_hit_ratio": share(
            sum(r["cached_tokens"] // 16 for r in begun), sum(r["prompt_tokens"] // 16 for r in begun)
        ),
        "request_hit_ratio": share(len([r for r in begun if r["cached_tokens"]]), len(begun)),
    }
    loads = [len([row for row in counted if row.get("instance") == index]) for index in range(3)]
    mean = statistics.fmean(loads)
    assert actual["balance"]["cv"] == share(statistics.pstdev(loads), mean)
    assert actual["balance"]["jain"] == share(sum(loads) ** 2, 3 * sum(load**2 for load in loads))
