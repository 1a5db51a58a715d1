"""`headway serve` as a process."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")


@contextmanager
def started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()


def test_it_serves_until_it_is_told_to_end(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\npolicies: {{routing: lmetric}}\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file)]
    with started(command) as process:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "until Ctrl-C or SIGTERM" in line)
        url = next(word for word in line.split() if word.startswith("http://"))
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
        with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=300) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "hello"
            assert answer.headers["x-headway-target"] == "a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert "Traceback" not in process.stderr.read()


def test_an_address_that_is_taken_is_told(headway, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "g.yaml").write_text(
            f"listen: 127.0.0.1:{taken.getsockname()[1]}\nbackends: {{a: http://127.0.0.1:9}}\n"
        )
        done = headway("serve", "g.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be listened on" in done.stderr and "Traceback" not in done.stderr
    assert all(line.startswith("headway: ") for line in done.stderr.splitlines()), done.stderr


def test_a_bundle_may_be_what_decides(headway, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(
        "format: 1\nname: best\npolicies:\n  routing: {type: parameters, template: no-such}\n"
    )
    (tmp_path / "g.yaml").write_text("backends: {a: http://127.0.0.1:9}\npolicies: best.yaml\n")
    done = headway("serve", "g.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "no-such" in done.stderr


def test_several_processes_serve_on_one_port_and_a_dead_one_is_replaced(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\n")
    command = [sys.executable, "-m", "headway.cli", "serve", str(file), "--workers", "2"]
    with started(command) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if "until Ctrl-C or SIGTERM" in line:
                break
        assert "backends: a joined" in said  # what workers tell is heard
        url = next(word for word in line.split() if word.startswith("http://"))
        before = children(process.pid)
        assert len(before) == 2
        for _ in range(20):
            ask(url)
        os.kill(before[0], signal.SIGKILL)
        end = time.monotonic() + 60
        while len(found := children(process.pid)) != 2 or found == before:
            assert time.monotonic() < end, "it was not replaced"
            time.sleep(0.05)
        for _ in range(20):  # the one that is left serves meanwhile
            ask(url)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        said = process.stderr.read()
        assert "Traceback" not in said
        assert "has died (-9) and is replaced" in said


def children(pid: int) -> list[int]:
    """Workers: not the tracker of resources that multiprocessing starts."""
    found = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [one for one in found if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]


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
