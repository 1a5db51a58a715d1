"""What several tests need: the repository's folder, the real traces where there are any, and the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# No clock fails a test, and a change goes in by what it is, not by what is drawn; `make test-long` draws anew.
settings.register_profile("steady", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("anew", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT.parent / "shared" / "traces"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def traces() -> Path:
    if not TRACES.is_dir():
        pytest.skip("the real traces are not beside this checkout (../shared/traces)")
    return TRACES


@pytest.fixture(scope="session")
def headway() -> Run:
    """Runs `headway ARGUMENTS` as its own process, as a user would, in 80 columns without colours."""

    def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        source = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
        env = {**os.environ, "PYTHONPATH": source, "COLUMNS": "80", "NO_COLOR": "1", **environment}
        command = [sys.executable, "-m", "headway.cli", *arguments]
        return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=600, check=False)

    return run


@pytest.fixture
def live() -> Iterator[Callable[..., Any]]:
    """Gateways on loopback, each with as many engines as a test wants; they end with it."""
    for package in ("httptools", "xxhash"):
        pytest.importorskip(package, reason="the extra `gateway` is not installed")
    from live_gateway import Live

    started: list[Live] = []

    def start(engines: int = 2, **more: Any) -> Live:
        started.append(Live(engines, **more))
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture(scope="session")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """Two replicas of vLLM on the CPU, for all the tests of a session; `make live` installs it."""
    import vllm_engine

    if not vllm_engine.INSTALLED.is_file():
        pytest.skip("vLLM on the CPU is not installed (`make live`)")
    engines = vllm_engine.two(tmp_path_factory.mktemp("vllm"))
    yield engines
    for engine in engines:
        engine.stop()
