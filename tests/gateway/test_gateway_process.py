"""`headway serve` as a process."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")


@contextmanager
def run_process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_a_gateway_serves_until_a_signal_and_reloads_its_file_at_another(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\npolicies: {{routing: lmetric}}\n"
        "shutdown: {lame_duck: 0s}\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file)]
    with run_process(command) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Ctrl-C or SIGTERM" in line)
        url = next(word for word in line.split() if word.startswith("http://"))
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
        with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=300) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "hello"
            assert answer.headers["x-headway-target"] == "a"
        file.write_text(file.read_text().replace("{a:", "{b:"))
        process.send_signal(signal.SIGHUP)
        assert "reloaded (backends)" in next(line for line in process.stderr if "reloaded" in line)
        with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=300) as answer:
            assert answer.headers["x-headway-target"] == "b"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.full
def test_after_sigterm_readiness_fails_first_and_streams_that_must_end_get_an_error_event(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    engine.tokens, engine.pause = 100_000, 0.05
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\n"
        "shutdown: {lame_duck: 1s, limit: 1s}\nlog: {format: json}\n"
    )
    with run_process([sys.executable, "-m", "headway.cli", "serve", str(file)]) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Ctrl-C or SIGTERM" in line)
        url = json.loads(line)["message"].split()[2]
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()
        with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=300) as stream:
            process.send_signal(signal.SIGTERM)
            next(line for line in process.stderr if "accepts connections for another 1 s" in line)
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{url}/health", timeout=300)
            data = stream.read()
        assert b"the gateway is shutting down" in data and b"[DONE]" not in data
        assert process.wait(60) == 0
        messages = [json.loads(line)["message"] for line in process.stderr]
        assert messages[-1] == "shutdown: complete" and any("have not ended in time" in text for text in messages)


def test_an_address_in_use_is_reported(headway, tmp_path: Path) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        (tmp_path / "g.yaml").write_text(
            f"listen: 127.0.0.1:{occupied.getsockname()[1]}\nbackends: {{a: http://127.0.0.1:9}}\n"
        )
        result = headway("serve", "g.yaml", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "listen: cannot listen on" in result.stderr and "Traceback" not in result.stderr
    *logged, error = result.stderr.splitlines()
    assert error.startswith("headway: ")
    assert all(re.match(r"\d{4}-\S+Z [A-Z]+ headway: ", line) for line in logged), logged


def test_a_file_may_name_a_bundle_as_its_policies(headway, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(
        "format: 1\nname: best\npolicies:\n  routing: {type: parameters, template: no-such}\n"
    )
    (tmp_path / "g.yaml").write_text("backends: {a: http://127.0.0.1:9}\npolicies: best.yaml\n")
    result = headway("serve", "g.yaml", cwd=tmp_path)
    assert result.returncode == 2 and "no-such" in result.stderr


@pytest.mark.full
def test_several_processes_serve_on_one_port_and_a_dead_one_is_replaced(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\nshutdown: {{lame_duck: 0s}}\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file), "--workers", "2"]
    with run_process(command) as process:
        assert process.stderr is not None
        log = ""
        for line in process.stderr:
            log += line
            if "Ctrl-C or SIGTERM" in line:
                break
        assert "backends: a joined" in log  # what workers tell is heard
        url = next(word for word in line.split() if word.startswith("http://"))
        before = children(process.pid)
        assert len(before) == 2
        for _ in range(20):
            ask(url)
        file.write_text(file.read_text() + "retries: 1\nlog: {format: json}\n")
        process.send_signal(signal.SIGHUP)
        reloads = [next(line for line in process.stderr if "reloaded (retries, log)" in line) for _ in range(2)]
        assert sorted(json.loads(line)["worker"] for line in reloads) == [0, 1]
        os.kill(before[0], signal.SIGKILL)
        end = time.monotonic() + 60
        while len(workers := children(process.pid)) != 2 or workers == before:
            assert time.monotonic() < end, "it was not replaced"
            time.sleep(0.05)
        for _ in range(20):  # the one that is left serves meanwhile
            ask(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        log = process.stderr.read()
        assert "Traceback" not in log
        assert "has died (exit code -9); a new one starts in 1 s" in log


@pytest.mark.full
def test_a_stopped_process_is_killed_and_replaced(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\n"
        "shutdown: {lame_duck: 0s}\nworker_silence: 3s\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file), "--workers", "2"]
    with run_process(command) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Ctrl-C or SIGTERM" in line)
        url = next(word for word in line.split() if word.startswith("http://"))
        os.kill(children(process.pid)[0], signal.SIGSTOP)
        line = next(line for line in process.stderr if "no heartbeat" in line)
        assert " ERROR headway: worker " in line and line.endswith("it is killed\n")
        assert "a new one starts" in next(line for line in process.stderr if "has died" in line)
        next(line for line in process.stderr if "joined" in line)  # the new one
        for _ in range(20):
            ask(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.full
def test_workers_end_when_their_parent_dies(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\nshutdown: {{lame_duck: 0s}}\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file), "--workers", "2"]
    with run_process(command) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if "Ctrl-C or SIGTERM" in line)
        process.kill()
        rest = process.stderr.read()  # up to the end of the last process that can write there
        assert rest.count("the parent process has died; this worker shuts down") == 2
        assert rest.count("shutdown: complete") == 2


@pytest.mark.full
def test_with_few_open_files_the_gateway_serves_as_many_connections_as_fit(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    engine.tokens, engine.pause = 100, 0.05
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\n"
        "shutdown: {lame_duck: 0s}\nlimits: {address_connections: 1000}\n"
    )
    command = [
        "bash",
        "-c",
        f"ulimit -n 256; exec {shlex.join([sys.executable, '-m', 'headway.cli', 'serve', str(file)])}",
    ]
    with run_process(command) as process:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if "Ctrl-C or SIGTERM" in line:
                break
        assert any("limits.connections: reduced from 16,384 to 96" in line for line in log)
        port = int(line.split("http://127.0.0.1:")[1].split()[0])
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": True}).encode()
        request = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        socks = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(96)]
        for sock in socks:
            sock.sendall(request)
        assert {sock.recv(15) for sock in socks} == {b"HTTP/1.1 200 OK"}
        with socket.create_connection(("127.0.0.1", port), timeout=60) as one_more:
            assert one_more.recv(12) == b"HTTP/1.1 503"
        for sock in socks:
            sock.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        rest = process.stderr.read()
        assert rest.count("refused a connection") == 1 and "open files" not in rest and "failed" not in rest


def children(pid: int) -> list[int]:
    """Return the workers, without the resource tracker of multiprocessing."""
    workers = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in workers if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def ask(url: str) -> None:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    for attempt in range(20):  # a connection that went to the one that died is tried again
        try:
            with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=300) as answer:
                assert json.load(answer)["choices"][0]["message"]["content"] == "hello"
                return
        except OSError:
            time.sleep(0.05)
            assert attempt < 19
