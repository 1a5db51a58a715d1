"""Ten thousand streams at once."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

for package in ("httptools", "uvloop"):
    pytest.importorskip(package, reason="the extra `gateway` is not installed")

CROWD = Path(__file__).with_name("crowd.py")
STREAMS, TOKENS = 10_000, 4
EACH_BYTES = 60_000  # of the gateway's memory, that a stream may take


def rss(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(member for child in children for member in family(int(child)))]


@pytest.mark.full
def test_ten_thousand_streams_at_once_all_get_all_their_tokens(tmp_path: Path, record_property) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < STREAMS + 200:
        pytest.skip(f"a process may have only {hard} files open")
    workers = 1 if hard > 2 * STREAMS + 200 else 2  # a stream takes two connections
    if hard < 2 * STREAMS // workers + 1000:
        pytest.skip(f"a process may have only {hard} files open")
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **more) -> subprocess.Popen[str]:
        started.append(subprocess.Popen([sys.executable, *command], text=True, **more))
        return started[-1]

    try:
        engines = start(str(CROWD), "engines", "4", stdout=subprocess.PIPE)
        ports = json.loads(engines.stdout.readline())
        backends = ", ".join(f"e{at}: http://127.0.0.1:{port}" for at, port in enumerate(ports))
        admission = "{name: max-concurrency, max_queue: 20000}"
        (tmp_path / "g.yaml").write_text(
            f"listen: 127.0.0.1:0\nbackends: {{{backends}}}\npolicies: {{routing: kv-aware, admission: {admission}}}\n"
            "shutdown: {lame_duck: 0s}\nlimits: {address_connections: 16384}\n"
        )
        serve = ("-m", "headway.cli", "serve", str(tmp_path / "g.yaml"), "--workers", str(workers))
        gateway = start(*serve, stderr=subprocess.PIPE)
        line = next(line for line in gateway.stderr if "Ctrl-C or SIGTERM" in line)
        port = next(word for word in line.split() if word.startswith("http://")).rpartition(":")[2]
        pids = family(gateway.pid)
        before = sum(map(rss, pids))
        arguments = ("clients", port, str(STREAMS), str(TOKENS))
        clients = start(str(CROWD), *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert clients.stdout.readline() == "all have begun\n"
        grown = sum(map(rss, pids)) - before
        output, _ = clients.communicate("go on\n", timeout=300)
        assert json.loads(output) == {"whole": STREAMS, "ok": STREAMS}
        record_property("bytes_each", grown // STREAMS)
        print(f"{workers} processes, {grown / STREAMS:,.0f} bytes a stream, {grown / 1e6:.0f} MB")
        assert grown < STREAMS * EACH_BYTES
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(60) == 0
        assert "Traceback" not in gateway.stderr.read()
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
            process.wait(30)
