"""Where independent jobs run: the processes of this machine, or a Ray cluster (`ray_runner.py`).

A job's result is the same wherever it runs. At most two jobs a slot are under way, and one that was lost with its
process is run again, up to three times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Protocol, Self

from headway.errors import HeadwayError
from headway.experiment.jobs import (
    AHEAD,
    RETRIES,
    Finished,
    Job,
    Lost,
    available,
    crew,
    end,
    first_failed,
    interrupted,
    pool_of,
    uninterrupted,
)


class Runner(Protocol):
    """Runs jobs, batch after batch. It is to be closed, as a `with` does."""

    away: bool  # whether it runs them on other machines

    @property
    def slots(self) -> int:
        """How many jobs can run at a time."""

    def run(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None = None) -> None:
        """Run them all, telling of each as it is done, in no certain order. Of a job that brought its process down
        every time `lost` is told; without it that is an error, and so is any other that a job raises: of several, that
        of the first job."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def runner_of(workers: int | None = None, ray: str | None = None) -> Runner:
    """So many processes of this machine, one a core unless told otherwise; or with the address of a Ray cluster, that,
    all of it or so many jobs at a time."""
    if ray is None:
        return Processes(workers)
    from headway.experiment.ray_runner import RayRunner

    return RayRunner(ray, workers)


class Processes:
    """The processes of this machine. Those that have been started are kept for the next batch."""

    away = False

    def __init__(self, workers: int | None = None) -> None:
        self.slots = available(workers)
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0
        self._crew: list[BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            if kind is None:
                self._pool.shutdown()
            else:
                end(self._pool)
            self._pool = None

    def run(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None = None) -> None:
        away = [place for place, job in enumerate(jobs) if self.slots > 1 and not job.home]
        if len(away) < 2:
            away = []
        else:
            try:
                _Batch(self, jobs, finished, where, lost).send(away)
            except BaseException:
                self._end()
                raise
        left = set(away)
        for place, job in enumerate(jobs):
            if place not in left:
                finished(place, job.call(*job.arguments))

    def submit(self, job: Job, wanted: int) -> Future[Any]:
        """A job for the pool, which is made to have the size that is wanted, or more."""
        if self._pool is not None and self._size < wanted:
            self._pool.shutdown()
            self._pool = None
        if self._pool is None:
            self._pool, self._size = pool_of(wanted), wanted
        with uninterrupted():
            future = self._pool.submit(job.call, *job.arguments)
            self._crew = crew(self._pool)
        return future

    def broken(self) -> None:
        """A process of the pool is gone, and the pool with it."""
        if interrupted(self._crew):
            raise KeyboardInterrupt from None
        self._end()

    def _end(self) -> None:
        if self._pool is not None:
            end(self._pool)
            self._pool = None


class _Batch:
    """Jobs that go to a pool. When a process of it is lost, any job under way may have done it: each of them is run
    again with nobody beside it, so that the one that does so every time is known."""

    def __init__(
        self, processes: Processes, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None
    ) -> None:
        self.processes = processes
        self.jobs = jobs
        self.finished = finished
        self.where = where
        self.lost = lost
        self.losses = dict.fromkeys(range(len(jobs)), 0)
        self.under_way: dict[Future[Any], int] = {}
        self.failed: dict[int, Exception] = {}

    def send(self, away: list[int]) -> None:
        size = min(self.processes.slots, len(away))
        self._rush(deque(away), size)
        while suspects := [place for place, count in self.losses.items() if count]:
            for place in suspects:
                self._rush(deque([place]), size)

    def _rush(self, waiting: deque[int], size: int) -> None:
        """As many as may be at a time, all of them or as far as no process is lost."""
        while waiting or self.under_way:
            try:
                while waiting and not self.failed and len(self.under_way) < AHEAD * size:
                    self.under_way[self.processes.submit(self.jobs[waiting[0]], size)] = waiting[0]
                    waiting.popleft()
                for future in wait(self.under_way, return_when=FIRST_COMPLETED).done:
                    self._tell(future)
            except BrokenProcessPool:
                self._lose()
            error = first_failed(self.failed, self.under_way.values())
            if error is not None:
                raise error

    def _tell(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise error
        place = self.under_way.pop(future)
        self.losses[place] = 0
        if isinstance(error, Exception):
            self.failed[place] = error
        else:
            self.finished(place, future.result())

    def _lose(self) -> None:
        self.processes.broken()
        for future in [one for one in self.under_way if one.done() and not one.cancelled()]:
            if not isinstance(future.exception(), BrokenProcessPool):
                self._tell(future)
        for place in self.under_way.values():
            self.losses[place] += 1
            if self.losses[place] > RETRIES:
                self._give_up(place)
        self.under_way.clear()

    def _give_up(self, place: int) -> None:
        self.losses[place] = 0
        why = "as os._exit, a crash or a want of memory does"
        name = self.jobs[place].name
        told = f"a process was ended from within, {why}, each of the {RETRIES + 1} times that {name} was run"
        if self.lost is None:
            raise HeadwayError(f"{self.where}: {told}.") from None
        self.lost(place, f"{told}.")
