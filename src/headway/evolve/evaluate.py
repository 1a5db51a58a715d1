"""How good candidates are on a part of a suite. A bad candidate is no error: its record says what is wrong with it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from headway.errors import HeadwayError
from headway.evolve.bench import Bench, PlannedRun, Progress
from headway.evolve.cache import Cache, Record
from headway.evolve.evaluation import Case, Evaluation
from headway.evolve.feedback import feedback
from headway.evolve.limits import Limits
from headway.evolve.suite import DEFAULT, Suite
from headway.evolve.trial import Candidate, Trial
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle

_MEMORY: Final = Cache()  # of this process, unless another is named: runs are pure, so it is never out of date
LEAST_S: Final = 0.05  # what a run is given even where next to nothing is left


def evaluate(
    bundle: Candidate,
    suite: Suite | str | Path | Mapping[str, Any] = DEFAULT,
    part: str = "train",
    *,
    cases: Iterable[Case] | None = None,
    deadline_s: float | None = None,
    cache: Cache | str | Path | None = None,
    runner: Runner | None = None,
    limits: Limits | None = None,
    told: bool = True,
) -> Evaluation:
    """Judge a candidate: a `Bundle`, the file of one, or its document.

    `part` is train, validation or held_out; `cases` picks some instead, and then no cascade ends it early. `deadline_s`
    is for the whole of it by the wall clock, the baseline's runs aside; each run has the suite's own deadline besides.
    `cache` keeps figures, in a folder where one is named. With `told` the worst case is run again with its decisions
    traced, and the summary says what went wrong there.
    """
    suite = Suite.load(suite)
    bench = bench_of(suite, cache, runner, limits)
    return _evaluate([bundle], suite, bench, part, cases, deadline_s, told)[0]


def evaluate_many(
    bundles: Sequence[Candidate],
    suite: Suite | str | Path | Mapping[str, Any] = DEFAULT,
    part: str = "train",
    *,
    cases: Iterable[Case] | None = None,
    cache: Cache | str | Path | None = None,
    runner: Runner | None = None,
    limits: Limits | None = None,
    told: bool = False,
    progress: Progress | None = None,
) -> list[Evaluation]:
    """Judge several candidates at once, as `evaluate` would each; the runs of all of them are spread over the runner.
    `progress` is called after every run."""
    suite = Suite.load(suite)
    bench = bench_of(suite, cache, runner, limits, progress)
    return _evaluate(bundles, suite, bench, part, cases, None, told)


def bench_of(
    suite: Suite,
    cache: Cache | str | Path | None = None,
    runner: Runner | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Bench:
    """Where the runs of a suite are made."""
    records = cache if isinstance(cache, Cache) else _MEMORY if cache is None else cache_in(str(cache))
    limits = limits or Limits(deadline_s=suite.deadline_s, cpu_s=suite.deadline_s)
    return Bench(suite.objectives, records, limits, runner, progress)


@lru_cache(maxsize=64)
def cache_in(folder: str) -> Cache:
    """One a folder, so that a process reads no record twice."""
    return Cache(folder)


def _evaluate(
    candidates: Sequence[Candidate],
    suite: Suite,
    bench: Bench,
    part: str,
    chosen: Iterable[Case] | None,
    deadline_s: float | None,
    explain: bool,
) -> list[Evaluation]:
    """All candidates go through the cases in rounds; one that failed or was stopped is in no later one."""
    cases = tuple(suite.cases(part) if chosen is None else chosen)
    if not cases:
        raise HeadwayError("cases: one case at least is wanted.")
    trials = [Trial(candidate, suite) for candidate in candidates]
    bases = _bases(suite, bench, cases)
    until = math.inf if deadline_s is None else time.monotonic() + deadline_s
    first = suite.cascade.first if suite.cascade is not None and part == "train" and chosen is None else 0
    for start, end in _rounds(len(cases), first, deadline_s is not None):
        alive = [trial for trial in trials if trial.alive]
        left = until - time.monotonic()
        runs = [PlannedRun(trial.bundle, case) for trial in alive for case in cases[start:end]]
        records = iter(bench.records(runs, max(LEAST_S, left)) if left > 0 else [_late(deadline_s)] * len(runs))
        for trial in alive:
            trial.add(cases[start:end], records, bases[start:end])
            if end == first:
                trial.sift(len(cases))
    words = _words(trials, bench, cases, until) if explain else {}
    evaluations = []
    for place, trial in enumerate(trials):
        draft = trial.evaluation(part, cases)
        summary = feedback(suite, trial.name, draft, words.get(place))
        evaluations.append(msgspec.structs.replace(draft, summary=summary))
    return evaluations


def _rounds(cases: int, first: int, singly: bool) -> Iterator[tuple[int, int]]:
    """From which case to which. One case alone shows whether a candidate works at all; then come those of the cascade,
    then the others. With a deadline each is a round of its own, so that none begins too late."""
    ends = range(1, cases + 1) if singly else sorted({1, first, cases} - {0})
    start = 0
    for end in ends:
        yield start, end
        start = end


def _late(deadline_s: float | None) -> Record:
    return Record(error=f"it was not run, since the {deadline_s:g} s for the whole evaluation were over.")


def _bases(suite: Suite, bench: Bench, cases: Sequence[Case]) -> list[dict[str, float | None]]:
    """The baseline's figures in each case, which must have all that the objectives ask for. That it fails is no
    candidate's fault, and so an error."""
    baseline = Bundle("baseline", suite.baseline)
    records = bench.records([PlannedRun(baseline, case) for case in cases])
    for case, record in zip(cases, records, strict=True):
        if record.error is not None:
            raise HeadwayError(f"baseline: {case.label}: {record.error}")
    for case, record in zip(cases, records, strict=True):
        for objective in suite.objectives:
            if objective.value(record.figures) is None:
                raise HeadwayError(f"objectives: {objective.name!r} has no figure in {case.label} under the baseline.")
    return [record.figures for record in records]


def _words(trials: Sequence[Trial], bench: Bench, cases: Sequence[Case], until: float) -> dict[int, tuple[int, str]]:
    """For each candidate that works, by its place: its worst case, and what happened there."""
    left = until - time.monotonic()
    worst = {place: trial.worst() for place, trial in enumerate(trials) if trial.works}
    if left <= 0 or not worst:
        return {}
    runs = [PlannedRun(trials[place].bundle, cases[case], explain=True) for place, case in worst.items()]
    records = zip(worst.items(), bench.records(runs, left), strict=True)
    return {place: (case, record.told) for (place, case), record in records if record.told is not None}
