"""A private etcd on loopback, that can be killed, frozen, and started again with its data or without."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from free_ports import free_port
from waiting import until


def etcd_program() -> str:
    found = shutil.which("etcd")
    if found is None:
        pytest.skip("etcd is not installed; `make etcd` installs the system's package")
    return found


class EtcdServer:
    """`options` are of etcd's command line; with `scheme` https they name its certificates."""

    def __init__(self, options: tuple[str, ...] = (), scheme: str = "http", host: str = "127.0.0.1") -> None:
        self.program, self.options = etcd_program(), options
        self.folder = Path(tempfile.mkdtemp(prefix="headway-etcd-"))
        self.port, self.peer = free_port(), free_port()
        self.scheme, self.url = scheme, f"{scheme}://{host}:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> EtcdServer:
        peer = f"http://127.0.0.1:{self.peer}"
        command = [self.program, "--name", "one", "--data-dir", str(self.folder / "data"), "--log-level", "error"]
        command += ["--listen-client-urls", f"{self.scheme}://127.0.0.1:{self.port}"]
        command += ["--advertise-client-urls", self.url, "--listen-peer-urls", peer]
        command += ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"one={peer}", *self.options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        until(self._answers, "etcd did not start", every=0.05)
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"etcd ended: {(self.folder / 'log').read_text(errors='replace')[-2000:]}")
        if self.scheme == "https":  # whoever asks must have certificates; a port that is open will do
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as answer:
                return b"true" in answer.read()
        except (urllib.error.URLError, OSError):
            return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def lose_data(self) -> None:
        shutil.rmtree(self.folder / "data")

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def started() -> Iterator[EtcdServer]:
    """Of which a file of tests makes its fixtures: one for all of them, or a new one each."""
    server = EtcdServer().start()
    yield server
    server.stop()
