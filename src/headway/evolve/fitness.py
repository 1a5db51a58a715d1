"""From figures to fitness: gains over a baseline, case by case, and their means.

A gain is a share of the baseline's figure: 0.1 is a tenth better. Raw latencies of different workloads are never
averaged: the slowest workload would decide everything.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headway.evolve.evaluation import CaseResult, Evaluation, by_workload
from headway.evolve.objectives import COMPLEXITY, PRIMARY, Objective, plain
from headway.results.statistics import mean_of

FAILED: Final = -10.0  # of a case that failed, and the least that any can have
MOST: Final = 10.0
COMPLETED: Final = "requests.completed"
# Figures to be high that fall of themselves with what is lost; the others look at what completed alone.
COUNT_LOSSES: Final = ("throughput.", "requests.", "rates.", "sessions.", "slo.goodput")
Figures = Mapping[str, float | None]


def gains(objectives: Sequence[Objective], figures: Figures, baseline: Figures) -> dict[str, float]:
    """Of one case, by objective, and their weighted mean as `primary`."""
    values = {objective.name: gain(objective, figures, baseline) for objective in objectives}
    return {PRIMARY: weighted_mean(objectives, values), **values}


def failure_gains(objectives: Sequence[Objective]) -> dict[str, float]:
    """The gains of a case that failed."""
    return {PRIMARY: FAILED, **{objective.name: FAILED for objective in objectives}}


def gain(objective: Objective, figures: Figures, baseline: Figures) -> float:
    """How much better than the baseline a case came out. If it completes less than the baseline, its figure is worsened
    in that proportion, so that shedding does not pay."""
    value, base = objective.value(figures), objective.value(baseline)
    completed, base_completed = figures.get(COMPLETED) or 0.0, baseline.get(COMPLETED) or 0.0
    if value is None or base is None:
        return FAILED
    if completed < base_completed:
        if completed <= 0:
            return FAILED
        if objective.direction == "minimize":
            value *= base_completed / completed
        elif not all(plain(path).startswith(COUNT_LOSSES) for path in objective.terms):
            value *= completed / base_completed
    better = base - value if objective.direction == "minimize" else value - base
    if base == 0:
        return 0.0 if better == 0 else math.copysign(MOST, better)
    return min(MOST, max(FAILED, better / abs(base)))


def weighted_mean(objectives: Sequence[Objective], values: Mapping[str, float]) -> float:
    """The mean of the objectives' values by their weights."""
    total = math.fsum(objective.weight for objective in objectives)
    return math.fsum(objective.weight * values[objective.name] for objective in objectives) / total


def fitness(
    objectives: Sequence[Objective], cases: Sequence[CaseResult], complexity: int, most: float = MOST
) -> dict[str, float]:
    """Of a candidate: for each objective the mean over the workloads of the means over their seeds, never above `most`;
    `primary`, their weighted mean; and its complexity. Always finite, always the same keys."""
    workloads = by_workload(cases).values()
    values = {}
    for objective in objectives:
        means = [mean([case.gains[objective.name] for case in several]) for several in workloads]
        values[objective.name] = min(most, mean(means)) if means else FAILED
    return {PRIMARY: weighted_mean(objectives, values), **values, COMPLEXITY: float(complexity)}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def share(value: float) -> str:
    return f"{100 * value:+.1f} %"


# Evaluations of several seeds, compared in pairs: the k-th seeds of all workloads together are one replicate.

Values = Mapping[str, Sequence[float]]  # a number for each seed, by workload


class Gain(Struct, frozen=True):
    """How much better something is: the mean over workloads with its 95 % interval, and each workload's."""

    mean: float
    low: float | None  # None where there is one seed alone, or where the seeds changed nothing
    high: float | None
    workloads: dict[str, float]

    @property
    def worst(self) -> str:
        """The workload that it gains least in."""
        return min(self.workloads, key=lambda name: self.workloads[name])

    @property
    def certain(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def over_baseline(evaluation: Evaluation) -> Gain:
    """The primary gain over the suite's baseline."""
    gains = {name: [case.gains[PRIMARY] for case in cases] for name, cases in evaluation.workloads().items()}
    return _gain(gains, varies(evaluation))


def over(evaluation: Evaluation, other: Evaluation, objectives: Sequence[Objective]) -> Gain | None:
    """How far one candidate is ahead of another: the mean of the differences of their primary gains, case by case under
    the same seeds; a mean of ratios would favour one of them where only chance differs. That of a workload is a share
    of the other's figures. None if either has failed."""
    if not evaluation.ok or not other.ok:
        return None
    theirs = {(case.case, case.seed): case for case in other.cases}
    workloads = evaluation.workloads().items()
    pairs = {name: [(case, theirs[case.case, case.seed]) for case in cases] for name, cases in workloads}
    leads = {name: [a.gains[PRIMARY] - b.gains[PRIMARY] for a, b in several] for name, several in pairs.items()}
    gain = _gain(leads, varies(evaluation) or varies(other))
    return replace(gain, workloads={name: _share(several, objectives) for name, several in pairs.items()})


def varies(evaluation: Evaluation) -> bool:
    """Whether the seeds changed anything. Those of a trace do not, and then all of them say no more than one."""
    return any(case.figures != cases[0].figures for cases in evaluation.workloads().values() for case in cases)


def _share(pairs: Sequence[tuple[CaseResult, CaseResult]], objectives: Sequence[Objective]) -> float:
    """By how much the figures of the first are better, as a share of the second's: ratios of means over the seeds."""
    shares = {}
    for objective in objectives:
        way = -1.0 if objective.direction == "minimize" else 1.0
        mine, its = (mean([1.0 + way * pair[side].gains[objective.name] for pair in pairs]) for side in (0, 1))
        if its == 0:
            shares[objective.name] = 0.0 if mine == 0 else way * MOST
        else:
            shares[objective.name] = max(FAILED, min(MOST, way * (mine - its) / abs(its)))
    return weighted_mean(objectives, shares)


def _gain(values: Values, varied: bool) -> Gain:
    """The mean over workloads; with an interval over as many replicates as every workload has seeds, if these changed
    anything."""
    workloads = {name: mean(several) for name, several in values.items()}
    whole = mean(list(workloads.values()))
    count = min(len(several) for several in values.values())
    interval = mean_of([mean([several[place] for several in values.values()]) for place in range(count)])
    if not varied or interval.low is None or interval.high is None:
        return Gain(whole, None, None, workloads)
    return Gain(whole, whole + interval.low - interval.mean, whole + interval.high - interval.mean, workloads)
