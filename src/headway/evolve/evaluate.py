"""Evaluate candidates on a part of a suite. If a candidate fails, no error is raised: its evaluation has the error."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import msgspec

from headway.config.wording import one_line, shown
from headway.display.progress import CountProgress, watch
from headway.errors import HeadwayError
from headway.evolve.bench import Bench, PlannedRun, Progress, policies_key
from headway.evolve.cache import Cache, Record
from headway.evolve.evaluation import Case, CaseResult, Evaluation
from headway.evolve.feedback import feedback
from headway.evolve.fitness import FAILED, MOST, fitness, gains
from headway.evolve.limits import Limits
from headway.evolve.objectives import PRIMARY
from headway.evolve.racing import Race, mean_gain
from headway.evolve.suite import DEFAULT, Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.results.scope import stages_of

_MEMORY: Final = Cache()  # default cache of this process; never stale, because the key of a run determines its result
LEAST_S: Final = 0.05  # minimum time limit of a run, even if less time is left
Candidate = Bundle | str | Path | Mapping[str, Any]
NOTHING: Final = Bundle("candidate", {})
NOT_RUN: Final = "skipped, because the candidate had failed in an earlier case."


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
    may: Iterable[str] | None = None,
    progress: Progress | bool = True,
) -> Evaluation:
    """Evaluate a candidate: a `Bundle`, the path of a bundle's file, or a bundle as a mapping.

    `part` is train, validation or held_out. If `cases` is set, evaluate these cases instead of a part, without the
    cascade. `deadline_s` limits the wall-clock time of the whole evaluation, except the baseline's runs; the suite's
    deadline limits each run. `cache` stores figures; it is a `Cache` or the path of its folder. If `told` is true, the
    worst case runs again with traced decisions, and the summary explains what went wrong in that case. Its suggestions
    are for the stages in `may`; without `may`, for the stages of the bundle.
    """
    loaded = Suite.load(suite)
    chosen = None if cases is None else tuple(cases)
    with _watched(progress, 1, loaded, part, chosen) as report:
        bench = _bench(loaded, cache, runner, limits, report)
        stages = None if may is None else stages_of(may)
        return _evaluate([bundle], loaded, bench, part, chosen, deadline_s, told, stages)[0]


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
    progress: Progress | bool = True,
    race: Race | None = None,
) -> list[Evaluation]:
    """Evaluate several candidates as `evaluate` does. The runner distributes all runs. `progress` is called after every
    run. In a `race`, candidates that fall behind its bars skip their remaining cases."""
    loaded = Suite.load(suite)
    chosen = None if cases is None else tuple(cases)
    with _watched(progress, len(bundles), loaded, part, chosen) as report:
        bench = _bench(loaded, cache, runner, limits, report)
        return _evaluate(bundles, loaded, bench, part, chosen, None, told, race=race)


def _watched(
    progress: Progress | bool, candidates: int, suite: Suite, part: str, cases: Sequence[Case] | None
) -> AbstractContextManager[Progress | None]:
    runs = (candidates + 1) * len(suite.cases(part) if cases is None else cases)  # with the baseline
    return watch(progress, lambda: CountProgress(runs, "runs"))


def _bench(
    suite: Suite,
    cache: Cache | str | Path | None,
    runner: Runner | None,
    limits: Limits | None,
    progress: Progress | None = None,
) -> Bench:
    records = cache if isinstance(cache, Cache) else _MEMORY if cache is None else cache_in(str(cache))
    limits = limits or Limits(deadline_s=suite.deadline_s, cpu_s=suite.deadline_s)
    return Bench(suite.objectives, records, limits, runner, progress)


@lru_cache(maxsize=64)
def cache_in(folder: str) -> Cache:
    """Return the cache of a folder. A process has only one cache per folder, so that it reads no record twice."""
    return Cache(folder)


def _evaluate(
    candidates: Sequence[Candidate],
    suite: Suite,
    bench: Bench,
    part: str,
    chosen: Iterable[Case] | None,
    deadline_s: float | None,
    explain: bool,
    may: tuple[str, ...] | None = None,
    race: Race | None = None,
) -> list[Evaluation]:
    """Run all candidates in rounds of cases. If a candidate fails, or the cascade or the race stops it, it skips later
    rounds."""
    cases = tuple(suite.cases(part) if chosen is None else chosen)
    if not cases:
        raise HeadwayError("cases: the list is empty. Pass at least one case.")
    trials = [Trial(candidate, suite) for candidate in candidates]
    bases = _bases(suite, bench, cases)
    until = math.inf if deadline_s is None else time.monotonic() + deadline_s
    late = Record(error=f"skipped, because the evaluation reached its deadline of {deadline_s or 0:g} s.")
    first = suite.cascade.first if suite.cascade is not None and part == "train" and chosen is None else 0
    bars = {} if race is None else race.bars
    for start, end in _rounds(len(cases), {first, *bars}, deadline_s is not None):
        alive = [trial for trial in trials if trial.alive]
        left = until - time.monotonic()
        runs = [PlannedRun(trial.bundle, case) for trial in alive for case in cases[start:end]]
        records = iter(bench.records(runs, max(LEAST_S, left)) if left > 0 else [late] * len(runs))
        for trial in alive:
            trial.add(cases[start:end], records, bases[start:end])
            if end == first:
                trial.sift(len(cases))
            if race is not None and end in bars:
                trial.compare(race, len(cases))
    words = _words(trials, bench, cases, until, may) if explain else {}
    evaluations = []
    for place, trial in enumerate(trials):
        draft = trial.evaluation(part, cases)
        summary = feedback(suite, trial.name, draft, words.get(place))
        evaluations.append(msgspec.structs.replace(draft, summary=summary))
    return evaluations


def _rounds(cases: int, looks: Iterable[int], singly: bool) -> Iterator[tuple[int, int]]:
    """Yield the start and end index of each round of cases. The first round is a single case, which shows whether a
    candidate works at all. Further rounds end after as many cases as `looks` has: those of the cascade and of the race.
    If `singly` is set because there is a deadline, each case is a round, so that no case begins too late."""
    ends = range(1, cases + 1) if singly else sorted({1, cases, *looks} - {0})
    start = 0
    for end in ends:
        yield start, end
        start = end


def _bases(suite: Suite, bench: Bench, cases: Sequence[Case]) -> list[dict[str, float | None]]:
    """Return the baseline's figures in each case. Raise an error if the baseline fails or lacks a figure."""
    baseline = Bundle("baseline", suite.baseline)
    records = bench.records([PlannedRun(baseline, case) for case in cases])
    for case, record in zip(cases, records, strict=True):
        if record.error is not None:
            raise HeadwayError(f"baseline: the baseline fails in {case.label}: {record.error}")
    for case, record in zip(cases, records, strict=True):
        for objective in suite.objectives:
            if objective.value(record.figures) is None:
                raise HeadwayError(f"objectives: {objective.name!r} has no value in {case.label} under the baseline.")
    return [record.figures for record in records]


def _words(
    trials: Sequence[Trial], bench: Bench, cases: Sequence[Case], until: float, may: tuple[str, ...] | None
) -> dict[int, tuple[int, str]]:
    """Return a mapping from the index of each working candidate to its worst case: the index and the summary of that
    case."""
    left = until - time.monotonic()
    worst = {place: trial.worst() for place, trial in enumerate(trials) if trial.works}
    if left <= 0 or not worst:
        return {}
    runs = [PlannedRun(trials[place].bundle, cases[case], True, may) for place, case in worst.items()]
    records = zip(worst.items(), bench.records(runs, left), strict=True)
    return {place: (case, record.told) for (place, case), record in records if record.told is not None}


class Trial:
    """The results of a candidate so far. If the candidate cannot be read, it has failed before the first case."""

    def __init__(self, candidate: Candidate, suite: Suite) -> None:
        self.suite = suite
        self.bundle, self.identity, self.complexity = NOTHING, "", 0
        self.error: str | None = None
        self.stopped: str | None = None
        self.most, self.behind = MOST, 0.0  # for a stopped candidate: limit of its objectives, and what they lose
        self.results: list[CaseResult] = []
        try:
            self.bundle = candidate if isinstance(candidate, Bundle) else Bundle.read(candidate)
            _check_plain(self.bundle)
            policies_key(self.bundle)  # reads the files that the bundle refers to, so that a missing file fails here
            self.identity, self.complexity = self.bundle.id, self.bundle.complexity
        except Exception as error:  # a candidate may contain any mistake; some even exceed the limits of a parser
            self.error = _encodable(one_line(error, kind=not isinstance(error, HeadwayError)) + ".")

    @property
    def name(self) -> str:
        return _encodable(str(self.bundle.name))

    @property
    def works(self) -> bool:
        return self.error is None

    @property
    def alive(self) -> bool:
        return self.works and self.stopped is None

    def add(
        self, cases: Sequence[Case], records: Iterator[Record], bases: Sequence[Mapping[str, float | None]]
    ) -> None:
        """Add the results of a round. Ignore the results after a failed case."""
        for case, base in zip(cases, bases, strict=True):
            record = next(records)
            if not self.works:
                continue
            if record.error is not None:
                self.error = f"{case.label}: {record.error}"
                self.results.append(self._failed(case, record.error))
            else:
                own = gains(self.suite.objectives, record.figures, base)
                self.results.append(CaseResult(case.name, case.seed, True, own, record.figures))

    def sift(self, cases: int) -> None:
        """If the fitness of the candidate on its cases so far is below the cascade's threshold, stop the candidate.
        `cases` is the number of all cases."""
        cascade = self.suite.cascade
        if cascade is None or not self.alive or len(self.results) == cases:
            return
        primary = fitness(self.suite.objectives, self.results, self.complexity)[PRIMARY]
        if primary < cascade.threshold:
            self._stop(cases, f"primary {primary:+.3f} is below the threshold {cascade.threshold:+.3f}")
            self.most = cascade.threshold

    def compare(self, race: Race, cases: int) -> None:
        """If the candidate is below the bar of a race, stop it. Its objectives then count as far below the bar over all
        cases as they are below the bar over the cases that ran, so that they can be compared with those of others."""
        bar = race.bars[len(self.results)] if self.alive else None
        if bar is None or (primary := mean_gain(self.suite.objectives, self.results)) >= bar:
            return
        self._stop(cases, f"primary {primary:+.3f} is below {bar:+.3f}, the lowest of the finalists")
        self.most, self.behind = race.whole, bar - race.whole

    def _stop(self, cases: int, why: str) -> None:
        self.stopped = f"stopped after {len(self.results)} of {cases} cases: {why}."

    def worst(self) -> int:
        """Return the index of the case with the smallest gain."""
        return min(range(len(self.results)), key=lambda place: self.results[place].gains[PRIMARY])

    def evaluation(self, part: str, cases: Sequence[Case]) -> Evaluation:
        """Return the evaluation without the summary. If the cascade or a race stopped the candidate, limit the value of
        each objective to the threshold. Otherwise high gains in the few cases that ran could make the candidate look
        better than one that ran all cases."""
        results = list(self.results)
        if not self.works:
            results += [self._failed(case, NOT_RUN) for case in cases[len(results) :]]
        scores = fitness(self.suite.objectives, results, self.complexity, self.most, self.behind)
        return Evaluation(self.works, self.error, scores, results, "", self.identity, part, self.stopped)

    def _failed(self, case: Case, error: str) -> CaseResult:
        names = [PRIMARY, *(objective.name for objective in self.suite.objectives)]
        return CaseResult(case.name, case.seed, False, dict.fromkeys(names, FAILED), error=error)


def _encodable(text: str) -> str:
    """Return the text. Escape characters that cannot be encoded as UTF-8."""
    return text.encode(errors="backslashreplace").decode()


def _check_plain(bundle: Bundle) -> None:
    """Raise an error if a value has no JSON form, because it could not be stored or sent to another process."""
    for stage, spec in bundle.policies.items():
        try:
            json.dumps(spec, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise HeadwayError(
                f"policies.{stage}: expected plain values and finite numbers, got {shown(spec)}."
            ) from None
