"""Runs jobs on a Ray cluster. Headway imports Ray only if needed, and hides its logs unless `HEADWAY_RAY_LOGS` is 1."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple, Self

from headway import __version__
from headway.config.wording import one_line, shown
from headway.errors import HeadwayError, argument, missing_extra
from headway.experiment.jobs import RETRIES, Batch, Finished, Job, Lost, available
from headway.experiment.policy_guard import DEFAULT as DEFAULT_TIMEOUT
from headway.experiment.policy_guard import TIMEOUT
from headway.results import study

CLIENT: Final = "ray://"
LOOK_S: Final = 5.0  # interval in seconds between two reads of the cluster's size
KNOCK_S: Final = 5.0  # timeout in seconds of the first connection
LOGS: Final = "HEADWAY_RAY_LOGS"  # if 1, Ray's messages go to standard error
LOOPBACK: Final = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"  # Ray replaces 127.0.0.1 with another address
PAUSE_S: Final = 0.5  # pause in seconds before a job's first retry; the n-th retry waits n times as long
NO_HEADWAY: Final = "No module named 'headway'"  # part of Ray's error message if Headway is missing on a machine
QUIET: Final = {  # environment variables that silence Ray
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_USAGE_STATS_PROMPT_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",
}


class Origin(NamedTuple):
    """The version, working folder, module path and policy timeout of the caller."""

    version: str
    folder: str
    path: list[str]
    policy_timeout: str


class Reply(NamedTuple):
    """The value of a job, and the files that it wrote, by their paths relative to the parent of its folder."""

    value: Any
    files: dict[str, bytes]


class RayRunner:
    """Runs jobs on a Ray cluster. It connects to the cluster when the first batch runs. The address "auto" means the
    cluster of this machine; "host:port" and "ray://host:port" mean any other cluster. "local" starts a new cluster on
    this machine, and stops it when the runner is closed."""

    away = True

    def __init__(self, address: str, workers: int | None = None) -> None:
        self.address = _check_address(address)
        self.workers = None if workers is None else available(workers)
        self.ray = _library()
        self._ours = False
        self._call: Any = None
        self._slots = 0
        self._looked_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._ours:
            self.ray.shutdown()
            self._ours = False
        self._call = None

    @property
    def slots(self) -> int:
        """The number of jobs that can run at a time: the cores of the cluster, which change as machines join and leave,
        but at most `workers`."""
        self._connect()
        if not self._slots or time.monotonic() - self._looked_at > LOOK_S:
            cores = int(self.ray.cluster_resources().get("CPU", 1))
            self._slots, self._looked_at = max(1, min(cores, self.workers or cores)), time.monotonic()
        return self._slots

    def run(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None = None) -> None:
        if any(not job.home for job in jobs):
            self._connect()
            _Sending(self, Batch(jobs, finished, where, lost)).run()
        for place, job in enumerate(jobs):
            if job.home:
                finished(place, job.call(*job.arguments))

    def send(self, job: Job) -> Any:
        """Send a job to a free core of the cluster."""
        self._connect()
        call = f"{job.call.__module__}:{job.call.__qualname__}"
        origin = Origin(__version__, str(Path.cwd()), sys.path, os.environ.get(TIMEOUT, DEFAULT_TIMEOUT))
        return self._call.remote(origin, call, job.arguments, job.folder)

    def _connect(self) -> None:
        if self._call is not None:
            return
        if not self.ray.is_initialized():
            _start(self.ray, self.address, self.workers)
            self._ours = True
        self._call = self.ray.remote(num_cpus=1, max_retries=0)(carry_out)


class _Sending:
    """Sends a batch of jobs to the cluster. Ray's own retries are off, so that this class can count how often a job
    lost its process."""

    def __init__(self, runner: RayRunner, batch: Batch) -> None:
        self.runner, self.ray, self.batch = runner, runner.ray, batch
        self.waiting = deque(place for place, job in enumerate(batch.jobs) if not job.home)

    def run(self) -> None:
        batch = self.batch
        try:
            while self.waiting or batch.under_way:
                batch.fill(self.waiting, self.runner.slots, self.runner.send)
                for sent in self.ray.wait(list(batch.under_way), num_returns=1, timeout=LOOK_S)[0]:
                    self._take(sent)
                batch.raise_first()
        except BaseException:
            for sent in batch.under_way:
                self.ray.cancel(sent, force=True)
            raise

    def _take(self, sent: Any) -> None:
        place = self.batch.under_way.pop(sent)
        kinds = self.ray.exceptions
        try:
            reply: Reply = self.ray.get(sent)
        except kinds.RayTaskError as error:
            self.batch.failed[place] = _own(error)
            return
        except kinds.TaskCancelledError:
            raise KeyboardInterrupt from None
        except kinds.RayError as error:
            self._lose(place, error)
            return
        job = self.batch.jobs[place]
        if job.folder is not None and reply.files:
            study.adopt(Path(job.arguments[job.folder]).parent, reply.files)
        self.batch.finished(place, reply.value)

    def _lose(self, place: int, error: Exception) -> None:
        losses = self.batch.losses
        losses[place] += 1
        if losses[place] <= RETRIES:
            time.sleep(PAUSE_S * losses[place])  # the cluster may not have noticed the loss yet
            self.waiting.append(place)
            return
        lines = str(error).splitlines() or [""]
        name, attempts = self.batch.jobs[place].name, f"in each of {RETRIES + 1} attempts"
        self.batch.give_up(place, f"{name} lost its process on the Ray cluster {attempts}: {one_line(lines[0])}")


def carry_out(origin: Origin, call: str, arguments: tuple[Any, ...], folder: int | None) -> Reply:
    """Run a job on a machine of the cluster, and return its value and the files that it wrote."""
    sys.stdout = sys.stderr
    if origin.version != __version__:
        here = f"{socket.gethostname()} of the Ray cluster has headway {__version__}, this machine {origin.version}"
        raise HeadwayError(
            f"{argument('ray')}: {here}. Install the same version on both, so that results are comparable."
        )
    if Path(origin.folder).is_dir():  # relative paths among the arguments resolve against this folder
        os.chdir(origin.folder)
    sys.path += [place for place in origin.path if place not in sys.path]
    os.environ[TIMEOUT] = origin.policy_timeout
    module, _, name = call.partition(":")
    function = getattr(import_module(module), name)
    if folder is None or arguments[folder] is None:
        return Reply(function(*arguments), {})
    with TemporaryDirectory(prefix="headway-") as place:
        beside = Path(place)
        changed = [*arguments]
        changed[folder] = beside / Path(arguments[folder]).name
        value = function(*changed)
        files = [file for file in sorted(beside.rglob("*")) if file.is_file()]
        return Reply(value, {file.relative_to(beside).as_posix(): file.read_bytes() for file in files})


def _own(error: Any) -> Exception:
    """Return the error that a job raised, without Ray's wrapper."""
    if NO_HEADWAY in str(error):
        return HeadwayError(
            f"{argument('ray')}: Headway is missing on a machine of the cluster. Install {__version__} on each."
        )
    cause: Exception = error.cause if isinstance(error.cause, Exception) else error
    return cause


def _check_address(address: str) -> str:
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if address in ("auto", "local") or (host and port.isdigit() and 0 < int(port) < 1 << 16):
        return address
    raise HeadwayError(
        f'{argument("ray")}: expected "auto", "local", "host:port" or "ray://host:port", got {shown(address)}.'
    )


def _library() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        return import_module("ray")
    except ImportError:
        raise missing_extra(argument("ray"), "ray", "ray") from None


def _start(ray: Any, address: str, workers: int | None) -> None:
    """Connect to the cluster at an address. If the address is "local", start a cluster."""
    loud = os.environ.get(LOGS, "0") not in ("", "0")
    options: dict[str, Any] = {"log_to_driver": loud, "logging_level": "INFO" if loud else "CRITICAL"}
    if address == "local":
        options |= {"num_cpus": workers or available(None), "include_dashboard": False, "_node_ip_address": LOOPBACK}
    elif address != "auto":
        _knock(ray, address)
    _hush(loud)
    try:
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError, ImportError) as error:
        raise HeadwayError(
            f"{argument('ray')}: no Ray cluster at {shown(address)}: {one_line(error, kind=False)}."
        ) from None


def _knock(ray: Any, address: str) -> None:
    """Raise an error at once if nothing listens at the address. Without this check, Ray would wait long before it
    fails."""
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    host = host.strip("[]")
    if not address.startswith(CLIENT) and host in ("localhost", "127.0.0.1", "::1"):
        host = ray.util.get_node_ip_address()  # Ray replaces a loopback address with this address
    try:
        socket.create_connection((host, int(port)), KNOCK_S).close()
    except OSError as error:
        why = error.strerror or one_line(error, kind=False)
        where = f"{host}:{port}"
        alias = "" if where in address else f", which Ray replaces by {where}"
        raise HeadwayError(f"{argument('ray')}: no Ray cluster answers at {shown(address)}{alias} ({why}).") from None


def _hush(loud: bool) -> None:
    """Redirect the messages that Ray prints about its machines from standard output to standard error. If `loud` is
    false, drop them."""
    worker: Any = import_module("ray._private.worker")
    original = getattr(worker, "print_to_stdstream", None)
    if original is None or getattr(original, "hushed", False):
        return

    def print_to_stderr(data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        if loud:
            original({**data, "is_err": True}, *arguments, **options)

    setattr(print_to_stderr, "hushed", True)  # noqa: B010
    worker.print_to_stdstream = print_to_stderr
