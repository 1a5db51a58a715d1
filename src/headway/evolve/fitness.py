"""From figures to fitness: gains over a baseline, case by case, and their means.

A gain is a share of the baseline's figure: 0.1 is a tenth better. Raw latencies of different workloads are never
averaged: the slowest workload would decide everything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from headway.evolve.evaluation import CaseResult
from headway.evolve.objectives import COMPLEXITY, PRIMARY, Objective, plain

FAILED: Final = -10.0  # of a case that failed, and the least that any can have
MOST: Final = 10.0
COMPLETED: Final = "requests.completed"
# Figures to be high that fall of themselves with what is lost; the others look at what completed alone.
COUNT_LOSSES: Final = ("throughput.", "requests.", "rates.", "sessions.", "slo.goodput")
Figures = Mapping[str, float | None]


def gains(objectives: Sequence[Objective], figures: Figures, baseline: Figures) -> dict[str, float]:
    """Of one case, by objective, and their weighted mean as `primary`."""
    found = {one.name: gain(one, figures, baseline) for one in objectives}
    return {PRIMARY: weighted(objectives, found), **found}


def failed(objectives: Sequence[Objective]) -> dict[str, float]:
    """The gains of a case that came to nothing."""
    return {PRIMARY: FAILED, **{one.name: FAILED for one in objectives}}


def gain(objective: Objective, figures: Figures, baseline: Figures) -> float:
    """How much better than the baseline a case came out. Who completes less than the baseline has its figure worsened
    in that proportion, so that shedding does not pay."""
    value, base = objective.value(figures), objective.value(baseline)
    done, base_done = figures.get(COMPLETED) or 0.0, baseline.get(COMPLETED) or 0.0
    if value is None or base is None:
        return FAILED
    if done < base_done:
        if done <= 0:
            return FAILED
        if objective.direction == "minimize":
            value *= base_done / done
        elif not all(plain(path).startswith(COUNT_LOSSES) for path in objective.terms):
            value *= done / base_done
    better = base - value if objective.direction == "minimize" else value - base
    if base == 0:
        return 0.0 if better == 0 else math.copysign(MOST, better)
    return min(MOST, max(FAILED, better / abs(base)))


def weighted(objectives: Sequence[Objective], values: Mapping[str, float]) -> float:
    """The mean of the objectives' values by their weights."""
    total = math.fsum(one.weight for one in objectives)
    return math.fsum(one.weight * values[one.name] for one in objectives) / total


def fitness(
    objectives: Sequence[Objective], cases: Sequence[CaseResult], complexity: int, most: float = MOST
) -> dict[str, float]:
    """Of a candidate: for each objective the mean over the workloads of the means over their seeds, never above `most`;
    `primary`, their weighted mean; and its complexity. Always finite, always the same keys."""
    workloads: dict[str, list[CaseResult]] = {}
    for case in cases:
        workloads.setdefault(case.case, []).append(case)
    found = {}
    for one in objectives:
        means = [mean([case.gains[one.name] for case in several]) for several in workloads.values()]
        found[one.name] = min(most, mean(means)) if means else FAILED
    return {PRIMARY: weighted(objectives, found), **found, COMPLEXITY: float(complexity)}


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
