"""Independent runs on all cores. Only plain values travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any

from msgspec import Struct

from headway import registry
from headway.experiment.workers import available, crew, end, interrupted, pool_of, uninterrupted
from headway.types import HeadwayError
from headway.wording import listed

Finished = Callable[[int, Any], None]  # the place of a job, and what came of it
NAMED = 8  # jobs in a sentence; the rest are counted


class Job(Struct, frozen=True):
    """A call of a module's function. One that is at home here alone cannot go to another process."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[Any, ...]
    home: bool = False


def run_jobs(jobs: Sequence[Job], workers: int | None, finished: Finished, where: str) -> None:
    """Run them all, telling of each as it is done, in no certain order."""
    workers = available(workers)
    away = [place for place, job in enumerate(jobs) if workers > 1 and not job.home]
    if len(away) < 2:
        away = []
    else:
        _send(jobs, away, min(workers, len(away)), finished, where)
    left = set(away)
    for place, job in enumerate(jobs):
        if place not in left:
            finished(place, job.call(*job.arguments))


def _send(jobs: Sequence[Job], away: list[int], workers: int, finished: Finished, where: str) -> None:
    done: set[int] = set()
    with pool_of(workers) as pool:
        started: list[BaseProcess] = []
        try:
            with uninterrupted():
                futures = {pool.submit(jobs[place].call, *jobs[place].arguments): place for place in away}
                started = crew(pool)
            for future in as_completed(futures):
                place = futures[future]
                finished(place, future.result())
                done.add(place)
        except BrokenProcessPool:
            if interrupted(started):
                raise KeyboardInterrupt from None
            names = list(dict.fromkeys(jobs[place].name for place in away if place not in done))
            more = [] if len(names) <= NAMED + 1 else [f"{len(names) - NAMED} others"]
            left = listed([*(names[:NAMED] if more else names), *more])
            why = "as os._exit, a crash or a want of memory does"
            raise HeadwayError(f"{where}: a process was ended from within, {why}; unfinished: {left}.") from None
        except BaseException:
            end(pool)
            raise


def strange(spec: Any) -> bool:
    """Whether a policy, or a part of it, lives in the caller's program alone."""
    if isinstance(spec, dict):
        return any(strange(part) for pair in spec.items() for part in pair)
    if isinstance(spec, list | tuple):
        return any(map(strange, spec))
    if isinstance(spec, str):
        name = registry.canonical(spec)
        return any(entry.name == name and registry.outside(entry.make) for entry in registry.entries())
    return not isinstance(spec, int | float | None)
