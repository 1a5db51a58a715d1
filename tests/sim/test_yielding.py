"""Running requests that yield to waiting ones of a higher priority."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError

LATENCY = {
    "model": "linear",
    "step": "10ms",
    **dict.fromkeys(("prefill_token", "prefill_pair", "sequence", "context_token"), "0s"),
}
MS = 10**9


def run(tmp_path: Any, rows: list[tuple[float, int, int, str]], preempts: float | None, **cluster: Any) -> Any:
    """Run requests (arrival in ms, prompt, output, class) on one instance whose steps take 10 ms."""
    trace = tmp_path / "trace.csv"
    trace.write_text(
        "arrival,prompt_tokens,output_tokens,slo_class\n"
        + "".join(f"{at / 1000},{prompt},{output},{name}\n" for at, prompt, output, name in rows)
    )
    columns = {"arrival": "arrival:s", "prompt": "prompt_tokens", "output": "output_tokens", "class": "slo_class"}
    result = headway.simulate(
        {
            "workload": {"trace": {"path": str(trace), "format": "columns", "columns": columns}},
            "cluster": {"instances": 1, "latency": LATENCY, **cluster},
            "policies": {
                "priority": {"name": "by-class", "scores": {"urgent": 10, "usual": 5}, "other": 0},
                "scheduler": {"name": "priority", "aging": 0, "preempts": preempts},
            },
        }
    )
    return result.requests


def started(table: Any) -> list[float]:
    return [at / MS for at in table["started_ps"]]


LAST, URGENT = (0, 10, 20, "bulk"), (25, 10, 2, "urgent")


@pytest.mark.parametrize(("preempts", "starts"), [(None, 200), (9, 30), (10, 200), (0, 30)])
def test_a_request_yields_if_its_priority_is_lower_by_more_than_the_threshold(
    tmp_path: Any, preempts: float | None, starts: float
) -> None:
    table = run(tmp_path, [LAST, URGENT], preempts, max_batch_size=1)
    assert started(table) == [0, starts]
    assert list(table["preemptions"]) == [int(starts == 30), 0]
    assert list(table["outcome"]) == ["completed"] * 2


@pytest.mark.parametrize("leap", [False, "random-cuts"])
def test_requests_yield_on_engines_that_speculate(leap: bool | str) -> None:
    scenario: Any = {
        "workload": {
            "requests": 150,
            "rate": "300/s",
            "prompt_tokens": {"dist": "uniform", "min": 10, "max": 100},
            "output_tokens": {"dist": "uniform", "min": 1, "max": 60},
        },
        "cluster": {
            "instances": 1,
            "max_batch_size": 6,
            "kv": {"gpu_blocks": 60},
            "latency": {"model": "fixed", "prefill_tokens_per_s": 10000, "decode_tokens_per_s": 500},
            "speculation": {"tokens": 3, "acceptance": 0.5},
        },
        "policies": {"priority": "shortest-prompt", "scheduler": {"name": "priority", "preempts": 0, "aging": 0}},
        "warmup": 0,
    }
    fast, other = (headway.simulate({**scenario, "leap": mode}, progress=False) for mode in (True, leap))
    assert fast.requests["finished_ps"] == other.requests["finished_ps"]
    assert fast.summary()["preemptions"] > 0


def test_the_last_in_order_yields_and_only_as_many_as_needed(tmp_path: Any) -> None:
    rows = [(0, 10, 20, "usual"), (0, 10, 20, "bulk"), (1, 10, 20, "bulk"), URGENT]
    table = run(tmp_path, rows, 0, max_batch_size=3)
    assert list(table["preemptions"]) == [0, 0, 1, 0]


def test_requests_yield_until_there_are_enough_blocks(tmp_path: Any) -> None:
    rows = [(0, 64, 20, "usual"), (0, 64, 20, "bulk"), (1, 64, 20, "bulk"), (25, 130, 2, "urgent")]
    kv = {"gpu_blocks": 20, "block_tokens": 16, "prefix_caching": False}
    table = run(tmp_path, rows, 0, kv=kv)
    assert list(table["preemptions"]) == [0, 0, 1, 0] and started(table)[3] == 30
    small = run(tmp_path, [*rows[:3], (25, 200, 2, "urgent")], 0, kv=kv)
    assert list(small["preemptions"]) == [0, 1, 1, 0] and started(small)[3] == 30


def test_nothing_yields_in_vain(tmp_path: Any) -> None:
    """Without the blocks of the first, which does not yield, there is no room for the last."""
    rows = [(0, 200, 5, "urgent"), (0, 20, 40, "bulk"), (25, 200, 2, "urgent")]
    table = run(tmp_path, rows, 0, kv={"gpu_blocks": 20, "block_tokens": 16, "prefix_caching": False})
    assert list(table["preemptions"]) == [0, 0, 0] and started(table)[2] == 50


def test_an_unfinished_prefill_yields(tmp_path: Any) -> None:
    rows = [(0, 1000, 2, "bulk"), (25, 10, 2, "urgent")]
    table = run(tmp_path, rows, 0, max_batch_tokens=100)
    assert started(table)[1] == 30 and table["preemptions"][0] == 1
    assert started(run(tmp_path, rows, None, max_batch_tokens=100))[1] > 90


def test_equal_requests_never_yield_to_each_other(tmp_path: Any) -> None:
    rows = [(at, 40, 30, name) for at in range(0, 60, 3) for name in ("urgent", "usual")]
    table = run(tmp_path, rows, 0, max_batch_size=3)
    assert set(table["outcome"]) == {"completed"}
    for name, count in zip(table["slo_class"], table["preemptions"], strict=True):
        assert not (name == "urgent" and count)


@pytest.mark.parametrize(
    "cluster",
    [
        {"kv": {"tiers": {"cpu": {"blocks": 10}}}},
        {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 1}},
    ],
)
def test_it_is_refused_where_requests_wait_for_blocks(cluster: Any) -> None:
    scenario = {
        "workload": {"requests": 1, "rate": "1/s"},
        "cluster": cluster,
        "policies": {"scheduler": {"name": "priority", "preempts": 0}},
    }
    with pytest.raises(HeadwayError, match=r"cannot yield where requests wait for blocks"):
        headway.Scenario.load(scenario)
