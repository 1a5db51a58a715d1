"""Starts the engines and, if a command is given, the router in front of them. Then runs the checks."""

import os
import re
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Final

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.wording import one_line
from headway.conformance.checked_engines import Engines
from headway.conformance.router_checks import FAILED, PASSED, Bench, Finding, run_checks
from headway.conformance.router_client import Router, wait_until_up
from headway.errors import HeadwayError
from headway.http.address import Address
from headway.types import Json

ENGINES: Final = 3
START_S: Final = 90.0
RELOAD_S: Final = 30.0  # maximum time of the command that reloads a router
KEY_ENV: Final = "HEADWAY_CONFORMANCE_KEY"  # name of the environment variable with the key of the gateway's admin API
OWN: Final = "{python} -m headway.cli serve {config}"
SIGNS: Final = {PASSED: "✓", FAILED: "✗"}


class Report(Struct):
    router: str  # command or URL of the router
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
    reload: str | None = None,
    say: Callable[[str], None] = lambda _: None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check the router at `url`, or the router that the command `start` starts. If neither is given, check Headway's
    own gateway. The command may contain {engines}, {port}, {metrics_port}, {config} and {python}. The command `reload`
    makes the router use {engines}; it may also contain {port} and {pid}."""
    if metrics is not None:
        Address(metrics, "--metrics")  # raises if the URL is invalid, before any process is started
    if url is not None:
        Address(url, "URL")
    behind = Engines(engines, *listen)
    try:
        for address in behind.urls:
            say(f"engine at {address}")
        if url is not None and start is None:
            router = Router(url, model or behind.model, key)
            say(f"waiting until the router at {url} serves a request")
            if not wait_until_up(router, START_S):
                raise HeadwayError(f"{url}: the router answers no request. Point it at the engines above.")
            reloads = None if reload is None else partial(_run_reload, reload, {"port": router.address.port})
            return Report(url, run_checks(Bench(router, behind, metrics, reloads), progress))
        command, port, metrics_port = start or OWN, free_port(), free_port()
        if "{metrics_port}" in command or "{config}" in command:
            metrics = metrics or f"http://127.0.0.1:{metrics_port}/metrics"
        router = Router(url or f"http://127.0.0.1:{port}", model or behind.model, key)
        with _running_router(command, router, behind, port, metrics_port) as (process, config):
            reloads = None
            if reload is not None:
                reloads = partial(_run_reload, reload, {"port": port, "pid": process.pid})
            elif start is None:
                reloads = partial(_reload_own, process, config)
            return Report(command, run_checks(Bench(router, behind, metrics, reloads), progress))
    finally:
        behind.stop()


@contextmanager
def _running_router(
    command: str, router: Router, behind: Engines, port: int, metrics_port: int
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Run the router's command for the duration of a `with` block, which begins when the router serves requests. Yield
    its process and the configuration file."""
    with tempfile.TemporaryDirectory(prefix="headway-conformance-") as folder:
        config = Path(folder, "gateway.yaml")  # configuration file for Headway's own gateway, with default settings
        gateway = {
            "listen": f"127.0.0.1:{port}",
            "backends": _backends(behind.urls),
            "shutdown": {"lame_duck": "0s"},
            "admin": {"listen": f"127.0.0.1:{metrics_port}", "key_env": KEY_ENV, "open_metrics": True},
        }
        config.write_bytes(msgspec.json.encode(gateway))
        values = {
            "engines": " ".join(behind.urls),
            "port": port,
            "metrics_port": metrics_port,
            "config": config,
            "python": sys.executable,
        }
        with Path(folder, "output").open("w+") as output:
            process = _run(fill_in(command, values), output)
            try:
                if not wait_until_up(router, START_S, lambda: process.poll() is None):
                    output.seek(0)
                    last = (output.read().strip().splitlines() or ["none"])[-1]
                    raise HeadwayError(f"--start: the router answers no request. Its last output: {last[-300:]}")
                yield process, config
            finally:
                _end(process)


def _backends(urls: list[str]) -> dict[str, str]:
    """Return the engines for the file of Headway's gateway. An engine keeps its name if others leave."""
    return {f"engine-{url.rpartition(':')[2]}": url for url in urls}


def _reload_own(process: subprocess.Popen[bytes], config: Path, urls: list[str]) -> None:
    """Make Headway's gateway use these engines."""
    gateway = msgspec.json.decode(config.read_bytes())
    config.write_bytes(msgspec.json.encode({**gateway, "backends": _backends(urls)}))
    process.send_signal(signal.SIGHUP)


def _run_reload(command: str, values: dict[str, object], urls: list[str]) -> None:
    words = fill_in(command, {**values, "engines": " ".join(urls)}, "--reload")
    try:
        subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=RELOAD_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HeadwayError(f"--reload: the command failed: {one_line(error)}.") from None


def fill_in(command: str, values: dict[str, object], option: str = "--start") -> list[str]:
    """Return the words of the command, with its known placeholders replaced by their values."""
    text = re.sub(r"\{(\w+)\}", lambda match: str(values.get(match[1], match[0])), command)
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise HeadwayError(f"{option}: is not a valid command: {error}.") from None
    if not words:
        raise HeadwayError(f"{option}: is empty; give a command, with {{engines}} and {{port}} in it.")
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
    """Stop the router and the processes that it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def conformance_report(report: Report) -> RenderableType:
    parts: list[RenderableType] = [Text(report.router, style="bold"), ""]
    for finding in report.findings:
        parts.append(Text(f"{SIGNS.get(finding.outcome, '–')} {finding.check}"))
        parts.append(Text(f"  {finding.detail}"))
    passed = sum(finding.outcome == PASSED for finding in report.findings)
    return Group(*parts, "", Text(f"{passed} of {len(report.findings)} passed"))
