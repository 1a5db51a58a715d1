"""A gateway's journal: a replay gives the same decisions."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

from openai_client import openai, openai_client

from headway.cli import status
from headway.errors import HeadwayError
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.engines.member import BackendSpec
from headway.gateway.live_policies import read_policies
from headway.gateway.plane import Plane
from headway.gateway.tape import Tape, records, replay
from headway.types import Path, Request


def ask(gateway, number, stream=False):
    client = openai_client(gateway.url)
    messages = [{"role": "user", "content": f"{number % 5} " * 300 + str(number)}]
    try:
        answer = client.chat.completions.create(model="m", messages=messages, stream=stream, user=f"u{number % 7}")
        if stream:
            list(answer)
    except openai.APIError:
        pass


def traffic(gateway, count):
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: ask(gateway, number, number % 3 == 0), range(count)))


def write_journal(file, entries):
    with file.open("wb") as out:
        for record in entries:
            data = msgspec.msgpack.encode(record)
            out.write(len(data).to_bytes(4, "big") + data)


@pytest.mark.parametrize("routing", ["lmetric", "power-of-two", "kv-aware", "session-affinity", "weighted"])
def test_a_replay_gives_the_same_decisions(live, tmp_path, routing):
    file = tmp_path / "journal"
    gateway = live(3, policies={"routing": routing}, journal=str(file))
    app = gateway.app
    traffic(gateway, 20)
    gateway.engines[0].mode = "reset"
    traffic(gateway, 10)
    gateway.engines[0].mode = "ok"
    gateway.loop.call_soon_threadsafe(app.fleet.cordon, "e0")
    traffic(gateway, 10)
    gateway.loop.call_soon_threadsafe(app.fleet.uncordon, "e0")
    gateway.loop.call_soon_threadsafe(app.switch.swap, {"routing": "least-loaded", "flow": {"name": "bands"}}, "test")
    gateway.loop.call_soon_threadsafe(app.plane.report, app.clock.now_ps(), 2, {"queued": 3, "running": 9})
    traffic(gateway, 10)
    added = {"e9": BackendSpec.read("e9", f"http://127.0.0.1:{gateway.engines[0].port}", "x")}
    gateway.loop.call_soon_threadsafe(app.fleet.offer, "admin", added)
    traffic(gateway, 10)
    gateway.loop.call_soon_threadsafe(app.fleet.offer, "admin", {})
    traffic(gateway, 10)
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(app.tape.flush)
    gateway.until(lambda: not app.tape._buffer)
    replayed = replay(file)
    assert replayed.decisions >= 70
    assert replayed.different == 0, replayed.differences
    kinds = {record[1] for record in records(file) if isinstance(record, list)}
    assert {"arrive", "finished", "first_token", "resend", "changed", "swap", "join", "leave", "report"} <= kinds


def test_a_different_decision_is_reported(live, tmp_path, capsys):
    file, other = tmp_path / "journal", tmp_path / "other"
    gateway = live(2, policies={"routing": "round-robin"}, journal=str(file))
    traffic(gateway, 6)
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)
    assert status(["replay", str(file)]) == 0
    assert "6 decisions, all equal" in capsys.readouterr().out
    head, *rest = records(file)
    changed = [[at, kind, [p[0], "e7"]] if kind == "decided" and p[0] == 3 else [at, kind, p] for at, kind, p in rest]
    write_journal(other, [head, *changed])
    assert status(["replay", "--json", str(other)]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["different"], document["differences"][0]["then"]) == (1, "e7")


def test_a_journal_names_its_rule_of_load_and_one_without_was_by_snapshots(tmp_path):
    different = {}
    for rule in ("snapshot", "outstanding"):
        file = tmp_path / rule
        settings = PlaneSettings(2, read_policies({"routing": "least-outstanding"}), effective_load=rule)
        tape = Tape(file, settings, 10**6)
        plane = Plane(settings, tape)
        for place in range(2):
            plane.join(0, place, {"id": f"e{place}", "serves": []})
            plane.changed(0, place, "ready")
        for number in range(4):
            plane.arrive(number, Request(number, number, 64, Path((), ())))
        for place, running in ((0, 2), (1, 3)):
            plane.report(10, place, {"queued": 0, "running": running})
        for number in (1, 3):
            plane.finished(20, number, "completed", 1)
        for number in range(4, 8):
            plane.arrive(30, Request(number, 30, 64, Path((), ())))
        tape.close()
        assert replay(file).different == 0
        head, *rest = records(file)
        assert head.pop("effective_load") == rule
        write_journal(tmp_path / "old", [head, *rest])
        different[rule] = replay(tmp_path / "old").different
    assert different["snapshot"] == 0 < different["outstanding"]


def test_a_truncated_journal_is_read_up_to_its_end(live, tmp_path):
    file = tmp_path / "journal"
    gateway = live(2, journal=str(file))
    traffic(gateway, 12)
    gateway.until(gateway.idle)
    gateway.loop.call_soon_threadsafe(gateway.app.tape.flush)
    gateway.until(lambda: not gateway.app.tape._buffer)
    whole = file.read_bytes()
    cut = tmp_path / "cut"
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    replayed = replay(cut)
    assert 0 < replayed.decisions < 12
    assert replayed.different == 0


def test_a_journal_has_a_limit(tmp_path):
    file = tmp_path / "journal"
    tape = Tape(file, PlaneSettings(1, {}), 1000)
    for number in range(1000):
        tape(number, "give_up", (number,))
    tape.flush()
    tape.close()
    assert file.stat().st_size <= 1000


def test_a_second_gateway_does_not_empty_the_journal_of_the_first(tmp_path):
    file = tmp_path / "journal"
    tape = Tape(file, PlaneSettings(1, {}), 1000)
    tape(0, "give_up", (0,))
    tape.flush()
    with pytest.raises(HeadwayError, match="another gateway writes to journal"):
        Tape(file, PlaneSettings(1, {}), 1000)
    assert len(list(records(file))) == 2
    tape.close()
    for number in (1, 2):  # what was written stays, under another name
        Tape(file, PlaneSettings(number, {}), 1000).close()
        assert len(list(records(file))) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal", "journal.1.old", "journal.2.old"]
    assert len(list(records(tmp_path / "journal.1.old"))) == 2


@pytest.mark.parametrize("content", [b"", b"not a journal at all", b"\x00\x00\x00\x01\xc1"])
def test_a_file_that_is_not_a_journal_is_reported(tmp_path, content):
    file = tmp_path / "x"
    file.write_bytes(content)
    with pytest.raises(HeadwayError, match="is not the journal of a gateway"):
        replay(file)
    with pytest.raises(HeadwayError, match="cannot be read"):
        replay(tmp_path / "none")
