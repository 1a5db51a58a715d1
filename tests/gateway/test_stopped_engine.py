"""A real engine process that is stopped by SIGSTOP behind a gateway, with the default settings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from asking import chat
from rough import BODY, http_post, send

from conftest import COMMAND, SOURCE

WITHIN_S = 60  # far below the ceilings of the timeouts, which are 120 s and 600 s
SCENARIO = """
workload: {requests: 1, rate: 1/s, prompt_tokens: 64, output_tokens: 8}
cluster: {instances: 1, latency: {model: fixed, decode_tokens_per_s: 50, prefill_tokens_per_s: 100000}}
"""


@pytest.fixture
def engines(tmp_path):
    """Two engines, each a process of its own."""
    file = tmp_path / "one.yaml"
    file.write_text(SCENARIO)
    env = {**os.environ, "PYTHONPATH": SOURCE, "HEADWAY_PROGRESS": "off"}
    words = [*COMMAND, "emulate", str(file), "--listen", "127.0.0.1:0", "--model", "m", "--output-tokens", "2"]
    started = [
        subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(2)
    ]
    yield [(process, _url(process)) for process in started]
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(30)


def _url(process):
    assert process.stdout is not None
    for line in process.stdout:
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        if found:
            return found[0]
    raise AssertionError("the engine did not start")


@pytest.mark.full
def test_requests_of_a_stopped_engine_are_served_elsewhere_and_its_streams_end(live, engines):
    backends = {f"e{number}": url for number, (_, url) in enumerate(engines)}
    gateway = live(0, backends=backends, policies={"routing": "round-robin"})
    gateway.until(lambda: all(view.state == "ready" for view in gateway.app.plane.views[:2]))
    for number in range(4):
        assert chat(gateway, f"warm up {number}").status == 200
    begun = []
    request = http_post({**BODY, "stream": True, "max_tokens": 5000, "ignore_eos": True}, b"connection: close\r\n")
    streams = [threading.Thread(target=lambda: begun.append(send(gateway, request))) for _ in range(4)]
    for stream in streams:
        stream.start()
    flights = gateway.app.plane.control.flights.by_id
    gateway.until(lambda: [flight.first_ps >= 0 for flight in list(flights.values())] == [True] * 4)
    stopped = engines[0][0]
    stopped.send_signal(signal.SIGSTOP)
    since = time.monotonic()
    waiting = [chat(gateway, f"while it is stopped {number}") for number in range(6)]
    assert [answer.status for answer in waiting] == [200] * 6
    assert {answer.headers["x-headway-target"] for answer in waiting} == {"e1"}
    gateway.until(lambda: len(begun) >= 2)
    assert time.monotonic() - since < WITHIN_S
    assert all(b'"e0: silent for too long"' in answer for answer in begun[:2])
    assert {chat(gateway, f"later {number}").headers["x-headway-target"] for number in range(4)} == {"e1"}
    stopped.send_signal(signal.SIGCONT)
    backend = gateway.app.fleet.names["e0"]
    gateway.until(lambda: not backend.unready and not backend.ejected)
    gateway.until(lambda: chat(gateway).headers["x-headway-target"] == "e0")
    engines[1][0].kill()
    for stream in streams:
        stream.join()
    gateway.until(gateway.idle)
