"""A request that was rejected or timed out is in no latency percentile, and goodput counts it as a miss."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest

import headway
from headway.types import PS_PER_SECOND

MS = PS_PER_SECOND // 1000
LOAD: dict[str, Any] = {
    "seed": 2,
    "workload": {
        "requests": 300,
        "rate": "80/s",
        "prompt_tokens": 400,
        "output_tokens": {"dist": "uniform", "min": 5, "max": 60},
    },
    "cluster": {"instances": 2, "max_batch_size": 4, "latency": {"model": "fixed"}},
    "policies": {"routing": "least-loaded"},
    "slo": {"ttft": "1s"},
}
LOSING: dict[str, dict[str, Any]] = {
    "rejected at once": {"policies": {"routing": "least-loaded", "admission": {"name": "token-bucket", "rate": 20}}},
    "clients that give up": {"workload": {**LOAD["workload"], "timeout": "900ms"}},
    "too long in the router's queue": {
        "policies": {
            "routing": "least-loaded",
            "flow": {"name": "bands", "saturation": "concurrency", "max_inflight": 4, "ttl": "800ms"},
        }
    },
    "all of it": {
        "workload": {**LOAD["workload"], "timeout": "900ms"},
        "policies": {
            "routing": "least-loaded",
            "admission": {"name": "token-bucket", "rate": 40, "on_empty": "delay", "max_wait_s": 0.5},
        },
    },
}


@pytest.mark.parametrize("change", LOSING.values(), ids=list(LOSING))
def test_the_lost_are_in_no_percentile_and_are_misses(change: dict[str, Any]) -> None:
    result = headway.simulate({**LOAD, **change})
    requests, summary = result.requests, result.summary()
    lost = summary["requests"]["rejected"] + summary["requests"]["timed_out"]
    assert 0 < lost < 300 and summary["requests"]["completed"] == 300 - lost
    rows = [row for row in requests.rows() if row["outcome"] == "completed"]
    ttft = [(row["first_token_ps"] - row["arrival_ps"]) / MS for row in rows]
    e2e = [(row["finished_ps"] - row["arrival_ps"]) / MS for row in rows]
    for name, values in (("ttft", ttft), ("e2e", e2e)):
        figures = summary["latency"][name]
        assert figures["mean"] == pytest.approx(fmean(values))
        assert (figures["min"], figures["max"]) == (pytest.approx(min(values)), pytest.approx(max(values)))
    good = sum(value <= 1000 for value in ttft)
    assert summary["slo"]["goodput_ratio"] == good / 300
    assert summary["slo"]["ttft_attainment"] == good / len(rows)


def test_one_that_times_out_amid_its_tokens_is_lost_with_all_it_had() -> None:
    """It has a first token, in time, and counts nowhere all the same."""
    result = headway.simulate({**LOAD, "workload": {**LOAD["workload"], "timeout": "900ms"}})
    cut = [row for row in result.requests.rows() if row["outcome"] == "timed_out" and row["first_token_ps"] >= 0]
    assert cut and any(row["first_token_ps"] - row["arrival_ps"] <= PS_PER_SECOND for row in cut)
    events = result.requests["outcome"].count("completed")
    assert result.summary()["slo"]["goodput_ratio"] <= events / 300
    tokens = sum(row["output_tokens"] for row in result.requests.rows() if row["outcome"] == "completed")
    rates, window = result.summary()["throughput"], result.summary()["duration_s"]
    assert rates["output_tokens_per_s"] == pytest.approx(tokens / window)


def test_all_times_of_a_request_are_in_order_in_every_kind_of_run() -> None:
    for change in LOSING.values():
        for row in headway.simulate({**LOAD, **change}).requests.rows():
            names = ("arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps", "finished_ps")
            times = [row[name] for name in names if row[name] >= 0]
            assert times == sorted(times)
            if row["outcome"] == "completed":
                assert len(times) == 5
