"""`headway serve` as a process."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")


def test_it_serves_until_it_is_told_to_end(live, tmp_path: Path) -> None:
    engine = live(1).engines[0]
    file = tmp_path / "gateway.yaml"
    file.write_text(
        f"listen: 127.0.0.1:0\nbackends: {{a: http://127.0.0.1:{engine.port}}}\npolicies: {{routing: lmetric}}\n"
    )
    command = [sys.executable, "-m", "headway.cli", "serve", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "before a; Ctrl-C or SIGTERM ends it" in line
        url = next(word for word in line.split() if word.startswith("http://"))
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
        with urllib.request.urlopen(f"{url}/v1/chat/completions", body, timeout=60) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "hello"
            assert answer.headers["x-headway-target"] == "a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""


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


def test_a_bundle_may_be_what_decides(headway, tmp_path: Path) -> None:
    (tmp_path / "best.yaml").write_text(
        "format: 1\nname: best\npolicies:\n  routing: {type: parameters, template: no-such}\n"
    )
    (tmp_path / "g.yaml").write_text("backends: {a: http://127.0.0.1:9}\npolicies: best.yaml\n")
    done = headway("serve", "g.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "no-such" in done.stderr
