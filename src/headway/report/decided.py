"""What the routing decisions of a run come to: what each scorer argued, and what better choices would have given."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import fsum
from typing import Final

from msgspec import Struct

from headway.results.decisions import Decision, scorer_weights
from headway.results.percentiles import PS_PER_MS, Spread, spread_of
from headway.results.records import Counterfactual, best_alternatives
from headway.results.result import Result
from headway.results.survey import best_estimate, survey

WORST: Final = 10
MOST: Final = 100_000  # decisions that are looked at, evenly spread where there are more
EDGES_MS: Final = (-300, -100, -30, -10, -3, -1, 1, 3, 10, 30, 100, 300, 1000)
CLASSES: Final = (
    f"below {EDGES_MS[0]}",
    *("within ±1" if high == 1 else f"{low} to {high}" for low, high in pairwise(EDGES_MS)),
    f"above {EDGES_MS[-1]:,}",
)


class Regrets(Struct, frozen=True):
    """By how much sooner the first token would have come from the best candidate."""

    counts: list[int]  # of each of CLASSES
    some: int  # how many there are with any at all
    spread: Spread  # in milliseconds

    @property
    def total(self) -> int:
        return sum(self.counts)


class Bad(Struct, frozen=True):
    """A decision among the worst."""

    decision: Decision
    estimated_ps: int
    best: int  # the candidate that the latency model would have taken
    true_ps: int | None  # by simulation, where that was asked for

    @property
    def regret_ps(self) -> int:
        return self.estimated_ps if self.true_ps is None else self.true_ps


class Decided(Struct, frozen=True):
    """The decisions of one run."""

    count: int
    step: int  # every how-manieth was looked at
    contributions: dict[str, float]  # by scorer: how much more it gave the chosen than the average candidate
    estimated: Regrets
    true: Regrets | None
    worst: list[Bad]


def decided(result: Result) -> Decided | None:
    """None where no decision was written down."""
    decisions = result.decisions
    if decisions is None or not len(decisions):
        return None
    best = best_alternatives(result.counterfactuals)
    tried = {request: result.counterfactuals[place] for request, place in best.items()}
    step = -(-len(decisions) // MOST)
    found = survey(result, step=step)
    weights = scorer_weights(result.scenario["policies"]["routing"])
    whole = fsum(map(abs, weights.values())) or 1.0
    places = [place for _, place in found.worst]
    places += [place for one in tried.values() if (place := decisions.find(one.at_ps, one.request)) is not None]
    worst = [_bad(decisions[place], tried) for place in dict.fromkeys(places)]
    worst = sorted(
        (bad for bad in worst if bad.regret_ps > 0),
        key=lambda bad: (-bad.regret_ps, bad.decision.request, bad.decision.at_ps),
    )
    true = [one.regret_ps or 0 for one in tried.values()]
    return Decided(
        count=len(decisions),
        step=step,
        contributions={
            name: weights.get(name, whole) / whole * fsum(all_) / len(all_) for name, all_ in found.arguments.items()
        },
        estimated=regrets(found.regrets_ps),
        true=regrets(true) if true else None,
        worst=worst[:WORST],
    )


def regrets(found_ps: Sequence[int]) -> Regrets:
    counts = [0] * len(CLASSES)
    edges = [edge * PS_PER_MS for edge in EDGES_MS]
    for one in found_ps:
        counts[bisect_left(edges, one)] += 1
    return Regrets(counts, sum(one > 0 for one in found_ps), spread_of(found_ps))


def _bad(one: Decision, tried: Mapping[int, Counterfactual]) -> Bad:
    again = tried.get(one.request)
    true_ps = again.regret_ps or 0 if again is not None and again.at_ps == one.at_ps else None
    return Bad(one, one.estimated_regret_ps() or 0, one.candidates[best_estimate(one)], true_ps)
