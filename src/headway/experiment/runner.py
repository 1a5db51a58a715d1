"""Where independent jobs run: the processes of this machine, or a Ray cluster (`ray_runner.py`).

A job's result is the same wherever it runs. At most two jobs a slot are under way, and one that was lost with its
process is run again, up to three times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Final, Protocol, Self

from headway.experiment.jobs import (
    RETRIES,
    Batch,
    Finished,
    Job,
    Lost,
    available,
    crew,
    defer_interrupts,
    end,
    interrupted,
    pool_of,
)

ENDED_BY: Final = "as os._exit, a crash or a want of memory does"
Progress = Callable[[int, int], None]  # jobs done so far, jobs in all


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
    """That many processes of this machine, by default one a core; or with the address of a Ray cluster, that cluster,
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
        if self._pool is not None and kind is None:
            self._pool.shutdown()
            self._pool = None
        self.end()

    def run(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None = None) -> None:
        away = [place for place, job in enumerate(jobs) if self.slots > 1 and not job.home]
        if len(away) < 2:
            away = []
        else:
            try:
                _Sending(self, Batch(jobs, finished, where, lost), min(self.slots, len(away))).send(away)
            except BaseException:
                self.end()
                raise
        left = set(away)
        for place, job in enumerate(jobs):
            if place not in left:
                finished(place, job.call(*job.arguments))

    def submit(self, job: Job, size: int) -> Future[Any]:
        """Give a job to the pool, which has that many processes or more."""
        if self._pool is not None and self._size < size:
            self._pool.shutdown()
            self._pool = None
        if self._pool is None:
            self._pool, self._size = pool_of(size), size
        with defer_interrupts():
            future = self._pool.submit(job.call, *job.arguments)
            self._crew = crew(self._pool)
        return future

    def on_loss(self) -> None:
        """A process of the pool is gone, and the pool with it."""
        if interrupted(self._crew):
            raise KeyboardInterrupt from None
        self.end()

    def end(self) -> None:
        """End the pool at once, whatever its processes are at."""
        if self._pool is not None:
            end(self._pool)
            self._pool = None


class _Sending:
    """A batch on its way through a pool. When a process is lost, any job under way may have done it: each of them is
    run again alone, so that the job that does so every time is known."""

    def __init__(self, processes: Processes, batch: Batch, size: int) -> None:
        self.processes, self.batch, self.size = processes, batch, size

    def send(self, places: list[int]) -> None:
        self._rush(deque(places))
        while suspects := [place for place, count in enumerate(self.batch.losses) if count]:
            for place in suspects:
                self._rush(deque([place]))

    def _rush(self, waiting: deque[int]) -> None:
        """Run the jobs that wait, as many at a time as the pool takes, until all are done or a process is lost."""
        batch = self.batch
        while waiting or batch.under_way:
            try:
                batch.fill(waiting, self.size, lambda job: self.processes.submit(job, self.size))
                for future in wait(batch.under_way, return_when=FIRST_COMPLETED).done:
                    self._finish(future)
            except BrokenProcessPool:
                self._lose()
            batch.raise_first()

    def _finish(self, future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, BrokenProcessPool):
            raise error
        place = self.batch.under_way.pop(future)
        self.batch.losses[place] = 0
        if isinstance(error, Exception):
            self.batch.failed[place] = error
        else:
            self.batch.finished(place, future.result())

    def _lose(self) -> None:
        batch = self.batch
        self.processes.on_loss()
        for future in [future for future in batch.under_way if future.done() and not future.cancelled()]:
            if not isinstance(future.exception(), BrokenProcessPool):
                self._finish(future)
        for place in batch.under_way.values():
            batch.losses[place] += 1
            if batch.losses[place] > RETRIES:
                batch.losses[place] = 0
                times = f"each of the {RETRIES + 1} times that {batch.jobs[place].name} was run"
                batch.give_up(place, f"a process was ended from within, {ENDED_BY}, {times}")
        batch.under_way.clear()


def run_jobs(runner: Runner, jobs: Sequence[Job], where: str, progress: Progress | None = None) -> list[Any]:
    """Run jobs, and return their results in order."""
    results: dict[int, Any] = {}

    def finish(place: int, result: Any) -> None:
        results[place] = result
        if progress is not None:
            progress(len(results), len(jobs))

    runner.run(jobs, finish, where)
    return [results[place] for place in range(len(jobs))]
