"""`headway kvd` as a process."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("aioquic", reason="the extra `kvd` is not installed")

from kvd_nodes import HANGS_S, block, key

from conftest import Run
from headway.config.section import read
from headway.gateway.kvd.channel import TlsFiles
from headway.gateway.kvd.frames import Overlap
from headway.gateway.kvd.kvd_client import KvdClient


@contextmanager
def process(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A daemon, and the addresses that it says."""
    command = [sys.executable, "-m", "headway.cli", "kvd", *arguments]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as started:
        assert started.stderr is not None
        line = started.stderr.readline()
        assert line.startswith("headway: listening at "), line + started.stderr.read()
        try:
            yield started, line.partition(" at ")[2].partition(" (")[0].split(", ")
        finally:
            started.kill()


def test_blocks_outlive_a_daemon_that_is_told_to_end(tmp_path: Path) -> None:
    arguments = ("--listen", "unix:a.sock", "--ram", "8MiB", "--disk", "blocks", "--disk-limit", "64MiB")
    chain = [key(number) for number in range(12)]

    async def put(address: str) -> None:
        async with KvdClient(address, timeout_s=HANGS_S) as client:
            assert await client.put({block_key: block(at, 10**6) for at, block_key in enumerate(chain)}) == 12

    async def got(address: str) -> None:
        async with KvdClient(address, timeout_s=HANGS_S) as client:
            assert await client.overlap(chain) == Overlap(12, 0, 12)
            assert await client.get(chain) == [block(at, 10**6) for at in range(12)]

    with process(tmp_path, *arguments) as (first, addresses):
        assert addresses == [f"unix:{tmp_path}/a.sock"]
        asyncio.run(put(addresses[0]))
        first.send_signal(signal.SIGTERM)
        assert first.wait(HANGS_S) == 0
        assert first.stderr is not None and first.stderr.read() == ""
    assert not (tmp_path / "a.sock").exists()
    with process(tmp_path, *arguments) as (_, addresses):
        asyncio.run(got(addresses[0]))


def test_a_daemon_that_was_killed_is_followed_by_another(tmp_path: Path) -> None:
    for _ in range(2):
        with process(tmp_path, "--disk", "blocks", "--disk-limit", "8MiB") as (started, addresses):
            asyncio.run(_ping(addresses[0]))
            started.kill()
            started.wait(HANGS_S)
        assert (tmp_path / "kvd.sock").exists()


async def _ping(address: str) -> None:
    async with KvdClient(address, timeout_s=HANGS_S) as client:
        await client.ping()


def test_certificates_that_are_made_let_two_nodes_talk(headway: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        made = headway("kvd", "certs", "certs", "--name", name, "--host", "127.0.0.1", cwd=tmp_path)
        assert made.returncode == 0 and f"certificate: certs/{name}.pem" in made.stdout, made.stderr
    assert stat.S_IMODE((tmp_path / "certs" / "a.key").stat().st_mode) == 0o600
    again = headway("kvd", "certs", "certs", "--name", "a", cwd=tmp_path)
    assert again.returncode == 2 and "exists already" in again.stderr
    (tmp_path / "kvd.yaml").write_text(
        "listen: ['quic://127.0.0.1:0', 'unix:kvd.sock']\nram: 16MiB\n"
        "tls: {ca: certs/ca.pem, certificate: certs/a.pem, key: certs/a.key}\n"
    )
    with process(tmp_path, "kvd.yaml") as (_, (quic, unix)):
        tls = ("--ca", "certs/ca.pem", "--certificate", "certs/b.pem", "--key", "certs/b.key")
        assert headway("kvd", "ping", quic, *tls, cwd=tmp_path).stdout == f"{quic} answers\n"
        bare = headway("kvd", "ping", quic, cwd=tmp_path)
        assert bare.returncode == 2 and "QUIC needs 'tls'" in bare.stderr and "Traceback" not in bare.stderr
        table = headway("kvd", "stat", unix, cwd=tmp_path)
        assert table.returncode == 0 and "held limit" in table.stdout
        document = json.loads(headway("kvd", "stat", quic, *tls, "--json", cwd=tmp_path).stdout)
        assert document["ram"]["limit"] == 16 * 2**20
        files = read(TlsFiles, {"ca": "ca.pem", "certificate": "b.pem", "key": "b.key"}, "tls").beside(
            tmp_path / "certs"
        )

        async def put() -> None:
            async with KvdClient(quic, tls=files, timeout_s=HANGS_S) as client:
                assert await client.put({key(1): block(1)}) == 1

        asyncio.run(put())
        assert json.loads(headway("kvd", "stat", unix, "--json", cwd=tmp_path).stdout)["ram"]["blocks"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-such.yaml",), "no-such.yaml: cannot be read"),
        (("--disk", "x"), "--disk: use --disk and --disk-limit together"),
        (("--ca", "x"), "--certificate: missing"),
        (("--listen", "rdma://10.0.0.8:1"), "rdma: "),
        (("--listen", "quic://127.0.0.1:0"), "QUIC needs 'tls'"),
        (("ping", "unix:nobody.sock"), "no daemon answers"),
        (("certs", "c", "--name", "a/b"), "--name: use letters"),
        (("certs", "c", "--days", "0"), "--days: must be between"),
    ],
)
def test_a_mistake_is_told_in_a_sentence(
    arguments: tuple[str, ...], message: str, headway: Run, tmp_path: Path
) -> None:
    process = headway("kvd", *arguments, cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert message in process.stderr and "Traceback" not in process.stderr and process.stderr.count("\n") == 1
