"""Asynchronous scheduling: what the scheduler knows when it forms a step, and what the host's work costs."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.errors import HeadwayError
from headway.latency.overlap import Overlapped
from headway.scenario.cluster_spec import Cluster
from headway.types import PS_PER_SECOND

MS = PS_PER_SECOND // 1000
STEP_10MS = {
    "model": "linear",
    "step": "10ms",
    **dict.fromkeys(("prefill_token", "prefill_pair", "sequence", "context_token"), "0s"),
}
Row = dict[str, Any]


def simulate(tmp_path: Any, rows: list[tuple[float, int, int]], workload: Row | None = None, **cluster: Any) -> Row:
    """Run requests (arrival in ms, prompt, output) on one instance whose steps take 10 ms. Return its columns."""
    lines = [
        f'{{"timestamp": {at}, "input_length": {prompt}, "output_length": {output}, "hash_ids": [{number}]}}\n'
        for number, (at, prompt, output) in enumerate(rows)
    ]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(lines))
    settings = {"instances": 1, "async_scheduling": True, "latency": STEP_10MS, **cluster}
    result = headway.simulate(
        {
            "workload": {"trace": {"path": str(trace), "format": "mooncake"}, **(workload or {})},
            "cluster": settings,
        }
    )
    columns = {name: result.requests[name] for name in ("started_ps", "first_token_ps", "finished_ps")}
    return {name: [at / MS for at in values] for name, values in columns.items()} | {"result": result}


def test_a_request_that_arrives_during_a_step_joins_the_step_after_the_next(tmp_path: Any) -> None:
    rows = [(0, 10, 20), (25, 10, 2)]
    assert simulate(tmp_path, rows, async_scheduling=False)["started_ps"] == [0, 30]
    assert simulate(tmp_path, rows)["started_ps"] == [0, 40]


def test_an_arrival_at_a_step_boundary_joins_one_step_later(tmp_path: Any) -> None:
    rows = [(0, 10, 20), (30, 10, 2)]
    assert simulate(tmp_path, rows, async_scheduling=False)["started_ps"] == [0, 30]
    assert simulate(tmp_path, rows)["started_ps"] == [0, 40]


def test_an_idle_engine_begins_at_once(tmp_path: Any) -> None:
    assert simulate(tmp_path, [(0, 10, 2), (55, 10, 2)])["started_ps"] == [0, 55]


def test_if_no_step_was_formed_ahead_an_arrival_joins_at_the_next_boundary(tmp_path: Any) -> None:
    """The limits say that the first request ends after two steps, so no third step is formed while the second runs."""
    known = simulate(tmp_path, [(0, 10, 2), (15, 10, 2)], {"max_tokens": 2})
    assert known["started_ps"] == [0, 20] and known["finished_ps"] == [20, 40]


def test_an_end_that_nobody_could_foresee_costs_one_more_step(tmp_path: Any) -> None:
    """The result is not late. The third step of the first request is wasted, and the second request waits for it."""
    unknown = simulate(tmp_path, [(0, 10, 2), (15, 10, 2)])
    assert unknown["finished_ps"][0] == 20 and unknown["started_ps"][1] == 30
    (engine,) = unknown["result"].summary()["instances"]
    known = simulate(tmp_path, [(0, 10, 2)], {"max_tokens": 2})["result"].summary()["instances"][0]
    alone = simulate(tmp_path, [(0, 10, 2)])["result"].summary()["instances"][0]
    assert (known["busy_s"], alone["busy_s"]) == (0.02, 0.03)
    assert engine["busy_s"] == 0.06


def test_a_request_that_has_ended_keeps_its_slot_for_one_step(tmp_path: Any) -> None:
    rows = [(0, 10, 2), (1, 10, 5), (2, 10, 2)]
    usual = simulate(tmp_path, rows, {"max_tokens": 5}, async_scheduling=False, max_batch_size=2)
    ahead = simulate(tmp_path, rows, {"max_tokens": 5}, max_batch_size=2)
    assert usual["started_ps"] == [0, 10, 20]
    assert ahead["started_ps"] == [0, 20, 30]  # without the slot of the first, the third has to wait for one more step
    assert ahead["finished_ps"][0] == 20


class Affine:
    """A GPU whose steps grow by 3 ps."""

    def run(self, decodes: int, context: int, chunks: Any) -> tuple[int, int, int]:
        return 10 + 3 * context, 3 * decodes, 1000


@pytest.mark.parametrize("host", [0, 9, 10, 11, 25, 26, 27, 28])
def test_a_step_takes_as_long_as_the_gpu_or_the_host(host: int) -> None:
    """The form of a run holds exactly as long as the model says, and continues where it ends."""
    model = Overlapped(Affine(), host, 0)
    for context in range(12):
        expected = [max(host, 10 + 3 * (context + step)) for step in range(20)]
        found: list[int] = []
        while len(found) < 20:
            first, increment, steps = model.run(1, context + len(found), ())
            assert steps >= 1
            found += [first + increment * step for step in range(min(steps, 20 - len(found)))]
        assert found == expected


def test_only_the_first_step_after_a_pause_pays_for_the_host(tmp_path: Any) -> None:
    """The steps of the table take 10 ms of the GPU, beside 4 ms of the host."""
    table = {
        "model": "table",
        "host": "4ms",
        "rows": [
            *({"decodes": count, "context": context, "time": "10ms"} for count in (1, 4) for context in (1, 100)),
            *({"prefill": count, "past": past, "time": "10ms"} for count in (1, 64) for past in (0, 100)),
        ],
    }
    rows = [(0, 10, 3), (100, 10, 3)]
    usual = simulate(tmp_path, rows, {"max_tokens": 3}, latency=table, async_scheduling=False)
    ahead = simulate(tmp_path, rows, {"max_tokens": 3}, latency=table)
    assert usual["finished_ps"] == [42, 142] and ahead["finished_ps"] == [34, 134]
    table["host"] = "15ms"  # longer than the GPU's steps
    slow = simulate(tmp_path, rows, {"max_tokens": 3}, latency=table)
    assert slow["finished_ps"] == [55, 155]


SPECULATING = {"tokens": 1, "acceptance": 1, "draft": "0ms"}


@pytest.mark.parametrize(("output", "steps"), [(2, 2), (3, 3), (4, 3), (5, 4)])
def test_with_speculation_an_end_is_foreseen_only_one_token_before_it(tmp_path: Any, output: int, steps: int) -> None:
    """The prefill gives a token, and each step two. A step that begins with at least two tokens to come may give only
    one of them, so the engine has formed another one."""
    done = simulate(tmp_path, [(0, 10, output)], {"max_tokens": output}, speculation=SPECULATING)
    assert done["finished_ps"] == [10 * (1 + output // 2)]
    assert done["result"].summary()["instances"][0]["busy_s"] == 0.01 * steps


def test_with_speculation_the_work_of_the_host_is_hidden() -> None:
    def steps(host: str, **cluster: Any) -> tuple[int, int]:
        keys = {"gpu": "h200", "latency": {"model": "hardware", "host": host}, "speculation": SPECULATING, **cluster}
        model = Cluster.read(keys).verification()
        assert model is not None
        return model.run(8, 8000, ())[:2]

    gpu = steps("0ms")
    assert steps("1ms", async_scheduling=False)[0] == gpu[0] + MS
    assert steps("1ms", async_scheduling=True) == gpu
    assert steps("900ms", async_scheduling=True) == (900 * MS, 0)


def test_the_engine_of_2026_schedules_ahead_unless_the_host_drafts() -> None:
    for draft, ahead in (("ngram", False), ({"layers": 1}, True), ("1ms", True)):
        keys = {"gpu": "h200", "latency": {"engine": "vllm-0.19"}, "speculation": {**SPECULATING, "draft": draft}}
        assert Cluster.read(keys).schedules_ahead() == ahead


def test_only_engines_of_a_version_that_does_so_schedule_asynchronously_by_default() -> None:
    def ahead(**cluster: Any) -> bool:
        scenario = headway.Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": cluster})
        assert ("async_scheduling" in scenario.resolved()["cluster"]) == ("async_scheduling" in cluster)
        return scenario.cluster.schedules_ahead()

    assert not ahead()
    assert not ahead(gpu="rtx-4090")
    assert not ahead(latency={"engine": "vllm-2025"})
    assert ahead(latency={"engine": "vllm-0.19"}) and ahead(latency={"engine": "VLLM_0.19"})
    assert ahead(latency={"engine": "vllm-0.14"})
    assert not ahead(latency={"engine": "vllm-0.19"}, async_scheduling=False)
    assert ahead(latency={"model": "fixed"}, async_scheduling=True)


def test_a_host_time_that_may_be_hidden_is_not_fitted(tmp_path: Any) -> None:
    scenario = {"workload": {"requests": 2, "rate": "1/s"}, "cluster": {"gpu": "h200", "async_scheduling": True}}
    recorded = tmp_path / "run.csv"
    recorded.write_text("arrival,first_token,last_token,prompt_tokens,output_tokens\n0,1,2,512,128\n1,2,3,512,128\n")
    with pytest.raises(HeadwayError, match=r"async_scheduling.*cannot be fitted"):
        headway.calibrate_run(recorded, scenario)
