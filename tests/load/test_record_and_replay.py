"""Traffic that the gateway has recorded, replayed as a trace."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from emulated import Emulated

from headway import simulate
from headway.errors import HeadwayError
from headway.load.asking import Ask
from headway.load.driver import load
from headway.results.result import Result
from headway.workload.traces import open_trace

pytestmark = pytest.mark.usefixtures("records_written_here")

CHAT = {"kind": "chat", "turns": 3, "think_time": "20ms"}
WORKLOAD = {
    "requests": 30,
    "rate": "20/s",
    "prompt_tokens": 400,
    "output_tokens": 6,
    "prefix": {"groups": 3, "tokens": 256},
    "kind": CHAT,
}
SCENARIO = {"seed": 3, "workload": WORKLOAD, "cluster": {"instances": 2, "latency": {"model": "fixed"}}}


def recording(live: Any, tmp_path: Path, scenario: dict[str, Any]) -> tuple[Path, Result]:
    """Return the folder of a process, and the clients' result."""
    engines = Emulated({"instances": 2}, speed=20.0)
    try:
        backends = {replica.name: engines.url(replica.index) for replica in engines.host.replicas}
        gateway = live(0, backends=backends, policies={"routing": "lmetric"}, records=str(tmp_path / "traffic"))
        seen = load(Ask(f"http://127.0.0.1:{gateway.port}", truth=True), scenario)
        gateway.until(gateway.idle)
        gateway.call(gateway.app.records.stop())
    finally:
        engines.stop()
    return tmp_path / "traffic" / "0001", seen


@pytest.fixture
def recorded(live: Any, tmp_path: Path) -> tuple[Path, Result]:
    return recording(live, tmp_path, SCENARIO)


def traced(folder: Path) -> list[Any]:
    return list(open_trace(folder, "records").records)


def test_a_trace_has_the_times_lengths_blocks_and_sessions_of_the_traffic(recorded: tuple[Path, Result]) -> None:
    folder, seen = recorded
    result = traced(folder)
    assert len(result) == 30 and [one.at_ps for one in result] == sorted(one.at_ps for one in result)
    assert sorted((one.prompt_tokens, one.output_tokens) for one in result) == sorted(
        zip(seen.requests.column("prompt_tokens"), seen.requests.column("output_tokens"), strict=True)
    )
    assert all(sum(count for _, count in one.blocks) == one.prompt_tokens // 16 for one in result)
    assert len({one.session for one in result}) == 10
    delays = sorted(one.delay_ps for one in result if one.delay_ps is not None)
    # The client waits 20 ms after each answer. On a busy machine the gateway may note the end of one later than that.
    assert len(delays) == 20 and delays[0] >= 0 and delays[10] >= 18 * 10**9
    assert {one.extra["target"] for one in result} == {"instance-0", "instance-1"}


def test_requests_without_a_session_come_at_their_times_however_slow_the_cluster(live: Any, tmp_path: Path) -> None:
    alone = {key: value for key, value in WORKLOAD.items() if key != "kind"}
    folder, _ = recording(live, tmp_path, {**SCENARIO, "workload": alone})
    result = traced(folder)
    assert {(one.session, one.delay_ps) for one in result} == {(None, None)}
    slow = {"instances": 1, "latency": {"model": "fixed", "prefill_tokens_per_s": 1000}}
    replayed = simulate({"workload": {"trace": {"path": str(folder)}}, "cluster": slow})
    assert list(replayed.requests.column("arrival_ps")) == [one.at_ps for one in result]


def test_requests_of_one_group_begin_with_the_same_blocks_and_the_next_turn_with_all_of_the_last(recorded: Any) -> None:
    result = traced(recorded[0])
    firsts = {one.blocks[0][0] for one in result}
    assert len(firsts) == 3
    by_session: dict[str, list[Any]] = {}
    for one in result:
        by_session.setdefault(one.session, []).append(expanded(one))
    for turns in by_session.values():
        for earlier, later in pairwise(turns):
            pairs = enumerate(zip(earlier, later, strict=False))
            same = next((at for at, pair in pairs if pair[0] != pair[1]), len(earlier))
            assert same * 16 >= 400 - 64  # the gateway's blocks have 64 tokens


def expanded(record: Any) -> list[int]:
    return [first + number for first, count in record.blocks for number in range(count)]


def test_replay_of_a_replay_is_the_same_to_the_byte(recorded: Any, headway: Any, tmp_path: Path) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    completed = headway("trace", "from-records", str(recorded[0]), "-o", str(first))
    assert completed.returncode == 0, completed.stderr
    assert "wrote 30 requests" in completed.stdout
    assert headway("trace", "convert", str(first), str(second)).returncode == 0
    assert first.read_bytes() == second.read_bytes()
    for name, file in (("one", first), ("two", first)):
        scenario = {"workload": {"trace": {"path": str(file)}}, "cluster": SCENARIO["cluster"]}
        place = tmp_path / f"{name}.json"
        place.write_text(json.dumps({**scenario, "name": "replay"}))
        assert headway("run", str(place), "-o", str(tmp_path / name)).returncode == 0
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert files == sorted(file.name for file in (tmp_path / "two").iterdir())
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_the_folder_itself_is_replayed_with_its_cache_hits(recorded: Any) -> None:
    folder, seen = recorded
    scenario = {"workload": {"trace": {"path": str(folder)}}, "cluster": SCENARIO["cluster"]}
    summary = simulate(scenario, routing="lmetric").summary()
    assert summary["requests"]["completed"] == 30
    assert summary["cache"]["token_hit_ratio"] == pytest.approx(seen.summary()["cache"]["token_hit_ratio"], abs=0.2)


def test_what_was_not_completed_is_left_out_and_told(live: Any, headway: Any, tmp_path: Path) -> None:
    from asking import chat

    one = live(1, records=str(tmp_path / "traffic"))
    chat(one, "a good one " * 40)
    one.engines[0].mode = "error"
    assert chat(one, "a bad one " * 40).status == 500
    one.until(one.idle)
    one.call(one.app.records.stop())
    completed = headway("trace", "from-records", str(tmp_path / "traffic" / "0001"), "-o", str(tmp_path / "t.jsonl"))
    assert completed.returncode == 0 and "1 requests that did not complete are skipped" in completed.stderr


def test_folders_that_are_not_whole_are_left_out_and_told(recorded: Any, headway: Any, tmp_path: Path) -> None:
    folder = recorded[0]
    (folder / "000000099").mkdir()
    completed = headway("trace", "from-records", str(folder), "-o", str(tmp_path / "a.jsonl"))
    assert completed.returncode == 0 and "wrote 30 requests" in completed.stdout
    assert "1 incomplete folders are skipped: 000000099" in completed.stderr
    prompts = folder / "000000000" / "prompts.jsonl"
    prompts.write_bytes(b"".join(prompts.read_bytes().splitlines(keepends=True)[:20]))
    completed = headway("trace", "from-records", str(folder), "-o", str(tmp_path / "b.jsonl"))
    assert completed.returncode == 0 and "wrote 20 requests" in completed.stdout
    assert "10 requests without a recorded prompt are skipped" in completed.stderr


def test_a_folder_without_records_is_told_in_a_sentence(tmp_path: Path, headway: Any) -> None:
    simulate(SCENARIO).save(tmp_path / "run")
    with pytest.raises(HeadwayError, match="no recorded live traffic with prompts"):
        open_trace(tmp_path / "run", "records")
    (tmp_path / "all" / "0001" / "000000000").mkdir(parents=True)
    (tmp_path / "all" / "0001" / "000000000" / "manifest.json").write_text("{}")
    with pytest.raises(HeadwayError, match=r"one folder per process\. Name one of them"):
        open_trace(tmp_path / "all", "records")
