"""Runs independent jobs in the processes of this machine, or on a Ray cluster (`ray_runner.py`).

A job's result is the same wherever it runs. At most two jobs per slot are in flight. If a process dies, its job is
retried up to three times.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, Final, Protocol, Self

from headway.experiment.jobs import RETRIES, Batch, Finished, Job, Lost, available, crew, defer_interrupts, pool_of

DIED: Final = "died (a crash, os._exit, or out of memory)"
Progress = Callable[[int, int], None]  # arguments: number of finished jobs, number of all jobs


class Runner(Protocol):
    """Runs batches of jobs. Use it in a `with` statement."""

    away: bool  # whether the runner runs jobs on other machines

    @property
    def slots(self) -> int:
        """The number of jobs that can run at a time."""

    def run(self, jobs: Sequence[Job], finished: Finished, where: str, lost: Lost | None = None) -> None:
        """Run all jobs and call `finished` for each, in any order. If a job kills its process in every attempt, call
        `lost`; without `lost`, raise an error. If jobs raise errors, raise the error of the first job in order."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...


def runner_of(workers: int | None = None, ray: str | None = None) -> Runner:
    """Return a runner with `workers` processes of this machine, by default one per core. With the address of a Ray
    cluster, return a runner for that cluster with at most `workers` jobs at a time."""
    if ray is None:
        return Processes(workers)
    from headway.experiment.ray_runner import RayRunner

    return RayRunner(ray, workers)


class Processes:
    """Runs jobs in processes of this machine. A later batch reuses the processes of an earlier batch."""

    away = False

    def __init__(self, workers: int | None = None) -> None:
        self.slots = available(workers)
        self._pool: ProcessPoolExecutor | None = None
        self._size = 0
        self._crew: list[BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        """Send a job to a pool of at least `size` processes."""
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
        """End the pool, which broke when a process died. If Ctrl-C ended the process, raise `KeyboardInterrupt`."""
        for process in self._crew:
            process.join(1)
        if any(process.exitcode == -signal.SIGINT for process in self._crew):
            raise KeyboardInterrupt from None
        self.end()

    def end(self) -> None:
        """Kill the processes of the pool without waiting for their jobs."""
        if self._pool is not None:
            for process in crew(self._pool):
                process.kill()
            # Wait for the pool's thread. Otherwise it might close pipes while the program exits.
            self._pool.shutdown(cancel_futures=True)
            self._pool = None


class _Sending:
    """Runs a batch of jobs in a pool. When a process dies, all jobs that were in flight are repeated one by one, to
    find the job that killed the process."""

    def __init__(self, processes: Processes, batch: Batch, size: int) -> None:
        self.processes, self.batch, self.size = processes, batch, size

    def send(self, places: list[int]) -> None:
        self._rush(deque(places))
        while suspects := [place for place, count in enumerate(self.batch.losses) if count]:
            for place in suspects:
                self._rush(deque([place]))

    def _rush(self, waiting: deque[int]) -> None:
        """Run the waiting jobs, as many at a time as the pool accepts. If a process dies, count a loss for each job in
        flight, and continue with the jobs that still wait."""
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
                name = batch.jobs[place].name
                batch.give_up(place, f"the process of {name} {DIED} in each of {RETRIES + 1} attempts")
        batch.under_way.clear()


def run_jobs(runner: Runner, jobs: Sequence[Job], where: str, progress: Progress | None = None) -> list[Any]:
    """Run jobs and return their results in order."""
    results: dict[int, Any] = {}

    def finish(place: int, result: Any) -> None:
        results[place] = result
        if progress is not None:
            progress(len(results), len(jobs))

    runner.run(jobs, finish, where)
    return [results[place] for place in range(len(jobs))]
