"""One scenario under many routing policies, on all cores."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from msgspec import Struct

from headway import registry
from headway.experiment.contenders import WHERE, Contender, contenders
from headway.experiment.run import simulate
from headway.experiment.verdict import verdict
from headway.results.compare import rank
from headway.scenario import DEFAULT, Scenario, Source
from headway.types import HeadwayError, Json
from headway.wording import listed

PR_SET_PDEATHSIG = 1  # Linux: the signal a process gets when its parent ends

Progress = Callable[[int, int], None]  # policies done so far, policies in all


class Comparison(Struct, frozen=True):
    """Summaries under each policy, best first."""

    scenario: Json
    ranked: list[tuple[str, Json]]
    verdict: str
    oracles: tuple[str, ...] = ()  # those that read the truth: a bound, never the best unless all are

    @property
    def best(self) -> str:
        return next((name for name, _ in self.ranked if name not in self.oracles), self.ranked[0][0])

    def summary(self) -> Json:
        """The document that `headway compare --json` prints."""
        return {
            "scenario": self.scenario["name"],
            "policies": [
                {"name": name, "oracle": name in self.oracles, "summary": summary} for name, summary in self.ranked
            ],
            "best": self.best,
            "verdict": self.verdict,
        }

    def __getitem__(self, name: str) -> Json:
        """The summary of a policy by its label, or by its bare name where that says which."""
        wanted = registry.canonical(name)
        for known, summary in self.ranked:
            if known in (name, wanted):
                return summary
        alike = [summary for known, summary in self.ranked if known.partition("(")[0] == wanted]
        if len(alike) == 1:
            return alike[0]
        raise KeyError(name)


def compare(
    scenario: Source = DEFAULT,
    policies: Any = None,
    *,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run a scenario under each routing policy (all of them unless `policies` says which) and rank what came out.

    Best is, where the scenario has an SLO, the largest share of requests within it, then the lowest p99 of TTFT;
    without one the fewest requests lost, then the lowest mean of E2E.

    A policy is a name, `path/to/file.py:Class`, a mapping with `name` and parameters, or a class or an object of the
    caller's own, which runs in this process; text may name several, separated by commas.
    """
    loaded = Scenario.load(scenario, overrides)
    resolved = loaded.resolved()
    found = contenders(loaded, policies)
    summaries = _run_all(resolved, found, workers or cores(), progress)
    ranked = rank(zip((one.name for one in found), summaries, strict=True))
    oracles = tuple(one.name for one in found if one.oracle)
    return Comparison(resolved, ranked, verdict(ranked, resolved, oracles), oracles)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _summary(resolved: Json, spec: Any) -> Json:
    return simulate(resolved, routing=spec).summary()


def _run_all(resolved: Json, found: list[Contender], workers: int, progress: Progress | None) -> list[Json]:
    """Every contender's summary, in order. Only plain values travel between processes; a policy that lives in the
    caller's own program, which no other process could find, runs here."""
    done: dict[int, Json] = {}
    away = [position for position, one in enumerate(found) if workers > 1 and _portable(one.spec)]
    here = [position for position in range(len(found)) if len(away) < 2 or position not in away]

    def finish(position: int, summary: Json) -> None:
        done[position] = summary
        if progress is not None:
            progress(len(done), len(found))

    if len(away) >= 2:
        size = min(workers, len(away))
        with ProcessPoolExecutor(size, _context(), initializer=_end_with, initargs=(os.getpid(),)) as pool:
            try:
                tasks = {pool.submit(_summary, resolved, found[position].spec): position for position in away}
                for task in as_completed(tasks):
                    finish(tasks[task], task.result())
            except BrokenProcessPool:
                left = listed([found[position].name for position in away if position not in done])
                why = "as os._exit, a crash or a want of memory does"
                raise HeadwayError(f"{WHERE}: a process was ended from within, {why}; unfinished: {left}.") from None
            except BaseException:
                _end(pool)
                raise
    for position in here:
        finish(position, _summary(resolved, found[position].spec))
    return [done[position] for position in range(len(found))]


def _portable(spec: Any) -> bool:
    if not isinstance(spec, str | dict):
        return False
    name, _ = registry.split(spec, WHERE)
    return ".py:" in name or registry.find("routing", name, WHERE).make.__module__.startswith("headway.")


def _end(pool: ProcessPoolExecutor) -> None:
    """Nobody waits for what the workers are still at."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.kill()
    pool.shutdown(wait=False, cancel_futures=True)


def _end_with(parent: int) -> None:
    """A worker ends at once and without a word on Ctrl-C, which reaches every process of the terminal, and does not
    outlive the caller, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the kernel was asked
        os._exit(1)


def _context() -> Any:
    # Forked workers do not import the caller's script again, so that one without a __main__ guard works as well.
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
