"""Health checks over real sockets."""

from __future__ import annotations

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

BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()


def checked(one, **settings):
    """The checks of a gateway, as a test wants them."""
    for part in one.app.components:
        if isinstance(part, Checks):
            one.call(part.stop())
    given = {"interval_s": 0.02, "timeout_s": 0.5, "fall": 2, "rise": 2, **settings}
    app = one.app
    made = Checks(app.clock, app.fleet, app.health, HealthSettings(**given))
    one.app.components.append(made)
    one.call(made.start())
    return made


def asked(engine):
    """How often it was asked whether it lives."""
    return sum(target == b"/health" for target, _ in engine.looked)


def ask(one):
    """The engine that answered, by the answer's head."""
    with socket.create_connection(("127.0.0.1", one.port), timeout=300) as sock:
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(BODY)}\r\n\r\n"
        )
        sock.sendall(head.encode() + BODY)
        found = b""
        while piece := sock.recv(65536):
            found += piece
    status, *lines = found.partition(b"\r\n\r\n")[0].split(b"\r\n")
    fields = dict(line.split(b": ", 1) for line in lines)
    return int(status.split()[1]), fields.get(b"x-headway-target", b"").decode()


def test_an_engine_that_fails_its_checks_gets_no_requests_until_it_passes_them(live):
    one = live(2, policies={"routing": "round-robin"})
    checked(one)
    views = one.app.plane.views
    one.until(lambda: all(asked(engine) > 0 for engine in one.engines))
    one.engines[0].health = 503
    one.until(lambda: views[0].state == "unreachable")
    assert one.app.fleet.backend("e0").unready == {"check": "status 503"}
    assert {ask(one) for _ in range(6)} == {(200, "e1")}
    one.engines[0].health = 200
    one.until(lambda: views[0].state == "ready")
    assert {ask(one)[1] for _ in range(12)} == {"e0", "e1"}


def test_an_engine_that_hangs_or_is_gone_fails_its_checks(live):
    one = live(2)
    checked(one, timeout_s=0.1)
    views = one.app.plane.views
    one.engines[0].health = 0
    one.until(lambda: views[0].state == "unreachable")
    assert "Timeout" in one.app.fleet.backend("e0").unready["check"]
    assert views[1].state == "ready"


def test_an_engine_without_such_a_path_is_well(live):
    one = live(1)
    one.engines[0].health = 404
    checked(one)
    one.until(lambda: asked(one.engines[0]) > 5)
    assert one.app.plane.views[0].state == "ready"


def test_the_engines_key_goes_with_a_check(live):
    one = live(1)
    one.app.fleet.backend("e0").key = b"sk-engine"
    checked(one)
    one.until(lambda: any(fields.get(b"authorization") == b"Bearer sk-engine" for _, fields in one.engines[0].looked))


def test_an_ejected_engine_is_let_in_when_it_passes_a_probe(live):
    one = live(2, health={"failures": 1, "eject": "50ms"})
    backend = one.app.fleet.backend("e0")
    made = checked(one, interval_s=60, fall=1000)
    one.until(lambda: made.pulses[backend].known)
    one.engines[0].health, one.engines[0].mode = 503, "error"

    def fail():
        one.app.health.failed(backend, "a test's")

    one.loop.call_soon_threadsafe(fail)
    one.until(lambda: backend.ejected)
    before = asked(one.engines[0])
    one.until(lambda: asked(one.engines[0]) >= before + 3)
    assert backend.ejected and one.app.plane.views[0].state == "unreachable"
    one.engines[0].health, one.engines[0].mode = 200, "ok"
    one.until(lambda: not backend.ejected)
    assert one.app.plane.views[0].state == "ready"


def test_an_engine_that_lies_about_its_readiness_is_found_by_its_failures(live):
    one = live(2, health={"failures": 2, "eject": "60s"}, policies={"routing": "round-robin"})
    checked(one)
    one.engines[0].mode = "error"
    while not one.app.fleet.backend("e0").ejected:
        ask(one)
    assert one.app.plane.views[0].state == "unreachable"
    assert one.engines[0].health == 200
    assert {ask(one) for _ in range(6)} == {(200, "e1")}


def test_one_that_leaves_is_asked_no_more(live):
    one = live(2)
    made = checked(one)
    one.until(lambda: len(made.pulses) == 2)
    one.loop.call_soon_threadsafe(one.app.fleet.offer, "file", {"e1": one.app.fleet.backend("e1").spec})
    one.until(lambda: [backend.name for backend in made.pulses] == ["e1"])
    assert len(made.follower._tasks) == 1


def test_a_new_engine_is_judged_by_its_first_check_and_a_known_one_by_several():
    pulse = Pulse()
    assert pulse.turned(False, 3, 2) and not pulse.up
    assert pulse.turned(True, 3, 2) and pulse.up
    assert [pulse.turned(False, 3, 2) for _ in range(3)] == [False, False, True]
    assert [pulse.turned(passed, 3, 2) for passed in (True, False, True, True)] == [False, False, False, True]
    assert pulse.up


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_it_turns_only_after_so_many_in_a_row(results, fall, rise):
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
    found = read(HealthSettings, {"failures": 5, "eject": "10s", "path": None, "fall": 1}, "health")
    assert (found.failures, found.eject_s, found.path, found.fall) == (5, 10.0, None, 1)
    for wrong, said in (
        ({"rise": 0}, r"health\.rise: expected a whole number"),
        ({"interval": "0s"}, r"health\.interval: must be longer than nothing"),
        ({"raise": 1}, r"health\.raise: there is no such key. Did you mean 'rise'"),
    ):
        with pytest.raises(HeadwayError, match=said):
            read(HealthSettings, wrong, "health")
