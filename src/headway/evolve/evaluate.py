"""How good candidates are on a part of a suite. A bad candidate is no error: its record says what is wrong with it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.evolve.bench import Bench, PlannedRun, Progress, policies_key
from headway.evolve.cache import Cache, Record
from headway.evolve.evaluation import Case, CaseResult, Evaluation
from headway.evolve.feedback import feedback
from headway.evolve.fitness import MOST, failure_gains, fitness, gains
from headway.evolve.limits import Limits
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import DEFAULT, Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle

_MEMORY: Final = Cache()  # of this process, unless another is named: runs are pure, so it is never out of date
LEAST_S: Final = 0.05  # what a run is given even where next to nothing is left
Candidate = Bundle | str | Path | Mapping[str, Any]
NOTHING: Final = Bundle("candidate", {})
NOT_RUN: Final = "it was not run, since the candidate had failed before."


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
    late = Record(error=f"it was not run, since the {deadline_s or 0:g} s for the whole evaluation were over.")
    first = suite.cascade.first if suite.cascade is not None and part == "train" and chosen is None else 0
    for start, end in _rounds(len(cases), first, deadline_s is not None):
        alive = [trial for trial in trials if trial.alive]
        left = until - time.monotonic()
        runs = [PlannedRun(trial.bundle, case) for trial in alive for case in cases[start:end]]
        records = iter(bench.records(runs, max(LEAST_S, left)) if left > 0 else [late] * len(runs))
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


# A candidate on its way through the cases of a suite.


class Trial:
    """What is known of a candidate so far. One that cannot even be read has failed before the first case."""

    def __init__(self, candidate: Candidate, suite: Suite) -> None:
        self.suite = suite
        self.bundle, self.identity, self.complexity = NOTHING, "", 0
        self.error: str | None = None
        self.stopped: str | None = None
        self.results: list[CaseResult] = []
        try:
            self.bundle = candidate if isinstance(candidate, Bundle) else Bundle.read(candidate)
            _check_plain(self.bundle)
            policies_key(self.bundle)  # reads the files that it may refer to
            self.identity, self.complexity = self.bundle.id, self.bundle.complexity
        except Exception as error:  # whatever it can be wrong in, the limits of a parser included
            self.error = _encodable(one_line(error, kind=not isinstance(error, HeadwayError)) + ".")

    @property
    def name(self) -> str:
        return _encodable(str(self.bundle.name))

    @property
    def works(self) -> bool:
        return self.error is None

    @property
    def alive(self) -> bool:
        """Whether there is a reason to run it any further."""
        return self.works and self.stopped is None

    def add(
        self, cases: Sequence[Case], records: Iterator[Record], bases: Sequence[Mapping[str, float | None]]
    ) -> None:
        """Add its runs. After one that failed the others do not count, be they run or not."""
        for case, base in zip(cases, bases, strict=True):
            record = next(records)
            if not self.works:
                continue
            if record.error is not None:
                self.error = f"{case.label}: {record.error}"
                self.results.append(self._lost(case, record.error))
            else:
                own = gains(self.suite.objectives, record.figures, base)
                self.results.append(CaseResult(case.name, case.seed, True, own, record.figures))

    def sift(self, cases: int) -> None:
        """Stop it where the first cases, out of so many, were a disappointment."""
        cascade = self.suite.cascade
        if cascade is None or not self.alive or len(self.results) == cases:
            return
        primary = fitness(self.suite.objectives, self.results, self.complexity)[PRIMARY]
        if primary < cascade.threshold:
            reached = f"primary {primary:+.3f} is below {cascade.threshold:+.3f} there"
            self.stopped = f"stopped after {len(self.results)} of {cases} cases: {reached}."

    def worst(self) -> int:
        """The place of the case that it gained least in."""
        return min(range(len(self.results)), key=lambda place: self.results[place].gains[PRIMARY])

    def evaluation(self, part: str, cases: Sequence[Case]) -> Evaluation:
        """Its evaluation without the summary. No objective of a stopped candidate is above the threshold: it must not
        pass for a trade-off on the strength of cases that it never saw."""
        results = list(self.results)
        if not self.works:
            results += [self._lost(case, NOT_RUN) for case in cases[len(results) :]]
        most = MOST if self.stopped is None or self.suite.cascade is None else self.suite.cascade.threshold
        scores = fitness(self.suite.objectives, results, self.complexity, most)
        return Evaluation(self.works, self.error, scores, results, "", self.identity, part, self.stopped)

    def _lost(self, case: Case, error: str) -> CaseResult:
        return CaseResult(case.name, case.seed, False, failure_gains(self.suite.objectives), error=error)


def _encodable(text: str) -> str:
    """A text that can be written to a file, whatever a candidate has in its names."""
    return text.encode(errors="backslashreplace").decode()


def _check_plain(bundle: Bundle) -> None:
    """What JSON cannot hold can neither be written down nor run in another process."""
    for stage, spec in bundle.policies.items():
        try:
            json.dumps(spec, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise HeadwayError(
                f"policies.{stage}: expected plain values and finite numbers, got {shown(spec)}."
            ) from None
