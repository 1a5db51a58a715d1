"""Where policies are put to cases: each run in a process of its own, and none that has been made already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve.cache import Cache, Key, Record
from headway.evolve.cases import PLAY, Case
from headway.evolve.fitness import COMPLETED
from headway.evolve.limits import Limits
from headway.evolve.objectives import Objective
from headway.evolve.worker import Failure, Task, confined, confined_many
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.scenario import references
from headway.types import Json

Progress = Callable[[], None]  # is told of every run that has been made
# Figures that a feedback tells, whatever the objectives are.
TOLD: Final = (
    COMPLETED,
    "requests.arrived",
    "latency.ttft.mean",
    "latency.ttft.p99",
    "latency.tpot.mean",
    "latency.e2e.mean",
    "latency.e2e.p99",
    "cache.token_hit_ratio",
    "slo.goodput_ratio",
    "balance.cv",
)


class Wanted(NamedTuple):
    """A run that somebody wants to know of."""

    bundle: Bundle
    case: Case
    told: bool = False


class Outcome(Struct, frozen=True):
    """Of one run: its figures, or why there are none."""

    figures: dict[str, float | None] = {}
    error: str | None = None
    told: str | None = None


class Bench:
    """Runs candidates on cases within limits, on a runner or one by one, and keeps what they gave."""

    def __init__(
        self,
        objectives: Sequence[Objective],
        cache: Cache,
        limits: Limits,
        runner: Runner | None = None,
        progress: Progress | None = None,
    ) -> None:
        paths = [path for one in objectives for path in one.terms]
        self.figures = tuple(dict.fromkeys((*paths, *TOLD)))
        self.cache, self.limits, self.runner, self.progress = cache, limits, runner, progress

    def outcomes(self, wanted: Sequence[Wanted], left_s: float | None = None) -> list[Outcome]:
        """Of each, in order. `left_s` is how long one may still take, where that is less than it may anyway."""
        keys = [Key(policies_key(one.bundle), one.case.key, one.case.seed) for one in wanted]
        found: dict[tuple[Key, bool], Outcome] = {}
        missing: dict[tuple[Key, bool], Wanted] = {}
        for key, one in zip(keys, wanted, strict=True):
            record = self.cache.find(key, self.figures, one.told)
            if record is None:
                missing[key, one.told] = one
            else:
                found[key, one.told] = _outcome(record)
        answers = self._run(list(missing.values()), left_s)
        for (key, told), answer in zip(missing, answers, strict=True):
            record = self._record(answer)
            if record is None:  # it met a limit, which another machine or another day may not set
                found[key, told] = Outcome(error=_why(answer))
            else:
                self.cache.keep(key, record)
                found[key, told] = _outcome(record)
        return [found[key, one.told] for key, one in zip(keys, wanted, strict=True)]

    def _run(self, wanted: Sequence[Wanted], left_s: float | None) -> list[Any]:
        """What came of each run: a document as `play` gives it, or a Failure."""
        limits = self.limits
        if left_s is not None and left_s < limits.deadline_s:
            limits = msgspec.structs.replace(limits, deadline_s=left_s)
        tasks = [Task(PLAY, [one.case.document(), one.bundle.policies, list(self.figures), one.told]) for one in wanted]
        if self.runner is not None:
            return confined_many(tasks, self.runner, limits, self._finished)
        found = []
        for place, task in enumerate(tasks):
            found.append(confined(task.call, task.arguments, limits))
            self._finished(place, found[-1])
        return found

    def _finished(self, place: int, value: Any) -> None:
        if self.progress is not None:
            self.progress()

    def _record(self, answer: Any) -> Record | None:
        try:
            record = msgspec.convert(answer, Record)
        except msgspec.ValidationError:
            return None
        return record if record.has(self.figures, False) else None


def _outcome(record: Record) -> Outcome:
    return Outcome({} if record.error else record.figures, record.error, record.told)


def _why(answer: Any) -> str:
    return answer.why if isinstance(answer, Failure) else "What it gave is no figures."


def policies_key(bundle: Bundle) -> str:
    """What stands for a bundle's policies in a cache: its id, unless they lie in files, whose bytes count then."""
    policies: Json = bundle.policies
    digested = references.digested(policies)
    if digested == policies:
        return bundle.id
    return blake2b(msgspec.json.encode(digested, order="sorted"), digest_size=8).hexdigest()


def baselines(bench: Bench, baseline: Bundle, cases: Sequence[Case]) -> list[dict[str, float | None]]:
    """The baseline's figures in each case. That it fails is no candidate's fault, and so an error."""
    outcomes = bench.outcomes([Wanted(baseline, case) for case in cases])
    for case, outcome in zip(cases, outcomes, strict=True):
        if outcome.error is not None:
            raise HeadwayError(f"baseline: {case.label}: {outcome.error}")
    return [outcome.figures for outcome in outcomes]
