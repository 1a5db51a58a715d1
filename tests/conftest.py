"""What several tests need: the repository's folder, the real traces where there are any, and the command line."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import drawing  # noqa: F401  loads the profile of Hypothesis
from command_line import call_headway
from headway.experiment import jobs

os.environ["HEADWAY_PROGRESS"] = "off"  # a slow machine would print lines that tests do not expect

ROOT = Path(__file__).resolve().parent.parent
# Tests start interpreters, which take three times as long without bytecode. Where none may lie beside the source, it
# lies with pytest's own cache.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / ".pytest_cache" / "bytecode"))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TRACES = ROOT.parent / "shared" / "traces"

SOURCE = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
COMMAND = [sys.executable, "-m", "headway.cli"]  # `headway`, whether the package is installed or only on the path

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the collector of circles away from the 400,000 objects of the tests themselves: it would look through all of
    them again and again, and each forked process would copy them. Let it look seldom: it takes 5 % of the time."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    return collected


@pytest.fixture(scope="session", autouse=True)
def one_core() -> Iterator[Callable[[], int]]:
    """Comparisons, sweeps and searches start worker processes only where a test asks for some: a worker costs a second
    of CPU in a process with threads, as this one is after the first test with a server. Gives the true count."""
    counted = jobs.cores
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "cores", lambda: 1)
        yield counted


@pytest.fixture(scope="session", autouse=True)
def runs_are_not_repeated() -> Iterator[None]:
    """If a policy comes from a file, verbs repeat the beginning of the run in two processes, for a second of CPU. Only
    the tests of that, and `headway policy check`, do so."""
    from headway.experiment import check_policy, repeatable

    assert check_policy.Repetition is repeatable.Repetition

    class Unrepeated(repeatable.Repetition):
        def __init__(self, scenario: Any, policies: Any = None) -> None:
            super().__init__({**scenario, "policies": {}, "cluster": {}})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeatable, "Repetition", Unrepeated)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_in_the_root() -> Iterator[None]:
    """A verb without `-o` writes to the current folder: its test must change to a temporary one."""
    before = set(ROOT.iterdir())
    yield
    left = [path.name for path in set(ROOT.iterdir()) - before if path.is_file() and not path.name.startswith(".")]
    assert not left, f"tests wrote to the folder of the project: {left}"


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
    """Calls `headway ARGUMENTS` in this process, in 80 columns without colours."""

    def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        return call_headway(arguments, cwd, environment)

    return run


@pytest.fixture(scope="session")
def headway_process() -> Run:
    """Runs `headway ARGUMENTS` as its own process, for tests of what only a process has. `shell` follows the command in
    bash, as a redirection does."""

    def run(*arguments: str, shell: str = "", cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", "-o", "pipefail", "-c", f"{shlex.join([*COMMAND, *arguments])} {shell}"]
        env = {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "80", "NO_COLOR": "1", **environment}
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


@pytest.fixture
def records_written_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gateway writes its records in a thread: half a second of CPU less for each folder than in a process."""
    import asyncio

    import msgspec

    from headway.gateway.observing import record_writer, traffic_records
    from headway.gateway.observing.chapter import ChapterDocument

    def write(data: bytes) -> None:
        document = msgspec.msgpack.decode(data, type=ChapterDocument)
        record_writer.result_of(document).save(document.folder)

    monkeypatch.setattr(traffic_records, "write_folder", lambda data: asyncio.to_thread(write, data))


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


@pytest.fixture(scope="module")  # its event loop would stand in the way of other modules
def browser() -> Iterator[Any]:
    """The system's Chromium, headless."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed; headway[dev] has it")
    chromium = next(filter(None, map(shutil.which, BROWSERS)), None)
    if chromium is None:
        pytest.skip(f"no browser: install the system's package chromium (looked for {', '.join(BROWSERS)})")
    options = ["--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")  # Chromium's sandbox refuses root
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=chromium, args=options)
        yield launched
        launched.close()
