"""Starts engines and, given a command, the router in front of them; then runs the checks."""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from headway.conformance.checked_engines import Engines
from headway.conformance.router_checks import FAILED, PASSED, Bench, Finding, run_checks
from headway.conformance.router_client import Router, wait_until_up
from headway.errors import HeadwayError
from headway.http.address import Address
from headway.types import Json

ENGINES: Final = 3
START_S: Final = 90.0
KEY_ENV: Final = "HEADWAY_CONFORMANCE_KEY"  # of the admin API, which is not used here
OWN: Final = "{python} -m headway.cli serve {config}"


class Report(Struct):
    router: str  # how it was started, or where it is
    findings: list[Finding]

    @property
    def passed(self) -> bool:
        return all(finding.outcome != FAILED for finding in self.findings)

    def summary(self) -> Json:
        counts = {name: sum(finding.outcome == name for finding in self.findings) for name in (PASSED, FAILED)}
        return {"router": self.router, "checks": msgspec.to_builtins(self.findings), **counts}


def conformance(
    url: str | None = None,
    start: str | None = None,
    *,
    listen: tuple[str, int] = ("127.0.0.1", 0),
    engines: int = ENGINES,
    model: str | None = None,
    metrics: str | None = None,
    key: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """`start` is a command with {engines}, {port}, {metrics_port}, {config} or {python} in it; without a URL and a
    command it is Headway's own gateway that is tried."""
    if metrics is not None:
        Address(metrics, "--metrics")  # raises before anything is started
    if url is not None:
        Address(url, "URL")
    behind = Engines(engines, *listen)
    try:
        for address in behind.urls:
            say(f"an engine at {address}")
        if url is not None and start is None:
            router = Router(url, model or behind.model, key)
            say(f"waiting until the router at {url} serves a request")
            if not wait_until_up(router, START_S):
                raise HeadwayError(f"{url}: serves no request; point the router at the engines above.")
            return Report(url, run_checks(Bench(router, behind, metrics), progress))
        return _start_and_check(start or OWN, url, behind, model, metrics, key, progress)
    finally:
        behind.stop()


def _start_and_check(
    command: str,
    url: str | None,
    behind: Engines,
    model: str | None,
    metrics: str | None,
    key: str | None,
    progress: Callable[[int, int], None] | None,
) -> Report:
    port, metrics_port = free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="headway-conformance-") as folder:
        config = Path(folder, "gateway.yaml")
        config.write_bytes(msgspec.json.encode(own_config(behind, port, metrics_port)))
        values = {
            "engines": " ".join(behind.urls),
            "port": port,
            "metrics_port": metrics_port,
            "config": config,
            "python": sys.executable,
        }
        if "{metrics_port}" in command or "{config}" in command:
            metrics = metrics or f"http://127.0.0.1:{metrics_port}/metrics"
        with Path(folder, "words").open("w+") as words:
            process = _run(fill_in(command, values), words)
            try:
                router = Router(url or f"http://127.0.0.1:{port}", model or behind.model, key)
                if not wait_until_up(router, START_S, lambda: process.poll() is None):
                    words.seek(0)
                    last = (words.read().strip().splitlines() or ["it said nothing"])[-1]
                    raise HeadwayError(f"--start: the router serves no request: {last[-300:]}")
                return Report(command, run_checks(Bench(router, behind, metrics), progress))
            finally:
                _end(process)


def fill_in(command: str, values: dict[str, object]) -> list[str]:
    """The command's words; only the places that are known are filled in."""
    text = re.sub(r"\{(\w+)\}", lambda match: str(values.get(match[1], match[0])), command)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise HeadwayError(f"--start: is no command: {error}.") from None
    if not words:
        raise HeadwayError("--start: is empty; give the router's command, with {engines} and {port} in it.")
    return words


def _run(words: list[str], output: IO[str]) -> subprocess.Popen[bytes]:
    try:
        env = {**os.environ, KEY_ENV: secrets.token_hex(16)}
        return subprocess.Popen(
            words, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    except OSError as error:
        raise HeadwayError(f"--start: {words[0]} cannot be run: {error.strerror}.") from None


def _end(process: subprocess.Popen[bytes]) -> None:
    """It, and whatever it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def own_config(behind: Engines, port: int, metrics_port: int) -> Json:
    """A file of Headway's gateway, as it comes: with its own defaults."""
    return {
        "listen": f"127.0.0.1:{port}",
        "backends": {f"e{number}": address for number, address in enumerate(behind.urls)},
        "admin": {"listen": f"127.0.0.1:{metrics_port}", "key_env": KEY_ENV, "open_metrics": True},
    }


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


# What a router does and does not, as a page for people.

SIGNS = {PASSED: "✓", FAILED: "✗"}


def conformance_report(report: Report) -> RenderableType:
    parts: list[RenderableType] = [Text(report.router, style="bold"), ""]
    for finding in report.findings:
        parts.append(Text(f"{SIGNS.get(finding.outcome, '–')} {finding.check}"))
        parts.append(Text(f"  {finding.detail}"))
    passed = sum(finding.outcome == PASSED for finding in report.findings)
    return Group(*parts, "", Text(f"{passed} of {len(report.findings)} passed"))
