"""Compute the fitness of a candidate from figures: the gain over a baseline in each case, and the means of the gains.

A gain is a fraction of the baseline's figure: 0.1 means one tenth better. Raw latencies of different workloads are
never averaged, because the slowest workload would dominate the mean.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from headway.evolve.evaluation import CaseResult, Evaluation, by_workload
from headway.evolve.objectives import COMPLEXITY, PRIMARY, Objective, plain
from headway.results.statistics import mean_of

FAILED: Final = -10.0  # gain of a failed case, and the lower limit of every gain
MOST: Final = 10.0
COMPLETED: Final = "requests.completed"
# Prefixes of figures that already fall with every lost request. All other figures cover only completed requests.
COUNT_LOSSES: Final = ("throughput.", "requests.", "rates.", "sessions.", "slo.goodput")
Figures = Mapping[str, float | None]


def gains(objectives: Sequence[Objective], figures: Figures, baseline: Figures) -> dict[str, float]:
    """Return the gain of each objective in one case, and the weighted mean of these gains as `primary`."""
    values = {objective.name: gain(objective, figures, baseline) for objective in objectives}
    return {PRIMARY: weighted_mean(objectives, values), **values}


def gain(objective: Objective, figures: Figures, baseline: Figures) -> float:
    """Return the gain of an objective over the baseline in one case. If the candidate completes fewer requests than the
    baseline, its figure is worsened in proportion, so that dropping requests brings no advantage."""
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
    total = math.fsum(objective.weight for objective in objectives)
    return math.fsum(objective.weight * values[objective.name] for objective in objectives) / total


def fitness(
    objectives: Sequence[Objective],
    cases: Sequence[CaseResult],
    complexity: int,
    most: float = MOST,
    less: float = 0.0,
) -> dict[str, float]:
    """Return the fitness of a candidate: the value of each objective, their weighted mean `primary`, and the
    complexity. The value of an objective is the mean over workloads of the means over seeds, less
    `less`, but at most `most`. The keys are always the same, and the values are always finite."""
    workloads = by_workload(cases).values()
    values = {}
    for objective in objectives:
        means = [mean([case.gains[objective.name] for case in several]) for several in workloads]
        values[objective.name] = max(FAILED, min(most, mean(means) - less)) if means else FAILED
    return {PRIMARY: weighted_mean(objectives, values), **values, COMPLEXITY: float(complexity)}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def share(value: float) -> str:
    return f"{100 * value:+.1f} %"


# Paired comparisons over several seeds. The k-th seeds of all workloads together form one replicate.


class Gain(Struct, frozen=True):
    """The mean gain over workloads with its 95 % confidence interval, and the gain in each workload."""

    mean: float
    low: float | None  # None if there is a single seed, or if the seeds changed no figure
    high: float | None
    workloads: dict[str, float]

    @property
    def worst(self) -> str:
        """The name of the workload with the smallest gain."""
        return min(self.workloads, key=lambda name: self.workloads[name])

    @property
    def certain(self) -> bool:
        """Whether the confidence interval of the mean gain excludes zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def over_baseline(evaluation: Evaluation) -> Gain:
    """Return the primary gain of a candidate over the suite's baseline."""
    gains = {name: [case.gains[PRIMARY] for case in cases] for name, cases in evaluation.workloads().items()}
    return _gain(gains, varies(evaluation))


def over(evaluation: Evaluation, other: Evaluation, objectives: Sequence[Objective]) -> Gain | None:
    """Return the lead of one candidate over another: the mean difference of their primary gains in the same cases, that
    is, under the same seeds. A mean of ratios is not used, because it is biased. In `Gain.workloads`, the lead in each
    workload is a fraction of the other candidate's figures. If either candidate has failed, return None."""
    if not evaluation.ok or not other.ok:
        return None
    theirs = {(case.case, case.seed): case for case in other.cases}
    workloads = evaluation.workloads().items()
    pairs = {name: [(case, theirs[case.case, case.seed]) for case in cases] for name, cases in workloads}
    leads = {name: [a.gains[PRIMARY] - b.gains[PRIMARY] for a, b in several] for name, several in pairs.items()}
    gain = _gain(leads, varies(evaluation) or varies(other))
    return replace(gain, workloads={name: _share(several, objectives) for name, several in pairs.items()})


def varies(evaluation: Evaluation) -> bool:
    """Return whether any figure depends on the seed. If the workload is a trace, its requests are the same for all
    seeds."""
    return any(case.figures != cases[0].figures for cases in evaluation.workloads().values() for case in cases)


def _share(pairs: Sequence[tuple[CaseResult, CaseResult]], objectives: Sequence[Objective]) -> float:
    """Return the lead of one candidate over another in one workload. Each pair has the results of both candidates for
    one seed. For each objective, take the means over the seeds, and divide the difference of the means by the second
    candidate's mean."""
    shares = {}
    for objective in objectives:
        way = -1.0 if objective.direction == "minimize" else 1.0
        first, second = (mean([1.0 + way * pair[side].gains[objective.name] for pair in pairs]) for side in (0, 1))
        if second == 0:
            shares[objective.name] = 0.0 if first == 0 else way * MOST
        else:
            shares[objective.name] = max(FAILED, min(MOST, way * (first - second) / abs(second)))
    return weighted_mean(objectives, shares)


def _gain(values: Mapping[str, Sequence[float]], varied: bool) -> Gain:
    """Return the mean gain over workloads. `values` has, for each workload, a list with one gain per seed. The
    confidence interval uses only as many seeds per workload as the workload with the fewest seeds has."""
    workloads = {name: mean(several) for name, several in values.items()}
    whole = mean(list(workloads.values()))
    count = min(len(several) for several in values.values())
    interval = mean_of([mean([several[place] for several in values.values()]) for place in range(count)])
    if not varied or interval.low is None or interval.high is None:
        return Gain(whole, None, None, workloads)
    return Gain(whole, whole + interval.low - interval.mean, whole + interval.high - interval.mean, workloads)
