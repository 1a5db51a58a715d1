"""`headway serve` as a process."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from waiting import until

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("xxhash", reason="the extra `gateway` is not installed")

from headway.errors import HeadwayError
from headway.gateway import gateway_process
from headway.gateway.api_keys import new_key
from headway.gateway.config import Config

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
DATA, STREAMED = json.dumps(CHAT).encode(), json.dumps({**CHAT, "stream": True}).encode()


class Gateway:
    """A process that serves; `log` has its lines up to the one that says so."""

    def __init__(self, process: subprocess.Popen[str], file: Path) -> None:
        assert process.stderr is not None
        self.process, self.file, self.lines = process, file, process.stderr
        self.log: list[str] = []
        self.url = re.findall(r"https?://[\d.:]+", self.wait_for("Ctrl-C or SIGTERM"))[-1]

    def wait_for(self, text: str) -> str:
        """Return the next line of the log with this text."""
        for line in self.lines:
            self.log.append(line)
            if text in line:
                return line
        raise AssertionError(f"the process ended without {text!r}: {''.join(self.log)}")

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def request(self, data: bytes = DATA) -> HTTPResponse:
        return urllib.request.urlopen(f"{self.url}/v1/chat/completions", data, timeout=300)

    def end(self) -> str:
        """Send SIGTERM, and return the rest of the log."""
        self.signal(signal.SIGTERM)
        rest = self.lines.read()
        assert self.process.wait(60) == 0 and "Traceback" not in rest
        return rest

    def workers(self) -> list[int]:
        """Return its child processes, without the resource tracker of multiprocessing."""
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [child for child in children if b"spawn_main" in command_of(child)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return b""


@pytest.fixture
def serve(live, tmp_path: Path):
    """Starts a gateway in front of one engine, which is `serve.engine`."""

    @contextmanager
    def start(settings: str = "", *options: str, before: str = "") -> Iterator[Gateway]:
        file = tmp_path / "gateway.yaml"
        backends = f"backends: {{a: http://127.0.0.1:{start.engine.port}}}\n"
        shutdown = "" if "shutdown:" in settings else "shutdown: {lame_duck: 0s}\n"
        file.write_text(f"listen: 127.0.0.1:0\n{backends}{shutdown}{settings}")
        command = shlex.join([sys.executable, "-m", "headway.cli", "serve", str(file), *options])
        with subprocess.Popen(["bash", "-c", f"{before}exec {command}"], stderr=subprocess.PIPE, text=True) as process:
            try:
                yield Gateway(process, file)
            finally:
                if process.poll() is None:
                    process.terminate()

    start.engine = live(1).engines[0]
    return start


def test_a_gateway_serves_until_a_signal_and_reloads_its_file_at_another(serve) -> None:
    with serve("policies: {routing: lmetric}\n") as gateway:
        with gateway.request() as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "hello"
            assert answer.headers["x-headway-target"] == "a"
        gateway.file.write_text(gateway.file.read_text().replace("{a:", "{b:"))
        gateway.signal(signal.SIGHUP)
        assert "reloaded (backends)" in gateway.wait_for("reloaded")
        with gateway.request() as answer:
            assert answer.headers["x-headway-target"] == "b"
        gateway.end()


@pytest.mark.full
def test_worker_processes_share_limits_certificates_and_probes(serve, tmp_path: Path) -> None:
    trustme = pytest.importorskip("trustme", reason="the extra `dev` is not installed")
    authority, key = trustme.CA(), new_key()
    for number in range(2):
        issued = authority.issue_cert("127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(tmp_path / f"{number}.pem")
        issued.private_key_pem.write_to_path(tmp_path / f"{number}.key")
    for name in ("pem", "key"):
        (tmp_path / f"server.{name}").write_bytes((tmp_path / f"0.{name}").read_bytes())
    (tmp_path / "keys.yaml").write_text(f"ann: {{sha256: {key[1]}, rate: 1/min, burst: 10}}\n")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        probes = taken.getsockname()[1]
    settings = f"tls: {{certificate: server.pem, key: server.key}}\nkeys: keys.yaml\nprobes: 127.0.0.1:{probes}\n"

    def ask() -> int:
        """Ask on a new connection, which the kernel gives to any of the processes."""
        url = gateway.url
        request = urllib.request.Request(f"{url}/v1/chat/completions", DATA, {"x-api-key": key[0]})
        try:
            with urllib.request.urlopen(request, timeout=300, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    with serve(settings, "--workers", "3") as gateway:
        assert [ask() for _ in range(14)] == [200] * 10 + [429] * 4
        where = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        for name in ("pem", "key"):
            (tmp_path / f"server.{name}").write_bytes((tmp_path / f"1.{name}").read_bytes())
        gateway.signal(signal.SIGHUP)
        new = (tmp_path / "1.pem").read_text().strip()
        until(lambda: all(ssl.get_server_certificate(where).strip() == new for _ in range(12)))
        for _ in range(6):
            with urllib.request.urlopen(f"http://127.0.0.1:{probes}/readyz", timeout=60) as answer:
                assert answer.status == 200
        gateway.end()


HANGS_UP = """
import os, signal

from headway.policies.basic import RoundRobin

os.kill(os.getpid(), signal.SIGHUP)


class Mine(RoundRobin):
    pass
"""


@pytest.mark.parametrize("options", [(), pytest.param(("--workers", "2"), marks=pytest.mark.full)])
def test_a_reload_while_the_gateway_starts_takes_effect_when_it_serves(serve, tmp_path: Path, options) -> None:
    (tmp_path / "mine.py").write_text(HANGS_UP)
    with serve("policies: {routing: 'mine.py:Mine'}\n", *options) as gateway:
        with gateway.request() as answer:
            assert json.load(answer)["choices"]
        rest = gateway.end()
    assert ("".join(gateway.log) + rest).count("reloaded; nothing has changed") >= max(1, len(options))


@pytest.mark.full
def test_after_sigterm_readiness_fails_first_and_streams_that_must_end_get_an_error_event(serve) -> None:
    serve.engine.tokens, serve.engine.pause = 100_000, 0.05
    with serve("shutdown: {lame_duck: 1s, limit: 1s}\nlog: {format: json}\n") as gateway:
        with gateway.request(STREAMED) as stream:
            gateway.signal(signal.SIGTERM)
            gateway.wait_for("accepts connections for another 1 s")
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(f"{gateway.url}/health", timeout=300)
            data = stream.read()
        assert b"the gateway is shutting down" in data and b"[DONE]" not in data
        assert gateway.process.wait(60) == 0
        messages = [json.loads(line)["message"] for line in gateway.lines]
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
    assert "the port is in use by another process. Stop that process, or choose another port." in result.stderr
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
def test_several_processes_serve_on_one_port_and_a_dead_one_is_replaced(serve) -> None:
    with serve("", "--workers", "2") as gateway:
        assert any("backends: a joined" in line for line in gateway.log)  # the log of a worker
        before = gateway.workers()
        assert len(before) == 2
        ask_often(gateway)
        gateway.file.write_text(gateway.file.read_text() + "retries: 1\nlog: {format: json}\n")
        gateway.signal(signal.SIGHUP)
        reloads = [gateway.wait_for("reloaded (retries, log)") for _ in range(2)]
        assert sorted(json.loads(line)["worker"] for line in reloads) == [0, 1]
        os.kill(before[0], signal.SIGKILL)
        until(lambda: len(workers := gateway.workers()) == 2 and workers != before, "it was not replaced")
        ask_often(gateway)  # the one that is left serves meanwhile
        assert "has died (exit code -9); a new one starts in 1 s" in gateway.end()


@pytest.mark.full
def test_a_worker_that_cannot_be_replaced_does_not_end_the_others(serve) -> None:
    with serve("", "--workers", "2") as gateway:
        valid = gateway.file.read_text()
        gateway.file.write_text("backends: {a: [")
        os.kill(gateway.workers()[0], signal.SIGKILL)
        gateway.wait_for("has died (exit code -9)")
        assert str(gateway.file) in gateway.wait_for("cannot start: ")
        ask_often(gateway)
        gateway.file.write_text(valid)
        gateway.wait_for("joined")  # the next attempt
        until(lambda: len(gateway.workers()) == 2)
        gateway.end()


@pytest.mark.full
def test_a_stopped_process_is_killed_and_replaced(serve) -> None:
    with serve("worker_silence: 3s\n", "--workers", "2") as gateway:
        os.kill(gateway.workers()[0], signal.SIGSTOP)
        line = gateway.wait_for("no heartbeat")
        assert " ERROR headway: worker " in line and line.endswith("it is killed\n")
        assert "a new one starts" in gateway.wait_for("has died")
        gateway.wait_for("joined")  # the new one
        ask_often(gateway)
        gateway.end()


STOPS = """
import multiprocessing, os, signal
from pathlib import Path

from headway.policies.basic import RoundRobin

first = Path(__file__).with_name("first")
if multiprocessing.parent_process() is not None and not first.exists():
    first.touch()
    os.kill(os.getpid(), signal.SIGSTOP)


class Mine(RoundRobin):
    pass
"""


@pytest.mark.full
def test_a_process_that_is_stopped_while_it_starts_is_replaced(serve, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(STOPS)
    with serve("worker_silence: 1s\npolicies: {routing: 'mine.py:Mine'}\n", "--workers", "2") as gateway:
        assert any("no heartbeat" in line for line in gateway.log)  # before all serve
        ask_often(gateway)
        gateway.end()


def test_a_worker_sends_a_heartbeat_before_it_accepts_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its parent would take one that is stopped in between for one that still starts."""
    file = tmp_path / "gateway.yaml"
    file.write_text("listen: 127.0.0.1:0\nbackends: {a: 'http://127.0.0.1:9'}\nhealth: {path: null}\n")
    counter, counts = SimpleNamespace(value=0), []

    class Loop(asyncio.SelectorEventLoop):
        async def create_server(self, *_: Any, **__: Any) -> Any:
            counts.append(counter.value)
            raise OSError("stopped here")

    def run_here(work: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=Loop) as runner:
            runner.run(work)

    monkeypatch.setattr(gateway_process, "run_loop", run_here)
    monkeypatch.setattr(gateway_process, "collect_seldom", lambda: None)
    with pytest.raises(HeadwayError, match="stopped here"):
        gateway_process.run(Config.load(file), lambda address: None, counter)
    assert counts == [1]


@pytest.mark.full
def test_workers_end_when_their_parent_dies(serve) -> None:
    with serve("", "--workers", "2") as gateway:
        gateway.process.kill()
        rest = gateway.lines.read()  # up to the end of the last process that can write there
        assert rest.count("the parent process has died; this worker shuts down") == 2
        assert rest.count("shutdown: complete") == 2


@pytest.mark.full
def test_with_few_open_files_the_gateway_serves_as_many_connections_as_fit(serve) -> None:
    serve.engine.tokens, serve.engine.pause = 100, 0.05
    with serve("limits: {address_connections: 1000}\n", before="ulimit -n 256; ") as gateway:
        assert any("limits.connections: reduced from 16,384 to 96" in line for line in gateway.log)
        address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(STREAMED)
        socks = [socket.create_connection(address, timeout=60) for _ in range(96)]
        for sock in socks:
            sock.sendall(head + STREAMED)
        assert {sock.recv(15) for sock in socks} == {b"HTTP/1.1 200 OK"}
        with socket.create_connection(address, timeout=60) as one_more:
            assert one_more.recv(12) == b"HTTP/1.1 503"
        for sock in socks:
            sock.close()
        rest = gateway.end()
        assert rest.count("refused a connection") == 1 and "open files" not in rest and "failed" not in rest


@pytest.mark.full
@pytest.mark.parametrize(("files", "connections"), [(30, 1), (64, 16)])
def test_with_very_few_open_files_further_clients_can_read_why_they_are_refused(serve, files, connections) -> None:
    serve.engine.mode = "hang"
    with serve("", before=f"ulimit -n {files}; ") as gateway:
        address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
        with ExitStack() as opened:
            for _ in range(connections):
                sock = opened.enter_context(socket.create_connection(address, timeout=60))
                sock.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(DATA))
                sock.sendall(DATA)
            until(lambda: serve.engine.under_way == connections)
            for _ in range(100):
                with socket.create_connection(address, timeout=60) as one_more:
                    assert one_more.recv(12) == b"HTTP/1.1 503"
        assert "Too many open files" not in gateway.end()


def ask_often(gateway: Gateway) -> None:
    """Send so many requests that each worker gets some. A connection to a process that died is tried again."""

    def answered() -> bool:
        try:
            with gateway.request() as answer:
                return bool(json.load(answer)["choices"][0]["message"]["content"] == "hello")
        except OSError:
            return False

    for _ in range(20):
        until(answered)
