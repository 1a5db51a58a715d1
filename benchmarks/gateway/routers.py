"""Start each router in front of the two engines. `make routers` installs other projects' routers in `.venv-routers`."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from load import KEY

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests"))
from free_ports import free_port  # noqa: E402

ROUTER_CPU, LOAD_CPU = 0, 1
OTHERS = ROOT / ".venv-routers" / "bin"
START_S = 180.0

Command = Callable[[int, list[int], Path], list[str]]


class Router(NamedTuple):
    name: str
    kind: str  # ours, rust or python
    command: Command
    ready: str = "/health"


def headway(policies: str, more: str = "") -> Command:
    def command(port: int, engines: list[int], folder: Path) -> list[str]:
        named = ", ".join(f"e{number}: http://127.0.0.1:{engine}" for number, engine in enumerate(engines))
        file = folder / f"headway-{port}.yaml"
        file.write_text(f"listen: 127.0.0.1:{port}\nbackends: {{{named}}}\npolicies: {policies}\n{more}")
        return [sys.executable, "-m", "headway.cli", "serve", str(file)]

    return command


def rust(*begin: str, quiet: str = "warn") -> Command:
    def command(port: int, engines: list[int], folder: Path) -> list[str]:
        free = free_port()
        workers = [f"http://127.0.0.1:{engine}" for engine in engines]
        where = ["--host", "127.0.0.1", "--port", str(port), "--worker-urls", *workers]
        how = ["--policy", "cache_aware", "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free)]
        return [str(OTHERS / begin[0]), *begin[1:], *where, *how, "--log-level", quiet]

    return command


def litellm(port: int, engines: list[int], folder: Path) -> list[str]:
    lines = ["model_list:"]
    for engine in engines:
        lines += [
            "  - model_name: dummy",
            "    litellm_params:",
            f"      {{model: openai/dummy, api_base: 'http://127.0.0.1:{engine}/v1', api_key: x}}",
        ]
    lines.append(f"general_settings: {{master_key: {KEY}}}")
    file = folder / "litellm.yaml"
    file.write_text("\n".join(lines) + "\n")
    where = ["--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    return [str(OTHERS / "litellm"), "--config", str(file), *where]


ALL = [
    Router("headway (kv-aware)", "ours", headway("{routing: kv-aware}")),
    Router("headway (kv-aware-spill)", "ours", headway("{routing: kv-aware-spill}")),
    Router("headway (lmetric)", "ours", headway("{routing: lmetric}")),
    Router("vllm-router", "rust", rust("vllm-router", quiet="warning")),
    Router("sglang-router", "rust", rust("python", "-m", "sglang_router.launch_router")),
    # sglang-router installs a command `smg` too, which would start sglang-router.
    Router("smg", "rust", rust("python", "-m", "smg", "launch")),
    Router("litellm", "python", litellm, "/health/liveliness"),
]


@contextmanager
def two_engines() -> Iterator[list[int]]:
    """Run a process that answers as two engines, beside the clients. Yield its ports."""
    ports = [free_port(), free_port()]
    dummy = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("dummy.py")), *map(str, ports)],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {LOAD_CPU}),
    )
    try:
        assert dummy.stdout is not None
        dummy.stdout.readline()
        yield ports
    finally:
        dummy.terminate()


class Started:
    """A running router, on one core."""

    def __init__(self, router: Router, engines: list[int], folder: Path, cpu: int) -> None:
        self.router, self.port = router, free_port()
        self.log = (folder / f"{router.name}.log").open("w")
        self.process = subprocess.Popen(
            router.command(self.port, engines, folder),
            stdout=self.log,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "NO_PROXY": "*"},
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )

    def wait(self) -> None:
        """Wait until the router answers. It may need a moment more to discover its engines."""
        end = time.monotonic() + START_S
        url = f"http://127.0.0.1:{self.port}{self.router.ready}"
        while True:
            try:
                urllib.request.urlopen(url, timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                if self.process.poll() is not None or time.monotonic() > end:
                    last = Path(self.log.name).read_text()[-1000:]
                    raise SystemExit(f"{self.router.name} did not start. {last}") from None
                time.sleep(0.2)

    def cpu_s(self) -> float:
        """Return the user and system time of the router's process and all its descendants."""
        return sum(times(pid) for pid in tree(self.process.pid)) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in tree(self.process.pid))
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def tree(pid: int) -> list[int]:
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += tree(int(child))
    return found


def times(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return int(fields[11]) + int(fields[12])
