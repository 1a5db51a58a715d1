"""Live traffic as run folders that the other commands read."""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

import fake_engine
from asking import chat, fetch

from headway.errors import HeadwayError
from headway.experiment.explain import explain
from headway.gateway.config import Config
from headway.report.page import report
from headway.results.result import Result


def written(live, folder: Path) -> list[Result]:
    """All that was written of a gateway, which ends."""
    records = live.app.records
    live.call(records.stop())
    return [Result.load(place) for place in sorted(folder.glob("*/*"))]


def test_a_folder_tells_what_became_of_each_request(live, tmp_path):
    gateway = live(3, records=str(tmp_path / "traffic"), policies={"routing": "kv-aware"}, explain="all")
    targets = []
    for number in range(20):
        answer = chat(gateway, f"number {number % 4} " * 60, stream=number % 2 == 0, x_headway_tenant=f"t{number % 2}")
        targets.append(answer.headers["x-headway-target"])
    gateway.engines[0].mode = gateway.engines[1].mode = gateway.engines[2].mode = "error"
    assert chat(gateway).status == 500
    gateway.until(gateway.idle)
    (result,) = written(gateway, tmp_path / "traffic")
    names, requests = result.instance_ids(), result.requests
    assert [names[index] for index in requests["instance"][:20]] == targets
    assert requests["outcome"] == ["completed"] * 20 + ["failed"]
    assert requests["reason"][20] == "status 500" and requests["tenant"][:2] == ["t0", "t1"]
    assert requests["output_tokens"][:4] == [5, 7, 5, 7]
    for arrival, sent, first, finished in zip(
        *(requests[name][:20] for name in ("arrival_ps", "routed_ps", "first_token_ps", "finished_ps")), strict=True
    ):
        assert arrival <= sent <= first <= finished
    assert result.summary()["requests"]["completed"] == 20
    assert sum(each["requests"] for each in result.summary()["instances"]) == 21
    assert [tenant["id"] for tenant in result.summary()["tenants"]] == ["default", "t0", "t1"]
    assert result.decisions is not None and len(result.decisions) >= 21
    first = result.decisions[0]
    assert (first.request, len(first.candidates), len(first.totals)) == (0, 3, 3)
    assert names[first.target] == targets[0]
    last = result.decisions[19]
    assert last.router_state is not None and last.tenant is not None
    assert (last.router_state.inflight, last.router_state.queued) == (0, 0) and last.router_state.throughput > 0
    assert (last.tenant.name, last.tenant.requests, last.tenant.active) == ("t1", 10, 0)
    assert last.reason and last.prompt_tokens > 0 and last.prefix == result.decisions[15].prefix != ""
    assert max(mean for mean in last.recent_ttft if mean is not None) > 0
    assert list(last.scores) == ["score", "kv", "load", "power", "capacity"]


@pytest.mark.usefixtures("records_written_here")
def test_decisions_have_the_kv_use_of_the_engines_even_if_no_policy_reads_it(live, tmp_path):
    gateway = live(2, records=str(tmp_path / "traffic"), policies={"routing": "round-robin"})
    for _ in range(3):
        chat(gateway)
    gateway.until(gateway.idle)
    (result,) = written(gateway, tmp_path / "traffic")
    assert result.decisions is not None
    assert [len(each.kv_used) for each in result.decisions] == [2, 2, 2]
    assert [each.tier_used for each in result.decisions] == [[], [], []]  # no engine reports it


@pytest.mark.usefixtures("records_written_here")
def test_report_and_explain_work_on_it(live, tmp_path, headway):
    gateway = live(2, records=str(tmp_path / "traffic"), policies={"routing": "kv-aware"})
    for number in range(12):
        chat(gateway, f"number {number % 3} " * 60, stream=True)
    gateway.until(gateway.idle)
    written(gateway, tmp_path / "traffic")
    (folder,) = (tmp_path / "traffic").glob("*/*")
    page = report(folder, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "live traffic" in page and "To run it again" not in page and "kv-aware" in page
    explanation = explain(folder, 4)
    assert explanation["decision"]["target"] in ("e0", "e1") and explanation["decision"]["live"]
    assert explanation["request"]["believed_tokens"] > 0 and explanation["request"]["cached_tokens"] is None
    process = headway("explain", str(folder), "4")
    assert process.returncode == 0 and "live traffic cannot be simulated again" in " ".join(process.stdout.split())
    for verb in ("summarize", "timeline"):
        assert headway(verb, str(folder), cwd=tmp_path).returncode == 0


@pytest.mark.usefixtures("records_written_here")
def test_what_engines_tell_of_their_cache_is_what_counts(live, tmp_path, monkeypatch):
    usage = {"prompt_tokens": 200, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 96}}
    original = fake_engine.Connection.say
    monkeypatch.setattr(
        fake_engine.Connection, "say", lambda self, status, body: original(self, status, {**body, "usage": usage})
    )
    gateway = live(1, records=str(tmp_path), policies={"routing": "kv-aware"})
    for _ in range(3):
        chat(gateway, "the same again " * 60)
    gateway.until(gateway.idle)
    (result,) = written(gateway, tmp_path)
    assert result.requests["prompt_tokens"] == [200] * 3 and result.requests["cached_tokens"] == [96] * 3
    assert result.requests["predicted_tokens"][0] == 0 < result.requests["predicted_tokens"][1]
    assert result.summary()["shadow"]["unexpected_hits"] == 1


@pytest.mark.usefixtures("records_written_here")
def test_a_folder_holds_so_many_requests_and_is_called_after_its_first(live, tmp_path):
    gateway = live(2, records={"folder": str(tmp_path), "requests": 5})
    for _ in range(12):
        chat(gateway)
        gateway.until(lambda: gateway.app.records.writing == 0)
    gateway.until(gateway.idle)
    results = written(gateway, tmp_path)
    assert [len(result.requests) for result in results] == [5, 5, 2]
    assert [place.name for place in sorted(tmp_path.glob("0001/*"))] == ["000000000", "000000005", "000000010"]


@pytest.mark.usefixtures("records_written_here")
def test_other_policies_begin_another_folder(live, tmp_path):
    gateway = live(2, records=str(tmp_path), policies={"routing": "round-robin"})
    chat(gateway)
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.switch.swap, {"routing": "kv-aware"}, "test")
    gateway.until(lambda: gateway.app.plane.version == 1)
    chat(gateway)
    gateway.until(gateway.idle)
    results = written(gateway, tmp_path)
    assert [result.scenario["policies"]["routing"] for result in results] == ["round-robin", "kv-aware"]
    assert [len(result.requests) for result in results] == [1, 1]


@pytest.mark.usefixtures("records_written_here")
def test_an_engine_that_takes_anothers_place_begins_another_folder(live, tmp_path):
    gateway, other = live(1, records=str(tmp_path), max_backends=1), live(1)
    chat(gateway)
    gateway.until(gateway.idle)

    async def replaced() -> None:
        spec = Config.load({"backends": {"new": f"http://127.0.0.1:{other.engines[0].port}"}}).backends
        gateway.app.fleet.offer("file", {})
        gateway.app.fleet.sweep()
        gateway.app.fleet.offer("file", spec)

    gateway.call(replaced())
    assert chat(gateway).headers["x-headway-target"] == "new"
    gateway.until(gateway.idle)
    results = written(gateway, tmp_path)
    assert [list(result.instance_ids().values()) for result in results] == [["e0"], ["new"]]


@pytest.mark.usefixtures("records_written_here")
def test_who_is_under_way_at_the_end_is_in_flight(live, tmp_path):
    gateway = live(1, records=str(tmp_path))
    gateway.engines[0].mode = "hang"
    asking = threading.Thread(target=lambda: _lost(gateway), daemon=True)
    asking.start()
    gateway.until(lambda: gateway.engines[0].under_way == 1)
    (result,) = written(gateway, tmp_path)
    assert result.requests["outcome"] == ["in_flight"] and result.requests["finished_ps"] == [-1]


@pytest.mark.usefixtures("records_written_here")
def test_all_stretches_that_are_open_at_the_end_are_written(live, tmp_path):
    """Each has one that never ends; more of them than are written at a time."""
    gateway = live(1, records={"folder": str(tmp_path), "requests": 1})
    for number in range(4):
        gateway.engines[0].mode = "hang"
        threading.Thread(target=lambda: _lost(gateway), daemon=True).start()
        gateway.until(lambda wanted=number + 1: gateway.engines[0].under_way == wanted)
        gateway.engines[0].mode = "ok"
        chat(gateway)
    gateway.until(lambda: len(gateway.app.records.pending) == 4)
    gateway.call(gateway.app.drain(0))
    results = [Result.load(place) for place in sorted(tmp_path.glob("*/*"))]
    assert [result.requests["outcome"] for result in results] == [["failed", "completed"]] * 4
    assert gateway.app.records.lost == 0


def _lost(gateway):
    with suppress(OSError):  # the gateway ends first
        chat(gateway)


@pytest.mark.usefixtures("records_written_here")
def test_each_process_has_a_folder_of_its_own(live, tmp_path):
    first, second = live(1, records=str(tmp_path)), live(1, records=str(tmp_path))
    assert [gateway.app.records.place.name for gateway in (first, second)] == ["0001", "0002"]
    for gateway in (first, second):
        chat(gateway)
        gateway.until(gateway.idle)
        written(gateway, tmp_path)
    assert len(list(tmp_path.glob("*/000000000/manifest.json"))) == 2


@pytest.mark.usefixtures("records_written_here")
def test_no_decisions_are_kept_where_they_are_not_wanted(live, tmp_path):
    gateway = live(1, records={"folder": str(tmp_path), "decisions": False})
    chat(gateway)
    gateway.until(gateway.idle)
    (result,) = written(gateway, tmp_path)
    assert result.decisions is None and len(result.requests) == 1


@pytest.mark.usefixtures("records_written_here")
def test_an_embedding_and_a_refusal_are_written_too(live, tmp_path):
    gateway = live(
        1, records=str(tmp_path), policies={"admission": {"name": "token-bucket", "rate": 0.001, "burst": 1}}
    )
    fetch(f"{gateway.url}/embeddings", json.dumps({"model": "m", "input": ["a"]}).encode())
    assert chat(gateway).status in (429, 503)
    gateway.until(gateway.idle)
    (result,) = written(gateway, tmp_path)
    assert result.requests["kind"] == ["embedding", "chat"]
    assert result.requests["outcome"] == ["completed", "rejected"] and result.requests["instance"] == [0, -1]
    assert result.decisions is not None and [gateway.verdict for gateway in result.decisions.verdicts] == ["rejected"]


def test_a_folder_that_cannot_be_written_is_told(tmp_path, live):
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="records: cannot write to "):
        live(1, records=str(tmp_path / "file"))
    with pytest.raises(HeadwayError, match=r"records\.roll: must be greater than zero"):
        Config.load({"backends": {"a": "http://x"}, "records": {"folder": "x", "roll": "0s"}})
