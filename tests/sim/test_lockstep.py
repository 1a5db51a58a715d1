"""Data-parallel ranks: joint steps as worked out by hand, and the choice of a rank by vLLM's rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.errors import HeadwayError
from headway.experiment.run import prepare

Json = dict[str, Any]
MS = 10**9
EXPERTS: Json = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000, "name": "toy",
    "experts": 8, "experts_per_token": 2, "expert_intermediate": 32,
}  # fmt: skip
DENSE = {key: value for key, value in EXPERTS.items() if "expert" not in key}
# A step takes 1 ms, 1 ms for each prompt token and 1 ms for each sequence.
LINEAR = {"model": "linear", "step": "1ms", "prefill_token": "1ms", "prefill_pair": "0s", "sequence": "1ms"}
LINEAR |= {"context_token": "0s"}
RANKS = ["instance-0-rank-0", "instance-0-rank-1"]


class ByNumber:
    """Sends request n to the nth of the given targets, by position."""

    def __init__(self, *targets: int) -> None:
        self.targets = targets

    def route(self, request: headway.Request, cluster: headway.ClusterView) -> headway.Route:
        return headway.Route(cluster.instances[self.targets[request.id]].id)


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def simulate(requests: list[tuple[int, int, int]], *targets: int, **cluster: Any) -> headway.Result:
        """Requests as (arrival in ms, prompt tokens, output tokens), on one engine with two ranks."""
        rows = [
            {"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": [number]}
            for number, (at, prompt, output) in enumerate(requests)
        ]
        trace = tmp_path / "trace.jsonl"
        trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
        keys = {"instances": 1, "dp": 2, "dp_balance": "direct", "model": EXPERTS, "latency": LINEAR}
        scenario = {
            "defaults": "2026-11",
            "workload": {"trace": {"format": "mooncake", "path": str(trace)}},
            "cluster": {**keys, "kv": {"gpu_blocks": 1000}, **cluster},
            "warmup": 0,
        }
        return headway.simulate(scenario, routing=ByNumber(*targets) if targets else "round-robin", progress=False)

    return simulate


def ends_ms(result: headway.Result) -> list[float]:
    return [at / MS for at in result.requests["finished_ps"]]


def test_an_idle_rank_takes_part_with_dummy_steps(run: Any) -> None:
    """A prefill of 6 ms and two decodes of 2 ms."""
    result = run([(0, 4, 3)], 0)
    assert ends_ms(result) == [10]
    ranks = result.summary()["instances"]
    assert [rank["id"] for rank in ranks] == ["instance-0-rank-0", "instance-0-rank-1"]
    assert [rank["steps"] for rank in ranks] == [3, 3]
    assert [rank["busy_s"] for rank in ranks] == [0.01, 0.01]


def test_equally_loaded_ranks_take_as_long_as_one(run: Any) -> None:
    assert ends_ms(run([(0, 4, 3), (0, 4, 3)], 0, 1)) == [10, 10]


def test_a_step_takes_as_long_as_that_of_the_slowest_rank(run: Any) -> None:
    assert ends_ms(run([(0, 4, 3), (0, 10, 3)], 0, 1)) == [16, 16]


def test_ranks_of_a_dense_model_do_not_wait_for_each_other(run: Any) -> None:
    assert ends_ms(run([(0, 4, 3), (0, 10, 3)], 0, 1, model=DENSE)) == [10, 16]


def test_a_request_joins_at_the_next_joint_step(run: Any) -> None:
    """The first decodes from 6 ms on in steps of 2 ms. The second comes at 7 ms, enters at 8 ms and slows a step of the
    first one down to 12 ms."""
    result = run([(0, 4, 4), (7, 10, 1)], 0, 1)
    assert result.requests["started_ps"] == [0, 8 * MS]
    assert ends_ms(result) == [22, 20]


def test_the_engine_gives_requests_to_ranks_by_its_counts(run: Any) -> None:
    """Between two publications a server counts its own requests, so they alternate. At 1 s both ranks are idle."""
    result = run([(at, 4, 2) for at in (0, 1, 2, 3, 1000)], dp_balance="vllm", api_servers=1)
    assert result.requests["instance"] == [0, 1, 0, 1, 0]


def test_a_publication_makes_the_engine_forget_what_its_ranks_have_not_counted(run: Any) -> None:
    """The first step lasts until 202 ms. At 100 ms the ranks have counted nothing yet."""
    result = run([(0, 200, 2), (101, 4, 2), (102, 4, 2)], dp_balance="vllm", api_servers=1)
    assert result.requests["instance"] == [0, 0, 1]


def test_each_server_counts_its_requests_for_all_and_begins_with_another_rank(run: Any) -> None:
    result = run([(0, 4, 2)] * 40, dp_balance="vllm")
    ranks = result.requests["instance"]
    assert 15 <= sum(ranks) <= 25  # two servers, each of which alternates


@pytest.mark.parametrize(("balance", "seen"), [("vllm", ["instance-0"]), ("direct", RANKS)])
def test_a_policy_sees_the_engine_or_its_ranks(balance: str, seen: list[str]) -> None:
    views = cluster_views({"instances": 1, "dp": 2, "dp_balance": balance, "model": EXPERTS, "kv": {"gpu_blocks": 50}})
    assert [view.id for view in views] == seen
    assert sum(view.kv_blocks for view in views) == 100


def cluster_views(cluster: Json) -> list[Any]:
    workload = {"requests": 1, "rate": "1/s", "prompt_tokens": 1, "output_tokens": 1}
    setup = prepare(headway.Scenario.load({"workload": workload, "cluster": cluster})).setup
    return [view for view in setup.views if view.id]


def test_a_fault_strikes_the_whole_engine() -> None:
    scenario = {
        "workload": {"requests": 40, "rate": "1000/s", "prompt_tokens": 8, "output_tokens": 20},
        "cluster": {"instances": 2, "dp": 2, "model": EXPERTS, "latency": LINEAR, "kv": {"gpu_blocks": 1000}},
        "faults": [{"at": "50ms", "instance": "instance-0", "kind": "crash"}],
        "policies": {"routing": "round-robin"},
        "retries": 1,
        "warmup": 0,
    }
    result = headway.simulate(scenario, progress=False)
    states = {(change.instance, change.state) for change in result.states}
    assert {(0, "stopped"), (1, "stopped")} <= states and (2, "stopped") not in states
    assert set(result.requests["instance"]) == {2, 3}
    assert result.summary()["requests"]["completed"] == 40


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"ep": True}, "llama-3.1-8b has no experts"),
        ({"model": EXPERTS, "dp": 5, "tp": 2, "ep": True}, "2 × 5 GPUs cannot share the 8 experts of toy"),
        (
            {
                "model": EXPERTS,
                "architecture": "disaggregated",
                "prefill": {"instances": 1, "dp": 9, "ep": True},
                "decode": {"instances": 1},
            },
            r"cluster\.prefill\.ep: 1 × 9 GPUs cannot share the 8 experts of toy",
        ),
    ],
)
def test_what_cannot_be_is_refused(keys: Json, sentence: str) -> None:
    with pytest.raises(HeadwayError, match=sentence):
        cluster_views(keys)


@pytest.mark.parametrize("balance", ["vllm", "direct"])
def test_prefill_and_decode_pools_have_ranks_of_their_own(balance: str) -> None:
    """The router sees engines or ranks; requests name the ranks that computed their prompts and answers."""
    scenario = {
        "workload": {"requests": 60, "rate": "300/s", "prompt_tokens": 100, "output_tokens": 20},
        "cluster": {
            "architecture": "disaggregated",
            "model": EXPERTS,
            "gpu": "h200",
            "prefill": {"instances": 1, "dp": 2, "dp_balance": balance},
            "decode": {"instances": 1, "dp": 3, "ep": True, "dp_balance": balance},
            "latency": {"model": "hardware", "host": "1ms"},
        },
        "policies": {"routing": {"name": "pair", "prefill": "round-robin", "decode": "round-robin"}},
        "warmup": 0,
    }
    result = headway.simulate(scenario, progress=False)
    assert result.summary()["requests"]["completed"] == 60
    assert set(result.requests["prefill_instance"]) == {0, 1}
    assert set(result.requests["instance"]) == {2, 3, 4}
    roles = [view.role for view in cluster_views(scenario["cluster"]) if view.id]
    shown = {"vllm": ["prefill", "decode"], "direct": ["prefill"] * 2 + ["decode"] * 3}
    assert roles == shown[balance]


# Rate -> mean TPOT in ms of the ranks and of the instances, as docs/model.md prints them.
COMPARED = {"2/s": (6.83, 5.72), "8/s": (11.25, 12.32), "16/s": (14.01, 17.68)}


@pytest.mark.full
@pytest.mark.parametrize("rate", COMPARED)
def test_ranks_written_as_instances_err_in_both_directions(rate: str) -> None:
    lengths = {
        "prompt_tokens": {"dist": "lognormal", "mean": 1000, "std": 600, "min": 16, "max": 8000},
        "output_tokens": {"dist": "lognormal", "mean": 250, "std": 150, "min": 2, "max": 2000},
    }
    found = []
    for kind in ({"instances": 1, "dp": 2, "ep": True}, {"instances": 2}):
        latency = {"model": "hardware", "engine": "vllm-0.19"}
        cluster = {"model": "qwen3-30b-a3b", "gpu": "h200", "latency": latency, **kind}
        cluster["async_scheduling"] = False
        workload = {"requests": 400, "rate": rate, **lengths}
        scenario = {"workload": workload, "cluster": cluster, "policies": {"routing": "least-outstanding"}}
        found.append(headway.simulate({**scenario, "warmup": 20}, progress=False).summary()["latency"]["tpot"]["mean"])
    assert tuple(round(mean, 2) for mean in found) == COMPARED[rate]
    table = (ROOT / "docs" / "model.md").read_text(encoding="utf-8")
    assert f"| {rate} | {found[0]:.2f} ms | {found[1]:.2f} ms |" in table


def test_with_asynchronous_scheduling_an_arrival_at_one_rank_misses_the_next_joint_step(run: Any) -> None:
    """The second request arrives in the first step of 6 ms. The second step has only one decode, 2 ms, and the third
    one has the prefill and the last token of the first request, 6 ms."""
    requests = [(0, 4, 3), (1, 4, 1)]
    assert ends_ms(run(requests, 0, 1)) == [14, 12]
    assert ends_ms(run(requests, 0, 1, async_scheduling=True)) == [14, 14]


def test_an_idle_engine_with_asynchronous_scheduling_begins_at_once(run: Any) -> None:
    assert ends_ms(run([(0, 4, 3), (30, 4, 1)], 0, 1, async_scheduling=True)) == [10, 36]
