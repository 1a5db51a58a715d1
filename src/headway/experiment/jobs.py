"""Worker processes: how they are started, what they inherit, and how they end.

A worker shares nothing with the caller but what it is handed. It neither needs nor runs the caller's script, so that
one without a `__main__` guard works as well.
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

PR_SET_PDEATHSIG = 1  # Linux: the signal a process gets when its parent ends


def available(workers: int | None) -> int:
    """How many workers there may be: that many, or one a core; a daemonic process may have none beside itself."""
    if workers is not None and workers < 1:
        raise HeadwayError(f"workers: one process at least, got {workers}.")
    if multiprocessing.current_process().daemon:
        return 1
    return workers or cores()


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def pool_of(size: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(size, _context(), initializer=_begin, initargs=(os.getpid(),))


@contextlib.contextmanager
def defer_interrupts() -> Iterator[None]:
    """Ctrl-C waits until workers have been started: amid a fork Python would lose it, and the worker would tell of it.
    They begin with it put off as well."""
    masks = hasattr(signal, "pthread_sigmask")
    if masks:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def crew(pool: ProcessPoolExecutor) -> list[BaseProcess]:
    """The workers of a pool, as long as it has any."""
    return list((getattr(pool, "_processes", None) or {}).values())


def interrupted(workers: list[BaseProcess]) -> bool:
    """Whether one of them was ended by Ctrl-C, of which its death may tell before the signal does."""
    for process in workers:
        process.join(1)
    return any(process.exitcode == -signal.SIGINT for process in workers)


def end(pool: ProcessPoolExecutor) -> None:
    """End a pool at once, without waiting for its workers."""
    for process in crew(pool):
        process.kill()
    pool.shutdown(cancel_futures=True)  # and waits for its thread, which must not close its pipes as we leave


def _begin(parent: int) -> None:
    """How a worker begins. What a policy prints there goes to standard error. It ends at once and without a word on
    Ctrl-C, which reaches every process of the terminal, and does not outlive the caller, however that ends."""
    sys.stdout = sys.stderr
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


class _Worker(SpawnProcess):
    """A new interpreter that leaves the caller's script alone: it has no use for it, and a script without a __main__
    guard would run there all over again."""

    def start(self) -> None:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")  # which names no file to import
        try:
            super().start()
        finally:
            sys.modules["__main__"] = script


class _Spawn(SpawnContext):
    Process = _Worker


def _context() -> BaseContext:
    """A fork starts in no time, but a copy of a program with other threads may hang on a lock that one of them held."""
    return multiprocessing.get_context("fork") if sys.platform == "linux" and _threads() == 1 else _Spawn()


def _threads() -> int:
    """All of the process, those that Python knows nothing of included."""
    try:
        return len(list(Path("/proc/self/task").iterdir()))
    except OSError:
        return threading.active_count()


# Independent runs, wherever they are done. Only plain values travel between processes.

Finished = Callable[[int, Any], None]  # the place of a job, and what came of it
Lost = Callable[[int, str], None]  # the place of a job that brought its process down every time, and a sentence on it
AHEAD: Final = 2  # jobs under way for each slot: one that runs, and one that waits for it
RETRIES: Final = 3


class Job(Struct, frozen=True):
    """A call of a module's function. One that is at home here alone cannot go to another process. `folder` is the place
    among the arguments of a folder that it writes, or beside which it writes."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    home: bool = False
    folder: int | None = None


class Batch:
    """Jobs under way at a runner: how often each was lost with its process, and the errors of those that failed."""

    def __init__(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None) -> None:
        self.jobs, self.finished, self.where, self.lost = jobs, finished, where, lost
        self.losses = [0] * len(jobs)
        self.under_way: dict[Any, int] = {}  # by what the runner has of each: the place of the job
        self.failed: dict[int, Exception] = {}

    def fill(self, waiting: deque[int], slots: int, send: Callable[[Job], Any]) -> None:
        """Send jobs that wait, as many as the slots have room for; none once a job has failed."""
        while waiting and not self.failed and len(self.under_way) < AHEAD * slots:
            sent = send(self.jobs[waiting[0]])
            self.under_way[sent] = waiting.popleft()

    def raise_first(self) -> None:
        """Raise the error of the first job that failed, once none before it is under way. Jobs are begun in order, so
        it is the same however many run at a time."""
        if self.failed and not any(place < min(self.failed) for place in self.under_way.values()):
            raise self.failed[min(self.failed)]

    def give_up(self, place: int, sentence: str) -> None:
        """Report a job that was lost every time."""
        if self.lost is None:
            raise HeadwayError(f"{self.where}: {sentence}.") from None
        self.lost(place, f"{sentence}.")


def strange(spec: Any) -> bool:
    """Whether a policy, or a part of it, lives in the caller's program alone."""
    if isinstance(spec, dict):
        return any(strange(part) for pair in spec.items() for part in pair)
    if isinstance(spec, list | tuple):
        return any(map(strange, spec))
    if isinstance(spec, str):
        return any(registry.outside(entry.make) for entry in registry.entries(name=registry.canonical(spec)))
    return not isinstance(spec, int | float | None)
