"""Worker processes (how they start, what they inherit and how they end), and the jobs that they run.

A worker does not import the caller's script, so a script without a `__main__` guard works as well.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.context import BaseContext, SpawnContext, SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.user_policies import outside

PR_SET_PDEATHSIG = 1  # Linux: sets the signal that a process gets when its parent ends


def available(workers: int | None) -> int:
    """Return the number of processes to use: `workers`, by default one per core. A daemonic process may not start other
    processes, so return 1 there."""
    if workers is not None and workers < 1:
        raise HeadwayError(f"workers: must be at least 1, got {workers}.")
    if multiprocessing.current_process().daemon:
        return 1
    return workers or cores()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pool_of(size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(size, _context(), initializer=_begin, initargs=(os.getpid(),))


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Block Ctrl-C while workers start, because Python would lose the signal during a fork. Workers start with the
    signal blocked, and unblock it themselves."""
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def crew(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """Return the processes of a pool, or an empty list after the pool has shut down."""
    return list((getattr(pool, "_processes", None) or {}).values())


def _begin(parent: int) -> None:
    """Prepare a worker: it prints to standard error, ends silently on Ctrl-C, and does not outlive its parent."""
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    end_with_parent(parent)


def end_with_parent(parent: int) -> None:
    """Let the system end this process when its parent ends. `parent` is the id of the parent."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # the parent ended before prctl
        os._exit(1)


class _Worker(SpawnProcess):
    """A worker in a new interpreter. It does not import the caller's script: without a `__main__` guard, the import
    would run the script again."""

    def start(self) -> None:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # a module without a file, so there is nothing to import
        try:
            super().start()
        finally:
            sys.modules["__main__"] = script


class _Spawn(SpawnContext):
    Process = _Worker


def _context() -> BaseContext:
    """Return the method to start processes. Forking is fast, but only safe if there are no other threads: a forked
    process may hang on a lock that another thread holds."""
    return multiprocessing.get_context("fork") if sys.platform == "linux" and threads() == 1 else _Spawn()


def threads() -> int:
    """Count the threads of this process, including those that Python did not start."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


Finished = Callable[[int, Any], None]  # arguments: index of the job in its batch, value of the job
Lost = Callable[[int, str], None]  # arguments: index of a job that killed its process in every attempt, error message
AHEAD: Final = 2  # number of jobs in flight per slot: one runs, the other waits
RETRIES: Final = 3


class Job(Struct, frozen=True):
    """A call of a module's function with plain values as arguments."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    home: bool = False  # whether the job must run in the caller's process
    folder: int | None = None  # index of the argument that names a folder; the job writes into or next to it


class Batch:
    """The state of a batch of jobs: the jobs in flight, how often each job lost its process, and the errors that jobs
    raised."""

    def __init__(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None) -> None:
        self.jobs, self.finished, self.where, self.lost = jobs, finished, where, lost
        self.losses = [0] * len(jobs)
        self.under_way: dict[Any, int] = {}  # the runner's handle -> index of the job
        self.failed: dict[int, Exception] = {}

    def fill(self, waiting: deque[int], slots: int, send: Callable[[Job], Any]) -> None:
        """Send waiting jobs until `AHEAD` jobs per slot are in flight. After a job has failed, send no more jobs."""
        while waiting and not self.failed and len(self.under_way) < AHEAD * slots:
            sent = send(self.jobs[waiting[0]])
            self.under_way[sent] = waiting.popleft()

    def raise_first(self) -> None:
        """If a job has failed and no job before it in the batch is still in flight, raise its error. Jobs start in
        order, so the number of slots does not change which error is raised."""
        if self.failed and not any(place < min(self.failed) for place in self.under_way.values()):
            raise self.failed[min(self.failed)]

    def give_up(self, place: int, sentence: str) -> None:
        """Report a job that lost its process in every attempt."""
        if self.lost is None:
            raise HeadwayError(f"{self.where}: {sentence}.") from None
        self.lost(place, f"{sentence}.")


def strange(spec: Any) -> bool:
    """Return whether a policy or a part of it is defined in the caller's program, so that other processes cannot
    import it."""
    if isinstance(spec, dict):
        return any(strange(part) for pair in spec.items() for part in pair)
    if isinstance(spec, list | tuple):
        return any(map(strange, spec))
    if isinstance(spec, str):
        return any(outside(entry.make) for entry in registry.entries(name=registry.canonical(spec)))
    return not isinstance(spec, int | float | None)
