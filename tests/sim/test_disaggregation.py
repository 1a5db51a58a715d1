"""Prompts computed on other instances than those that generate: the way of a request, of its blocks and of its tokens,
by hand and at random."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.experiment.run import prepare
from headway.results.records import KvMove
from headway.scenario.scenario import Scenario
from headway.sim.simulation import Simulation
from headway.types import PS_PER_SECOND

MS = PS_PER_SECOND // 1000
US = MS // 1000
BLOCK = 16
TOKEN_BYTES = 131_072  # of llama-3.1-8b: 2 × 32 layers × 8 heads × 128 × 2 bytes
LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")


def trace(folder: Path, *requests: tuple[int, int, int]) -> dict[str, Any]:
    """Requests as (ms of arrival, prompt tokens, output tokens), whose prompts share nothing."""
    lines: list[dict[str, Any]] = [{"headway_trace": 1, "origin": "made", "block_tokens": BLOCK}]
    for number, (at, prompt, output) in enumerate(requests):
        blocks = [(1000 * (number + 1), -(-prompt // BLOCK))]
        lines.append({"prompt_tokens": prompt, "output_tokens": output, "at_ps": at * MS, "blocks": blocks})
    file = folder / "requests.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {"trace": {"path": str(file), "sessions": "none"}}


def scenario(workload: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A token of a prompt takes 0.1 ms, a step that decodes 10 ms, a transfer 5 ms and as long as its bytes do."""
    cluster = {
        "architecture": "disaggregated",
        "prefill": {"instances": 1},
        "decode": {"instances": 1},
        "transfer": {"latency": "5ms", "bandwidth": f"{TOKEN_BYTES * 16_000}B/s"},  # a block a millisecond
        "latency": {"model": "fixed", "prefill_tokens_per_s": 10_000, "decode_tokens_per_s": 100},
        "kv": {"gpu_blocks": 1000},
    }
    return {"workload": workload, "cluster": cluster | changes, "policies": {"routing": "least-loaded"}}


def ms(result: headway.Result, column: str) -> list[float]:
    return [at / MS for at in result.requests[column]]


@pytest.mark.parametrize("leap", LEAPS)
def test_one_request_takes_queue_and_prefill_and_transfer_and_decode(tmp_path: Path, leap: bool | str) -> None:
    result = headway.simulate({**scenario(trace(tmp_path, (7, 160, 5))), "leap": leap})
    assert ms(result, "started_ps") == [7]  # no queue
    assert ms(result, "handed_ps") == ms(result, "first_token_ps") == [7 + 16]  # 160 tokens
    assert ms(result, "transfer_ps") == [23]
    assert ms(result, "transferred_ps") == [23 + 10 + 5]  # ten blocks, and the latency
    assert ms(result, "finished_ps") == [38 + 4 * 10]  # the other four tokens
    assert result.requests["prefill_instance"] == [0]
    assert result.requests["instance"] == [1]
    found = result.summary()["transfer"]
    assert (found["count"], found["bytes"]) == (1, 160 * TOKEN_BYTES)
    assert found["bytes_per_s"] == 160 * TOKEN_BYTES * 1000 / 71
    assert found["wait"]["mean"] == 0.0
    assert found["time"]["mean"] == 15.0
    assert found["link_utilization"] == 10 / 71


@pytest.mark.parametrize("leap", LEAPS)
@pytest.mark.parametrize("pipelined", [False, True])
def test_a_full_trace_records_each_handover(tmp_path: Path, leap: bool | str, pipelined: bool) -> None:
    transfer = {"latency": "5ms", "bandwidth": f"{TOKEN_BYTES * 16_000}B/s", "pipelined": pipelined}
    requests = trace(tmp_path, (7, 160, 5), (9, 320, 3), (11, 32, 1))
    result = headway.simulate({**scenario(requests, transfer=transfer), "leap": leap}, trace="full")
    moves = [event for event in result.events if isinstance(event, KvMove)]
    column = {name: result.requests[name] for name in ("transfer_ps", "transferred_ps")}
    assert [(one.request, one.blocks, one.kind, one.source, one.target) for one in moves] == [
        (0, 10, "pd_handoff", "gpu", "gpu"),
        (1, 20, "pd_handoff", "gpu", "gpu"),
    ]
    for one in moves:
        assert (one.at_ps, one.end_ps) == (column["transfer_ps"][one.request], column["transferred_ps"][one.request])
        assert (one.instance, one.to_instance) == (0, 1)
    assert moves[0].end_ps > moves[0].at_ps


def test_the_first_token_may_be_delivered_where_the_others_are(tmp_path: Path) -> None:
    given = scenario(trace(tmp_path, (0, 160, 5)))
    given["cluster"]["transfer"]["first_token"] = "decode"
    result = headway.simulate(given)
    assert ms(result, "handed_ps") == [16]
    assert ms(result, "transferred_ps") == [31]
    # The last token of the prompt is computed again for it, in a step of 0.1 ms.
    assert ms(result, "first_token_ps") == [31.1]
    assert ms(result, "finished_ps") == [71.1]


@pytest.mark.parametrize(("granularity", "blocks"), [("stream", 150 / 16), ("block", 10), ("chunk", 128)])
def test_what_is_moved_is_a_multiple_of_the_granularity(tmp_path: Path, granularity: str, blocks: float) -> None:
    given = scenario(trace(tmp_path, (0, 150, 2)))
    given["cluster"]["transfer"]["granularity"] = granularity
    result = headway.simulate(given)
    assert result.summary()["transfer"]["bytes"] == blocks * 16 * TOKEN_BYTES
    assert ms(result, "transferred_ps") == [15 + blocks + 5]


def test_two_transfers_on_one_link_take_what_fair_sharing_says(tmp_path: Path) -> None:
    # Two instances to go to, so that neither waits for the other's steps. The prompts are computed by 16 and 24 ms.
    given = scenario(trace(tmp_path, (0, 160, 2), (0, 80, 2)), decode={"instances": 2}, max_batch_tokens=160)
    result = headway.simulate(given)
    assert ms(result, "transfer_ps") == [16, 24]
    # Of ten blocks two are left at 24 ms; they share the link with five others: 4 ms for these two, then three alone.
    assert ms(result, "transferred_ps") == [28 + 5, 31 + 5]
    assert result.summary()["instances"][0]["link_utilization"] == (31 - 16) / (36 + 10)


def test_a_request_waits_while_the_other_side_is_full_and_is_never_dropped_for_that(tmp_path: Path) -> None:
    # Room for one of them at a time: 12 blocks are taken for 160 tokens and 20 more.
    given = scenario(trace(tmp_path, (0, 160, 20), (0, 160, 20)), decode={"instances": 1, "kv": {"gpu_blocks": 12}})
    result = headway.simulate(given)
    first, second = ms(result, "finished_ps")
    assert ms(result, "handed_ps") == [32, 32]
    assert ms(result, "transfer_ps")[1] == first
    assert second == first + 15 + 190
    assert result.summary()["requests"]["completed"] == 2
    assert result.summary()["transfer"]["wait"]["max"] == first - 32


@pytest.mark.parametrize("leap", LEAPS)
def test_pipelined_chunks_travel_while_the_next_are_computed(tmp_path: Path, leap: bool | str) -> None:
    given = {**scenario(trace(tmp_path, (0, 480, 5)), max_batch_tokens=160), "leap": leap}
    given["cluster"]["transfer"]["pipelined"] = True
    result = headway.simulate(given)
    # Chunks are computed by 16, 32 and 48 ms, and each has the link to itself for 10 ms.
    assert ms(result, "transfer_ps") == [16]
    assert ms(result, "handed_ps") == ms(result, "first_token_ps") == [48]
    assert ms(result, "transferred_ps") == [48 + 10 + 5]
    assert ms(result, "finished_ps") == [63 + 4 * 10]
    assert result.summary()["transfer"]["bytes"] == 480 * TOKEN_BYTES


def test_pipelined_chunks_queue_on_a_slow_link(tmp_path: Path) -> None:
    given = scenario(trace(tmp_path, (0, 480, 2)), max_batch_tokens=160)
    given["cluster"]["transfer"] |= {"pipelined": True, "bandwidth": f"{TOKEN_BYTES * 8_000}B/s"}  # 20 ms a chunk
    result = headway.simulate(given)
    # From 32 ms on two chunks share the link, of the first 4 ms being left: it leaves at 40. Then the second has 16 ms
    # left, and from 48 ms on, with 8 of them, shares with the third until 64; that has then had 8 of its 20 ms.
    assert ms(result, "transferred_ps") == [76 + 5]


@pytest.mark.parametrize("granularity", ["block", "chunk", "stream"])
def test_pipelined_or_not_the_same_bytes_are_moved(tmp_path: Path, granularity: str) -> None:
    # Steps of 200 tokens end within a block, and the second prompt begins in the middle of one.
    given = scenario(trace(tmp_path, (0, 330, 2), (0, 540, 2)), max_batch_tokens=200)
    moved = []
    for pipelined in (False, True):
        given["cluster"]["transfer"] |= {"granularity": granularity, "pipelined": pipelined}
        moved.append(headway.simulate(given).summary()["transfer"]["bytes"])
    tokens = {"block": (21 + 34) * 16, "chunk": (2 + 3) * 200, "stream": 330 + 540}[granularity]
    assert moved == [tokens * TOKEN_BYTES] * 2


@pytest.mark.parametrize("leap", LEAPS)
def test_no_prompt_is_begun_while_the_other_side_waits_for_enough(tmp_path: Path, leap: bool | str) -> None:
    given = {**scenario(trace(tmp_path, (0, 160, 2), (0, 160, 2)), max_batch_tokens=160), "leap": leap}
    given["cluster"]["transfer"]["max_incoming"] = 1
    result = headway.simulate(given)
    assert ms(result, "transferred_ps")[0] == 16 + 15
    assert ms(result, "started_ps") == [0, 31]
    assert ms(result, "handed_ps") == [16, 31 + 16]


def test_scenario_p_d_handoff_in_disaggregated_mode(tmp_path: Path) -> None:
    # Given deployment uses disaggregated P/D architecture
    prepared = prepare(Scenario.load(scenario(trace(tmp_path, (0, 160, 5)))))
    simulation = prepared.simulation()
    p0, d0 = simulation.cluster.instances
    held: list[tuple[int, int, int]] = []
    watch(simulation, held)
    recorder = simulation.run(prepared.traffic())
    # When prefill completes on prefill instance P0
    handed = recorder.handed_ps[0]
    assert (p0.view.id, p0.view.role, handed) == ("prefill-0", "prefill", 16 * MS)
    # Then KV blocks transfer to decode instance D0
    assert (d0.view.id, d0.view.role) == ("decode-0", "decode")
    arrived = recorder.transferred_ps[0]
    assert held[0] == (arrived - 1, 10, 10)  # on their way they are still P0's, and have their places on D0
    # And decode begins only after transfer completes
    assert recorder.finished_ps[0] == arrived + 4 * 10 * MS
    # And P0 marks transferred blocks as TRANSFERRED: it holds none of them any more, and does not have them cached
    assert {here for at, here, _ in held if at >= arrived} == {0}
    assert p0.cache.match(recorder_path(prepared), 10) == 0
    assert d0.cache.match(recorder_path(prepared), 10) == 10


def watch(simulation: Simulation, held: list[tuple[int, int, int]]) -> None:
    """What both instances hold, just before a transfer arrives and then."""
    p0, d0 = simulation.cluster.instances
    settle = simulation.dispatcher.handovers.on_loaded

    def loaded(now: int, load: Any) -> None:
        held.append((now - 1, p0.cache.held, d0.cache.held))
        settle(now, load)
        held.append((now, p0.cache.held, d0.cache.held))

    simulation.dispatcher.handovers.on_loaded = loaded  # type: ignore[method-assign]


def recorder_path(prepared: Any) -> Any:
    return prepared.traffic().take().request.path.blocks(BLOCK)


@pytest.mark.parametrize("keep", [False, True])
def test_the_instance_that_computed_a_prompt_keeps_a_copy_only_where_it_is_told_to(tmp_path: Path, keep: bool) -> None:
    workload = trace(tmp_path, (0, 161, 2), (1000, 161, 2))
    file = Path(workload["trace"]["path"])
    file.write_text(file.read_text().replace("[[2000, 11]]", "[[1000, 11]]").replace("[2000, 11]", "[1000, 11]"))
    given = scenario(workload)
    given["cluster"]["transfer"]["keep_prefill_copy"] = keep
    result = headway.simulate(given)
    assert result.requests["cached_tokens"] == [0, 160 if keep else 0]
    moved = result.summary()["transfer"]["bytes"]
    assert moved == (11 + 1) * 16 * TOKEN_BYTES  # the other side has it the second time, but for the last block


@pytest.mark.parametrize("half", ["prefill", "decode"])
def test_what_can_never_fit_into_either_half_is_turned_away_by_name(tmp_path: Path, half: str) -> None:
    workload = trace(tmp_path, (0, 160, 200), (10, 16, 2))
    result = headway.simulate(scenario(workload, **{half: {"instances": 1, "kv": {"gpu_blocks": 9}}}))
    assert result.requests["outcome"] == ["rejected", "completed"]
    needed = 10 if half == "prefill" else 23  # the prompt, or all but the last token
    assert result.requests["reason"][0] == f"needs {needed} KV blocks, {half}-0 has 9"


def test_a_thousand_requests_on_the_shipped_example_all_end_and_add_up() -> None:
    result = headway.simulate(ROOT / "examples" / "13_disaggregated.yaml")
    summary, requests = result.summary(), result.requests
    assert summary["requests"]["arrived"] == summary["requests"]["completed"] == 1000
    instances = summary["instances"]
    assert [one["role"] for one in instances] == ["prefill"] * 2 + ["decode"] * 6
    assert sum(one["requests"] for one in instances[:2]) == sum(one["requests"] for one in instances[2:]) == 1000
    assert summary["transfer"]["count"] == 1000
    assert sum(one["output_tokens"] for one in instances[2:]) == sum(requests["output_tokens"])
    assert sum(one["prefill_tokens"] + one["cached_tokens"] for one in instances[:2]) == sum(requests["prompt_tokens"])
    assert not any(one["prefill_tokens"] or one["cached_tokens"] for one in instances[2:])
    assert not any(one["output_tokens"] for one in instances[:2])
    assert sum(one["sent_bytes"] for one in instances[:2]) == summary["transfer"]["bytes"]


def test_a_request_of_one_token_that_the_first_instance_delivers_goes_nowhere_else(tmp_path: Path) -> None:
    result = headway.simulate(scenario(trace(tmp_path, (0, 160, 1))))
    assert result.requests["outcome"] == ["completed"]
    assert result.requests["transferred_ps"] == [-1]
    assert result.summary()["transfer"]["count"] == 0
    assert [one["output_tokens"] for one in result.summary()["instances"]] == [1, 0]
    assert [one["requests"] for one in result.summary()["instances"]] == [1, 1]  # it was meant for both


def test_who_is_preempted_where_it_generates_computes_its_prompt_there(tmp_path: Path) -> None:
    # Both fit at first, and then do not: 10 blocks each, and 5 more as they grow.
    given = scenario(trace(tmp_path, (0, 160, 60), (0, 160, 60)), decode={"instances": 1, "kv": {"gpu_blocks": 24}})
    result = headway.simulate(given)
    assert result.requests["outcome"] == ["completed"] * 2
    assert sum(result.requests["preemptions"]) >= 1
    prefill, decode = result.summary()["instances"]
    assert (prefill["prefill_tokens"], decode["prefill_tokens"]) == (320, 0)  # no token counts twice
    assert (prefill["output_tokens"], decode["output_tokens"]) == (0, 120)
    assert result.summary()["transfer"]["count"] == 2


def test_a_run_folder_has_the_transfers_and_another_does_not(tmp_path: Path) -> None:
    result = headway.simulate(scenario(trace(tmp_path, (0, 160, 5))))
    result.save(tmp_path / "run")
    assert headway.Result.load(tmp_path / "run") == result
    written = json.loads((tmp_path / "run" / "requests.jsonl").read_text())
    assert written["prefill_instance"] == 0
    assert (written["handed_ps"], written["transferred_ps"]) == (16 * MS, 31 * MS)
    other = headway.simulate({"workload": trace(tmp_path, (0, 160, 5)), "cluster": {"instances": 1}})
    other.save(tmp_path / "other")
    assert "prefill_instance" not in (tmp_path / "other" / "requests.jsonl").read_text()
    assert "transfer" not in other.summary()


@pytest.mark.parametrize("leap", LEAPS)
@pytest.mark.parametrize("offload", [None, "lazy", "eager"])
def test_the_index_hears_when_a_prompt_has_moved_on(tmp_path: Path, leap: bool | str, offload: str | None) -> None:
    """The first prompt is there at 33.6 ms, in the middle of a long run of its instance; word comes 20 ms later."""
    believed = {}
    for at in (53, 54):
        lines: list[dict[str, Any]] = [{"headway_trace": 1, "origin": "made", "block_tokens": BLOCK}]
        for when, key, tokens in ((0, 1000, 161), (1, 2000, 480), (at, 1000, 161)):
            blocks = [(key, -(-tokens // BLOCK))]
            lines.append({"prompt_tokens": tokens, "output_tokens": 5, "at_ps": when * MS, "blocks": blocks})
        (tmp_path / "requests.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        workload = {"trace": {"path": str(tmp_path / "requests.jsonl"), "sessions": "none"}}
        kv: dict[str, Any] = {"gpu_blocks": 1000}
        if offload is not None:
            kv |= {"offload": offload, "tiers": {"cpu": {"blocks": 1000}}}
        given = scenario(workload, kv=kv, prefill={"instances": 1, "max_batch_tokens": 16}) | {
            "policies": {"routing": {"name": "pair", "prefill": "prefix-affinity"}},
            "signals": {"kv_event_delay": "20ms"},
            "leap": leap,
        }
        result = headway.simulate(given)
        assert ms(result, "transferred_ps")[0] == 33.6 < ms(result, "handed_ps")[1] - 20
        believed[at] = result.requests["predicted_tokens"][2]
    assert believed == {53: 160, 54: 160 if offload == "eager" else 0}  # of which there is a copy below
