"""The runs of a plan: each candidate runs with several seeds, on all cores, and no run is repeated.

A search asks for one candidate at a time and names the candidates that it may ask for next, which idle workers start
early. The number of workers does not change the answer: runs that the search never asks for do not count.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from fractions import Fraction
from typing import Final, NamedTuple, Self

from headway.errors import HeadwayError
from headway.experiment.jobs import Job, strange
from headway.experiment.load_levels import Load
from headway.experiment.paired import with_seed
from headway.experiment.run import simulate
from headway.experiment.runner import DIED, Processes
from headway.experiment.space import Counts, Space
from headway.experiment.targets import Target
from headway.types import PS_PER_SECOND, Json

SECTIONS: Final = ("requests", "duration_s", "latency", "throughput", "slo", "cost")
Progress = Callable[[int], None]  # argument: number of finished runs


class Candidate(NamedTuple):
    """A cluster and its load."""

    counts: Counts
    load: Fraction


Run = tuple[Candidate, int]  # (candidate, number of the seed)


def figures(resolved: Json) -> Json:
    """Run a scenario and return the sections of its summary that a plan reads, and its arrival rate."""
    result = simulate(resolved, progress=False)
    summary, arrivals = result.summary(), result.requests["arrival_ps"]
    span_ps = arrivals[-1] - arrivals[0] if len(arrivals) else 0
    came = (len(arrivals) - 1) * PS_PER_SECOND / span_ps if span_ps else None
    return {"arrivals_per_s": came, **{name: summary[name] for name in SECTIONS}}


class Trials:
    """Simulates candidates on demand. `used` has the runs that the search asked for, in order. Use this class in a
    `with` statement."""

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
        self._processes = Processes(1 if strange(space.resolved["policies"]) else workers)
        self._progress = progress
        self._outcomes: dict[Run, Json | BaseException] = {}
        self._under_way: dict[Future[Json], Run] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.end()  # the search is over: drop the runs that workers started early

    def meets(self, candidate: Candidate, ahead: Iterable[Candidate] = ()) -> bool:
        """Return whether every target holds with every seed. `ahead` has candidates that may be asked for next."""
        later = self._runs(ahead)
        runs = self._runs([candidate])
        return all(self.meets_targets(self._figures(run, [*runs[at + 1 :], *later])) for at, run in enumerate(runs))

    def complete(self, candidates: Sequence[Candidate]) -> None:
        """Run candidates with all seeds."""
        runs = self._runs(candidates)
        for at, run in enumerate(runs):
            self._figures(run, runs[at + 1 :])

    def of(self, candidate: Candidate) -> list[Json]:
        """Return the figures of a candidate, one item per seed. Seeds that the search did not ask for are left out."""
        return [self.used[run] for run in self._runs([candidate]) if run in self.used]

    def meets_targets(self, run: Json) -> bool:
        return all(target.met(run) for target in self.targets)

    def _runs(self, candidates: Iterable[Candidate]) -> list[Run]:
        return [(candidate, seed) for candidate in candidates for seed in range(self.seeds)]

    def scenario(self, candidate: Candidate, seed: int = 0) -> Json:
        """Return the scenario of a candidate with its n-th seed."""
        scenario = with_seed(self.space.scenario(candidate.counts), seed)
        return {**scenario, "workload": self.load.scale(scenario["workload"], candidate.load)}

    def _figures(self, run: Run, ahead: Sequence[Run]) -> Json:
        if run not in self._outcomes:
            if self._processes.slots > 1:
                self._wait(run, ahead)
            else:
                self._finish(run, figures(self.scenario(*run)))
        outcome = self._outcomes[run]
        if isinstance(outcome, BaseException):
            raise outcome
        self.used[run] = outcome
        return outcome

    def _finish(self, run: Run, outcome: Json | BaseException) -> None:
        self._outcomes[run] = outcome
        if self._progress is not None:
            self._progress(len(self._outcomes))

    def _wait(self, run: Run, ahead: Sequence[Run]) -> None:
        """Wait for a run. Meanwhile, idle workers start the runs in `ahead`."""
        try:
            while run not in self._outcomes:
                self._send([run, *ahead])
                finished, _ = wait(self._under_way, return_when=FIRST_COMPLETED)
                for future in finished:
                    self._finish(self._under_way.pop(future), future.exception() or future.result())
                for outcome in self._outcomes.values():
                    if isinstance(outcome, BrokenProcessPool):
                        raise outcome
        except BrokenProcessPool:
            self._processes.on_loss()
            raise HeadwayError(f"plan: the process of a run {DIED}.") from None

    def _send(self, wishes: Sequence[Run]) -> None:
        for run in wishes:
            if run in self._outcomes or run in self._under_way.values():
                continue
            if len(self._under_way) >= self._processes.slots and run != wishes[0]:
                return
            job = Job("plan", figures, (self.scenario(*run),))
            self._under_way[self._processes.submit(job, self._processes.slots)] = run
