"""Engines that break their answers or hang: they are ejected, tried again, and their requests go elsewhere."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from math import inf

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import chat
from rough import BODY, STREAM, RoughEngine, http_post, says, send
from test_engine_health import start_checks

from headway.gateway.engines.engine_pace import ENOUGH, Pace, RecentTimes
from headway.gateway.settings import Timeouts

DEFAULTS = Timeouts()
TURNS = {"routing": "round-robin"}


def stream(gateway):
    """Return the engine that answered and the body of a stream, as far as it came."""
    answer = send(gateway, http_post({**BODY, "stream": True}, b"connection: close\r\n"))
    head, _, body = answer.partition(b"\r\n\r\n")
    target = [line.partition(b": ")[2].decode() for line in head.split(b"\r\n") if line.startswith(b"x-headway-target")]
    return (target or [""])[0], body


def in_loop(gateway, work):
    async def run():
        return work()

    return gateway.call(run())


# --- broken answers --------------------------------------------------------------------------------------------------


def test_an_engine_that_breaks_its_streams_is_ejected(live):
    gateway = live(2, policies=TURNS, health={"failures": 3, "eject": "10m"})
    gateway.engines[0].mode = "die"
    for _ in range(12):
        stream(gateway)
    assert len(gateway.engines[0].bodies) == 3
    assert gateway.app.plane.views[0].state == "unreachable"
    gateway.until(gateway.idle)


def test_an_engine_that_sends_garbage_amid_its_streams_is_ejected(live):
    def break_stream(sock, request):
        sock.sendall(STREAM)
        time.sleep(0.05)  # so that the gateway usually forwards the tokens first
        sock.sendall(b"zz\r\nno chunk\r\n")

    bad = RoughEngine(break_stream)
    good = RoughEngine(says(STREAM + b"0\r\n\r\n"))
    backends = {"bad": bad.url, "good": good.url}
    gateway = live(0, backends=backends, policies=TURNS, health={"failures": 2, "eject": "10m"})
    for _ in range(6):
        stream(gateway)
    assert gateway.app.fleet.names["bad"].ejected and not gateway.app.fleet.names["good"].ejected
    assert {stream(gateway)[0] for _ in range(4)} == {"good"}
    gateway.until(gateway.idle)
    bad.close()
    good.close()


def test_an_engine_that_fails_half_of_its_requests_is_ejected(live):
    gateway = live(2, health={"failures": 1000, "eject": "10m"})
    backend, health = gateway.app.fleet.names["e0"], gateway.app.health

    def fail_every_second_request():
        for number in range(18):
            health.record_status(backend, 200)
            health.record_failure(backend, "a test's")
            if backend.ejected:
                return number
        return None

    assert in_loop(gateway, fail_every_second_request) == 9  # ten of the last twenty


def test_one_request_is_the_trial_of_an_engine_whose_ejection_has_ended(live):
    gateway = live(2, policies=TURNS, health={"failures": 1, "eject": "50ms", "path": None})
    engine, backend = gateway.engines[0], gateway.app.fleet.names["e0"]
    engine.mode = "die"
    stream(gateway)
    stream(gateway)
    gateway.until(lambda: backend.on_trial)
    before, over = len(engine.bodies), threading.Event()

    async def wait_until_over(_):
        while not over.is_set():
            await asyncio.sleep(0.005)
        return {}

    engine.before = wait_until_over
    clients = [threading.Thread(target=stream, args=(gateway,)) for _ in range(6)]
    for client in clients:
        client.start()
    gateway.until(lambda: sum(client.is_alive() for client in clients) == 1)
    over.set()
    for client in clients:
        client.join()
    assert len(engine.bodies) == before + 1  # the others went to the other engine
    gateway.until(lambda: backend.ejected or backend.on_trial)
    assert backend.ejections == 2  # the trial failed, so the ejection lasts twice as long
    engine.mode, engine.tokens = "ok", 2
    gateway.until(lambda: backend.on_trial)
    while not backend.view.completed:
        stream(gateway)
    gateway.until(lambda: gateway.app.plane.views[0].state == "ready" and not backend.on_trial)
    assert backend.ejections == 0
    assert {stream(gateway)[0] for _ in range(4)} == {"e0", "e1"}
    gateway.until(gateway.idle)


def test_an_ejection_ends_early_if_all_other_engines_fail_a_request(live):
    gateway = live(3, policies=TURNS, health={"failures": 1, "eject": "10m", "path": None})
    health, backend = gateway.app.health, gateway.app.fleet.names["e2"]
    in_loop(gateway, lambda: health.eject(backend, "a test's"))
    for engine in gateway.engines[:2]:
        engine.mode = "reset"
    assert [chat(gateway).headers["x-headway-target"] for _ in range(3)] == ["e2"] * 3
    assert not backend.ejected
    gateway.engines[2].mode = "reset"
    attempts = [len(engine.bodies) for engine in gateway.engines]
    assert chat(gateway).status == 502  # each engine got at most one attempt
    assert all(len(engine.bodies) <= before + 1 for engine, before in zip(gateway.engines, attempts, strict=True))
    gateway.until(gateway.idle)


def test_the_ejection_of_an_engine_that_has_hung_ends_early_once_its_checks_pass_again(live):
    gateway = live(2, policies=TURNS, health={"eject": "10m"})
    checks = start_checks(gateway, timeout_s=0.1)
    gateway.until(lambda: len(checks.pulses) == 2 and all(pulse.answered for pulse in checks.pulses.values()))
    backend, engine = gateway.app.fleet.names["e0"], gateway.engines[0]
    engine.mode, engine.health = "hang", 0
    assert {chat(gateway).headers["x-headway-target"] for _ in range(4)} == {"e1"}
    assert backend.ejected
    engine.mode, engine.health = "ok", 200
    gateway.until(lambda: not backend.unready)
    gateway.engines[1].mode = "reset"
    assert chat(gateway).headers["x-headway-target"] == "e0" and not backend.ejected
    gateway.until(gateway.idle)


@pytest.mark.parametrize("trouble", ["unready", "cordoned", "hung"])
def test_no_ejection_ends_early_if_the_engine_cannot_serve(live, trouble):
    gateway = live(2, policies=TURNS, health={"failures": 1, "eject": "10m", "path": None})
    health, fleet = gateway.app.health, gateway.app.fleet
    backend = fleet.names["e1"]

    def plant():
        if trouble == "unready":
            fleet.ready("e1", False, "a test's")
        elif trouble == "cordoned":
            fleet.cordon("e1")
        else:
            backend.pace.silent_s = 30.0
        health.eject(backend, "a test's")

    in_loop(gateway, plant)
    gateway.engines[0].mode = "reset"
    assert chat(gateway).status == 502
    assert backend.ejected and not gateway.engines[1].bodies
    gateway.until(gateway.idle)


def test_a_client_that_leaves_a_trial_decides_nothing(live):
    gateway = live(2, policies=TURNS, health={"failures": 1, "eject": "50ms", "path": None})
    backend = gateway.app.fleet.names["e0"]
    in_loop(gateway, lambda: gateway.app.health.eject(backend, "a test's"))
    gateway.until(lambda: backend.on_trial)
    gateway.engines[0].mode = "hang"
    while not gateway.engines[0].bodies:
        chat(gateway, x_headway_deadline="50ms")
    gateway.until(lambda: gateway.engines[0].cancelled == 1)
    assert backend.on_trial and gateway.app.plane.views[0].state == "ready"
    gateway.until(gateway.idle)


def test_another_engine_answers_if_only_the_head_of_a_stream_has_come(live):
    bad = RoughEngine(says(STREAM.partition(b"\r\n\r\n")[0] + b"\r\n\r\n", "close"))
    good = RoughEngine(says(STREAM + b"0\r\n\r\n"))
    gateway = live(0, backends={"bad": bad.url, "good": good.url}, policies=TURNS)
    answers = [stream(gateway) for _ in range(4)]
    assert {target for target, _ in answers} == {"good"} and bad.connections
    assert all(body.count(b'"delta"') == 3 for _, body in answers)
    gateway.until(gateway.idle)
    bad.close()
    good.close()


# --- engines that hang -----------------------------------------------------------------------------------------------


def test_waiting_requests_of_a_hung_engine_move_when_its_checks_fail(live):
    gateway = live(2, policies=TURNS)
    checks = start_checks(gateway, timeout_s=0.1)
    gateway.until(lambda: len(checks.pulses) == 2 and all(pulse.answered for pulse in checks.pulses.values()))
    gateway.engines[0].mode, gateway.engines[0].health = "hang", 0  # as after SIGSTOP
    answers = [chat(gateway) for _ in range(4)]
    assert {answer.headers["x-headway-target"] for answer in answers} == {"e1"}
    assert len(gateway.engines[0].bodies) == gateway.engines[0].cancelled == 1
    gateway.until(gateway.idle)


@pytest.mark.parametrize("engines", [1, 2])
def test_begun_streams_of_a_hung_engine_end_with_an_error_event(live, engines):
    gateway = live(engines, policies=TURNS)
    checks = start_checks(gateway, timeout_s=0.1)
    gateway.until(lambda: all(pulse.answered for pulse in checks.pulses.values()) and checks.pulses)
    gateway.engines[0].mode, gateway.engines[0].health = "stall", 0
    target, body = stream(gateway)
    assert target == "e0" and body.count(b'"delta"') == 2
    assert b'"e0: silent for too long"' in body and body.endswith(b"0\r\n\r\n")
    gateway.until(gateway.idle)


def test_a_request_of_the_only_engine_ends_at_the_longest_limit_although_the_engine_hangs(live):
    gateway = live(1, timeouts={"first_byte": "1500ms"})
    checks = start_checks(gateway, timeout_s=0.1)
    gateway.until(lambda: all(pulse.answered for pulse in checks.pulses.values()) and checks.pulses)
    gateway.engines[0].mode, gateway.engines[0].health = "hang", 0
    answer = chat(gateway, x_headway_deadline="60s")
    assert (answer.status, answer.said) == (502, "e0: no answer in time")
    gateway.until(gateway.idle)


@pytest.mark.parametrize("routing", ["round-robin", "kv-aware-spill", "load-only"])
def test_no_policy_sends_requests_to_an_engine_that_makes_no_progress(live, routing):
    gateway = live(2, policies={"routing": routing}, timeouts={"stall": "100ms"}, health={"eject": "10m"})
    for engine in gateway.engines:
        engine.mode = "stall"  # and /health says 200
    target, body = stream(gateway)
    assert b"silent for too long" in body
    assert gateway.app.fleet.names[target].ejected
    for engine in gateway.engines:
        engine.mode = "ok"
    assert {chat(gateway).headers["x-headway-target"] for _ in range(6)} == {"e0", "e1"} - {target}
    gateway.until(gateway.idle)


def test_the_limit_for_a_first_byte_follows_the_engines_recent_times(live):
    gateway = live(2, policies=TURNS, timeouts={"first_byte_floor": "100ms"}, health={"eject": "10m"})
    for _ in range(2 * ENOUGH):
        stream(gateway)
    gateway.engines[0].mode = "hang"
    assert [stream(gateway)[0] for _ in range(3)] == ["e1", "e1", "e1"]
    assert gateway.engines[0].cancelled == 1 and gateway.app.fleet.names["e0"].ejected
    gateway.until(gateway.idle)


def test_an_engine_that_may_be_at_a_long_answer_keeps_it_but_gets_no_new_requests(live):
    gateway = live(2, policies=TURNS, timeouts={"first_byte_floor": "100ms"}, health={"eject": "10m"})
    for _ in range(2 * ENOUGH):
        chat(gateway)
    finish = threading.Event()

    async def think(body):
        while not finish.is_set():
            await asyncio.sleep(0.01)
        return {}

    gateway.engines[0].before = think
    answers = []
    client = threading.Thread(target=lambda: answers.append(chat(gateway)))  # without max_tokens
    client.start()
    gateway.until(lambda: gateway.app.fleet.names["e0"].ejected)
    assert {chat(gateway).headers["x-headway-target"] for _ in range(4)} == {"e1"}
    finish.set()
    client.join()
    assert answers[0].headers["x-headway-target"] == "e0"
    gateway.until(gateway.idle)


def test_clients_that_leave_early_do_not_hide_a_hung_engine(live):
    gateway = live(2, policies=TURNS, timeouts={"first_byte_floor": "1s"}, health={"eject": "10m"})
    for _ in range(2 * ENOUGH):
        stream(gateway)
    gateway.engines[0].mode = "hang"
    backend = gateway.app.fleet.names["e0"]
    body = json.dumps({**BODY, "stream": True}).encode()
    while not backend.ejected:
        send(gateway, http_post(body, b"connection: close\r\nx-headway-deadline: 600ms\r\n"))
    gateway.until(gateway.idle)


class Due:
    def __init__(self, expected=0.0, sent=False):
        self.sent, self.since, self.expected = sent, 0.0, expected

    def expected_s(self, pace):
        return self.expected

    def give_up(self, why, elsewhere): ...


def stalls_after(*due, pause=0.0, timeouts=DEFAULTS):
    """Return the number of seconds after which an engine that owes these answers counts as stalled."""
    pace = Pace()
    if pause:
        pace.record_pause(pause, 0.0)
    for second in range(1, 700):
        pace.owing = list(due)
        if pace.stalls(pace.sweep(float(second), 1.0), timeouts, 0.0):
            return second - 1
    return None


def test_limits_lie_between_floor_and_ceiling():
    assert stalls_after(Due(0.1)) == 20
    assert stalls_after(Due(30.0)) == 150
    assert stalls_after(Due(30.0), Due(40.0)) == 200
    assert stalls_after(Due(inf)) == stalls_after(Due(1e6)) == 600
    assert stalls_after(Due(sent=True)) == 10
    assert stalls_after(Due(sent=True), pause=8.0) == 40
    assert stalls_after(Due(sent=True), pause=80.0) == 120
    assert stalls_after(Due(6.0), Due(sent=True)) == 30  # the prompt may hold up the streams
    assert stalls_after(Due(inf), timeouts=Timeouts(first_byte_s=3.0)) == 3


def test_an_engine_that_sends_anything_does_not_stall():
    pace = Pace()
    for second in range(1, 100):
        pace.owing, pace.moved = [Due()], second % 15 == 0
        assert not pace.stalls(pace.sweep(float(second), 1.0), Timeouts(), 0.0)


def test_a_silence_is_forgotten_while_the_engine_owes_nothing():
    pace = Pace()
    pace.owing = [Due()]
    pace.sweep(1.0, 15.0)
    pace.sweep(30.0, 1.0)
    assert pace.silent_s == 15.0
    pace.sweep(62.0, 1.0)
    assert pace.silent_s == 0.0


def test_more_work_than_usual_is_expected_to_take_longer():
    times = RecentTimes()
    assert times.expected_s(100) == inf
    for number in range(100):
        times.add(0.1 + 0.001 * (number % 10), 744)  # 1,000 with the fixed part
    assert times.expected_s(0) == times.expected_s(744) == pytest.approx(0.109)
    assert times.expected_s(99_744) == pytest.approx(10.9)
    for _ in range(100):
        times.add(2.0, 744, answer_tokens=50)
    assert times.expected_s(744, answer_tokens=500) == pytest.approx(20.0)
