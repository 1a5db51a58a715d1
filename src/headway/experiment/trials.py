"""The runs of a plan: candidates under several seeds, on all cores, none of them twice.

A search asks for one candidate after the other and names those that it may ask for next, which idle workers begin
ahead of it. What it sees is the same however many workers there are: a run that it never asked for counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from fractions import Fraction
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Final, NamedTuple, Self

from headway.errors import HeadwayError
from headway.experiment.jobs import available, crew, end, interrupted, pool_of, strange, uninterrupted
from headway.experiment.load_levels import Load
from headway.experiment.paired import seeded
from headway.experiment.run import simulate
from headway.experiment.space import Counts, Space
from headway.experiment.targets import Target
from headway.types import PS_PER_SECOND, Json

SECTIONS: Final = ("requests", "duration_s", "latency", "throughput", "slo", "cost")
Progress = Callable[[int], None]  # runs done so far


class Candidate(NamedTuple):
    """A cluster under a load."""

    counts: Counts
    load: Fraction


Run = tuple[Candidate, int]  # under its n-th seed


def figures(resolved: Json) -> Json:
    """What a plan keeps of a run: the sections of its summary that it looks at, and the rate at which requests came."""
    result = simulate(resolved)
    summary, arrivals = result.summary(), result.requests["arrival_ps"]
    span_ps = arrivals[-1] - arrivals[0] if len(arrivals) else 0
    came = (len(arrivals) - 1) * PS_PER_SECOND / span_ps if span_ps else None
    return {"arrivals_per_s": came, **{name: summary[name] for name in SECTIONS}}


class Trials:
    """Runs on demand. `used` has those that were asked for, in order; it is to be closed, as a `with` does."""

    def __init__(
        self,
        space: Space,
        load: Load,
        targets: Sequence[Target],
        seeds: int,
        workers: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.space = space
        self.load = load
        self.targets = targets
        self.seeds = seeds
        self.used: dict[Run, Json] = {}
        self._size = 1 if strange(space.resolved["policies"]) else available(workers)
        self._progress = progress
        self._done: dict[Run, Json | BaseException] = {}
        self._under_way: dict[Future[Json], Run] = {}
        self._pool: ProcessPoolExecutor | None = None
        self._crew: list[BaseProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            end(self._pool)  # what was begun ahead is of no use any more

    # --- what a search asks ---------------------------------------------------------------------------------------

    def meets(self, candidate: Candidate, ahead: Iterable[Candidate] = ()) -> bool:
        """Whether every target holds under every seed; the first that does not decides. `ahead` is what may be asked
        for next."""
        later = [(one, seed) for one in ahead for seed in range(self.seeds)]
        runs = [(candidate, seed) for seed in range(self.seeds)]
        return all(self.kept(self._asked(run, [*runs[place + 1 :], *later])) for place, run in enumerate(runs))

    def complete(self, candidates: Sequence[Candidate]) -> None:
        """All seeds of these."""
        runs = [(one, seed) for one in candidates for seed in range(self.seeds)]
        for place, run in enumerate(runs):
            self._asked(run, runs[place + 1 :])

    def of(self, candidate: Candidate) -> list[Json]:
        """The figures of a candidate under the seeds that were asked for."""
        runs = ((candidate, seed) for seed in range(self.seeds))
        return [self.used[run] for run in runs if run in self.used]

    def kept(self, found: Json) -> bool:
        """Whether a run kept every target."""
        return all(target.met(found) for target in self.targets)

    # --- how it is run --------------------------------------------------------------------------------------------

    def scenario(self, candidate: Candidate, seed: int = 0) -> Json:
        """What is run: all three seeds of the scenario are counted up together."""
        made = seeded(self.space.scenario(candidate.counts), seed)
        return {**made, "workload": self.load.scaled(made["workload"], candidate.load)}

    def _asked(self, run: Run, ahead: Sequence[Run]) -> Json:
        if run not in self._done:
            if self._size > 1:
                self._wait(run, ahead)
            else:
                self._finish(run, figures(self.scenario(*run)))
        found = self._done[run]
        if isinstance(found, BaseException):
            raise found
        self.used[run] = found
        return found

    def _finish(self, run: Run, found: Json | BaseException) -> None:
        self._done[run] = found
        if self._progress is not None:
            self._progress(len(self._done))

    def _wait(self, run: Run, ahead: Sequence[Run]) -> None:
        """Until a run is done, with workers that are idle meanwhile at those ahead."""
        try:
            while run not in self._done:
                self._send([run, *ahead])
                finished, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._finish(self._under_way.pop(future), future.exception() or future.result())
                broken = next((found for found in self._done.values() if isinstance(found, BrokenProcessPool)), None)
                if broken is not None:
                    raise broken
        except BrokenProcessPool:
            if interrupted(self._crew):
                raise KeyboardInterrupt from None
            why = "as os._exit, a crash or a want of memory does"
            raise HeadwayError(f"plan: a process was ended from within, {why}.") from None

    def _send(self, wishes: Sequence[Run]) -> None:
        for run in wishes:
            if run in self._done or run in self._under_way.values():
                continue
            if len(self._under_way) >= self._size and run != wishes[0]:
                return
            if self._pool is None:
                self._pool = pool_of(self._size)
            with uninterrupted():
                self._under_way[self._pool.submit(figures, self.scenario(*run))] = run
                self._crew = crew(self._pool)
