"""The runs of a check: for each replicate (a seed, or a window of a trace), both sides in every workload."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.experiment.jobs import Job, strange
from headway.experiment.paired import with_seed
from headway.experiment.run import simulate
from headway.experiment.runner import Progress, Runner, run_jobs
from headway.regression.sides import BASE, CANDIDATE, Workload
from headway.regression.trace_windows import Windows, windows_of
from headway.results.records import NOTE, Finding
from headway.types import Json

WHERE: Final = "check"
EXPLAINED: Final = 4  # pairs of each workload whose findings are searched for


class Run(Struct, frozen=True):
    """What a check keeps of a run: the summary without its instances, and the findings above the level of a note. The
    findings are None if they were not wanted."""

    summary: Json
    findings: dict[str, str] | None  # kind -> title of its first finding


Pair = tuple[Run, Run]  # base, candidate


class Trials:
    """Runs pairs on demand. `pairs[workload][n]` is the n-th pair of a workload."""

    def __init__(self, workloads: Sequence[Workload], seeds: int) -> None:
        self.workloads = workloads
        self.windows = {each.name: windows_of(each.name, each.base, seeds) for each in workloads}
        known = [len(each) for each in self.windows.values() if each is not None]
        self.most = min([seeds, *known])
        self.pairs: dict[str, list[Pair]] = {each.name: [] for each in workloads}

    @property
    def windowed(self) -> bool:
        return any(each is not None for each in self.windows.values())

    @property
    def exhausted(self) -> bool:
        """Whether all windows of the traces ran, so that there can be no further pairs."""
        return all(each is not None and len(each) == self.count for each in self.windows.values())

    @property
    def count(self) -> int:
        return len(next(iter(self.pairs.values())))

    def run_to(self, count: int, runner: Runner, progress: Progress | None = None) -> None:
        """Run pairs until each workload has `count` of them."""
        jobs = [
            self._job(each, number, side)
            for number in range(self.count, count)
            for each in self.workloads
            for side in (BASE, CANDIDATE)
        ]
        before, whole = self.count * 2 * len(self.workloads), self.most * 2 * len(self.workloads)

        def report(finished: int, total: int) -> None:
            if progress is not None:
                progress(before + finished, whole)

        runs = iter(run_jobs(runner, jobs, WHERE, report))
        for _ in range(self.count, count):
            for each in self.workloads:
                self.pairs[each.name].append((next(runs), next(runs)))

    def _job(self, workload: Workload, number: int, side: str) -> Job:
        resolved = workload.base if side == BASE else workload.candidate
        home = strange(resolved["policies"])
        windows: Windows | None = self.windows[workload.name]
        seeded = with_seed(resolved, workload.first_seed + number)
        scenario = seeded if windows is None else windows.scenario(seeded, number)
        return Job(f"the {side} in {workload.name}", _run, (scenario, side, workload.name, number < EXPLAINED), home)


def _run(scenario: Json, side: str, workload: str, with_findings: bool) -> Run:
    """Run one scenario in a worker."""
    try:
        result = simulate(scenario, progress=False)
    except HeadwayError as error:
        raise HeadwayError(f"{side}, {workload}: {error}") from None
    summary = {key: value for key, value in result.summary().items() if key != "instances"}
    return Run(summary, kinds(result.findings()) if with_findings else None)


def kinds(findings: Sequence[Finding]) -> dict[str, str]:
    """Return the kinds of findings above the level of a note, with the title of the first of each kind."""
    found: dict[str, str] = {}
    for each in findings:
        if each.level != NOTE:
            found.setdefault(each.kind, each.title)
    return found
