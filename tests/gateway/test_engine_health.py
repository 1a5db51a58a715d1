"""Health checks over real sockets."""

from __future__ import annotations

import asyncio
import errno
import json
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.engines.engine_health import Checks, HealthSettings, Pulse
from headway.http import open_files

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()


def start_checks(gateway, **settings):
    """Start health checks with these settings, in place of the gateway's own."""
    for part in gateway.app.components:
        if isinstance(part, Checks):
            gateway.call(part.stop())
    values = {"interval_s": 0.02, "timeout_s": 0.5, "fall": 2, "rise": 2, **settings}
    app = gateway.app
    checks = Checks(app.clock, app.fleet, app.health, HealthSettings(**values))
    gateway.app.components.append(checks)
    gateway.call(checks.start())
    return checks


def count_checks(engine):
    """Return the number of health checks that the engine received."""
    return sum(target == b"/health" for target, _ in engine.looked)


def ask(gateway):
    """Return the engine that answered, from the response header."""
    with socket.create_connection(("127.0.0.1", gateway.port), timeout=300) as sock:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        sock.sendall(head.encode() + BODY)
        data = b""
        while piece := sock.recv(65536):
            data += piece
    status, *lines = data.partition(b"\r\n\r\n")[0].split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines)
    return int(status.split()[1]), fields.get(b"x-headway-target", b"").decode()


def test_an_engine_that_fails_its_checks_gets_no_requests_until_it_passes_them(live):
    gateway = live(2, policies={"routing": "round-robin"})
    start_checks(gateway)
    views = gateway.app.plane.views
    gateway.until(lambda: all(count_checks(engine) > 0 for engine in gateway.engines))
    gateway.engines[0].health = 503
    gateway.until(lambda: views[0].state == "unreachable")
    assert gateway.app.fleet.names.get("e0").unready == {"check": "status 503"}
    assert {ask(gateway) for _ in range(6)} == {(200, "e1")}
    gateway.engines[0].health = 200
    gateway.until(lambda: views[0].state == "ready")
    assert {ask(gateway)[1] for _ in range(12)} == {"e0", "e1"}


def test_an_engine_that_hangs_or_is_gone_fails_its_checks(live):
    gateway = live(2)
    start_checks(gateway, timeout_s=0.1)
    views = gateway.app.plane.views
    gateway.engines[0].health = 0
    gateway.until(lambda: views[0].state == "unreachable")
    assert "Timeout" in gateway.app.fleet.names.get("e0").unready["check"]
    assert views[1].state == "ready"


def test_an_engine_without_a_health_path_is_healthy(live):
    gateway = live(1)
    gateway.engines[0].health = 404
    start_checks(gateway)
    gateway.until(lambda: count_checks(gateway.engines[0]) > 5)
    assert gateway.app.plane.views[0].state == "ready"


def test_a_check_sends_the_engines_key(live):
    gateway = live(1)
    gateway.app.fleet.names.get("e0").key = b"sk-engine"
    start_checks(gateway)
    gateway.until(
        lambda: any(fields.get(b"authorization") == b"Bearer sk-engine" for _, fields in gateway.engines[0].looked)
    )


def test_an_ejected_engine_returns_after_a_passed_check(live):
    gateway = live(2, health={"failures": 1, "eject": "50ms"})
    backend = gateway.app.fleet.names.get("e0")
    checks = start_checks(gateway, interval_s=60, fall=1000)
    gateway.until(lambda: checks.pulses[backend].answered)
    gateway.engines[0].health, gateway.engines[0].mode = 503, "error"

    def fail():
        gateway.app.health.record_failure(backend, "a test's")

    gateway.loop.call_soon_threadsafe(fail)
    gateway.until(lambda: backend.ejected)
    before = count_checks(gateway.engines[0])
    gateway.until(lambda: count_checks(gateway.engines[0]) >= before + 3)
    assert backend.ejected and gateway.app.plane.views[0].state == "unreachable"
    gateway.engines[0].health, gateway.engines[0].mode = 200, "ok"
    gateway.until(lambda: not backend.ejected)
    assert gateway.app.plane.views[0].state == "ready"


def test_an_engine_that_passes_checks_but_fails_requests_is_ejected(live):
    gateway = live(2, health={"failures": 2, "eject": "60s"}, policies={"routing": "round-robin"})
    start_checks(gateway)
    gateway.engines[0].mode = "error"
    while not gateway.app.fleet.names.get("e0").ejected:
        ask(gateway)
    assert gateway.app.plane.views[0].state == "unreachable"
    assert gateway.engines[0].health == 200
    assert {ask(gateway) for _ in range(6)} == {(200, "e1")}


def test_an_engine_that_left_is_not_checked_any_more(live):
    gateway = live(2)
    checks = start_checks(gateway)
    gateway.until(lambda: len(checks.pulses) == 2)
    gateway.loop.call_soon_threadsafe(gateway.app.fleet.offer, "file", {"e1": gateway.app.fleet.names.get("e1").spec})
    gateway.until(lambda: [backend.name for backend in checks.pulses] == ["e1"])
    assert len(checks.follower._tasks) == 1


def test_the_first_check_decides_for_a_new_engine_and_several_for_a_known_one():
    pulse = Pulse()
    assert pulse.turned(False, 3, 2) and not pulse.up
    assert pulse.turned(True, 3, 2) and pulse.up
    assert [pulse.turned(False, 3, 2) for _ in range(3)] == [False, False, True]
    assert [pulse.turned(passed, 3, 2) for passed in (True, False, True, True)] == [False, False, False, True]
    assert pulse.up


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_the_state_changes_only_after_enough_checks_in_a_row(results, fall, rise):
    pulse, known = Pulse(), False
    for number, passed in enumerate(results):
        was = pulse.up
        turned = pulse.turned(passed, fall, rise)
        assert turned == (pulse.up != was)
        if turned:
            needed = (fall if was else rise) if known else 1
            assert set(results[number + 1 - needed : number + 1]) == {passed}
            assert pulse.up == passed
        known = known or passed


def test_the_section_is_read_strictly():
    assert read(HealthSettings, {}, "health") == HealthSettings()
    settings = read(HealthSettings, {"failures": 5, "eject": "10s", "path": None, "fall": 1}, "health")
    assert (settings.failures, settings.eject_s, settings.path, settings.fall) == (5, 10.0, None, 1)
    for wrong, message in (
        ({"rise": 0}, r"health\.rise: expected a whole number"),
        ({"interval": "0s"}, r"health\.interval: must be greater than zero"),
        ({"raise": 1}, r"health\.raise: there is no such key. Did you mean 'rise'"),
    ):
        with pytest.raises(HeadwayError, match=message):
            read(HealthSettings, wrong, "health")


def test_checks_can_end_and_begin_while_the_gateway_runs(live):
    gateway = live(1, health={"interval": "20ms"})
    engine = gateway.engines[0]
    gateway.until(lambda: count_checks(engine) > 2)
    checks = gateway.app.checks
    gateway.loop.call_soon_threadsafe(checks.change, HealthSettings(path=None))
    gateway.until(lambda: gateway.app.health.probe is None)
    gateway.call(asyncio.sleep(0.05))
    before = count_checks(engine)
    gateway.call(asyncio.sleep(0.1))
    assert count_checks(engine) == before
    gateway.loop.call_soon_threadsafe(checks.change, HealthSettings(interval_s=0.02))
    gateway.until(lambda: count_checks(engine) > before + 2)


def test_no_engine_is_blamed_for_a_shortage_of_open_files(live, monkeypatch, caplog):
    gateway = live(2, health={"failures": 1, "fall": 1, "interval": "20ms"})
    gateway.until(lambda: all(count_checks(engine) > 1 for engine in gateway.engines))
    full = OSError(errno.EMFILE, "Too many open files")

    async def refuse(*_, **__):
        raise full

    def refuse_file(*_):
        raise full

    checks = gateway.app.checks
    gateway.call(checks.stop())  # closes the connections of the checks, so that the next check needs a new one
    monkeypatch.setattr(gateway.loop, "create_connection", refuse)
    monkeypatch.setattr(open_files.os, "open", refuse_file)
    gateway.call(checks.start())
    for _ in range(10):
        assert ask(gateway)[0] == 503
    gateway.call(asyncio.sleep(0.2))  # time for ten checks
    assert all(view.state == "ready" for view in gateway.app.plane.views[:2])
    assert all(backend.failures == 0 for backend in gateway.app.fleet.members)
    shortages = [record for record in caplog.records if record.getMessage().startswith("open files: ")]
    assert len(shortages) == 1 and "health checks fail" not in caplog.text and "ejected" not in caplog.text
    monkeypatch.undo()
    assert ask(gateway)[0] == 200
