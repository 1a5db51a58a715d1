"""What the routing decisions of a run come to: what each scorer argued, and what better choices would have given."""

from __future__ import annotations

from array import array
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
    shares = _shares(scorer_weights(result.scenario["policies"]["routing"]))
    step = -(-len(decisions) // MOST)
    estimated = array("q")
    argued: dict[str, array[float]] = {}
    worst = Worst(tried)
    for place in range(0, len(decisions), step):
        one = decisions[place]
        estimated.append(one.estimated_regret_ps())
        for name, argument in _arguments(one):
            argued.setdefault(name, array("d")).append(argument)
        worst.look(one, estimated[-1])
    for again in tried.values():
        known = decisions.find(again.at_ps, again.request)
        if known is not None:
            worst.look(decisions[known], decisions[known].estimated_regret_ps())
    true = [one.regret_ps or 0 for one in tried.values()]
    return Decided(
        count=len(decisions),
        step=step,
        contributions={name: shares.get(name, 1.0) * fsum(all_) / len(all_) for name, all_ in argued.items()},
        estimated=regrets(estimated),
        true=regrets(true) if true else None,
        worst=worst.ranked(),
    )


def regrets(found_ps: Sequence[int]) -> Regrets:
    counts = [0] * len(CLASSES)
    edges = [edge * PS_PER_MS for edge in EDGES_MS]
    for one in found_ps:
        counts[bisect_left(edges, one)] += 1
    return Regrets(counts, sum(one > 0 for one in found_ps), spread_of(found_ps))


class Worst:
    """The decisions with the most regret: the true one where it is known, else as it was estimated."""

    def __init__(self, tried: Mapping[int, Counterfactual]) -> None:
        self.tried = tried
        self.found: dict[tuple[int, int], Bad] = {}  # by request and time, as one may be looked at twice
        self.least = 0

    def look(self, one: Decision, estimated_ps: int) -> None:
        known = self.tried.get(one.request)
        known = known if known is not None and known.at_ps == one.at_ps else None
        if (estimated_ps if known is None else known.regret_ps or 0) <= self.least:
            return
        self.found[one.request, one.at_ps] = _bad(one, estimated_ps, known)
        if len(self.found) >= 4 * WORST:
            self._cut()

    def ranked(self) -> list[Bad]:
        self._cut()
        return list(self.found.values())

    def _cut(self) -> None:
        """Only the worst stay, and who is no worse than the last of them need not be looked at again."""
        kept = sorted(self.found.items(), key=lambda item: (-item[1].regret_ps, item[0]))[:WORST]
        self.found = dict(kept)
        if len(kept) == WORST:
            self.least = kept[-1][1].regret_ps


def _arguments(one: Decision) -> list[tuple[str, float]]:
    """What each scorer gave the chosen candidate above the average of those that it scored."""
    found = []
    target = one.place(one.target)
    sign = -1 if one.lowest_wins else 1
    for name, scores in one.scores.items():
        given = [score for score in scores if score is not None]
        chosen = scores[target]
        if chosen is not None and len(given) > 1:
            found.append((name, sign * (chosen - fsum(given) / len(given))))
    return found


def _bad(one: Decision, estimated_ps: int, known: Counterfactual | None) -> Bad:
    told = [(ttft, place) for place, ttft in enumerate(one.estimated_ttft_ps) if ttft >= 0]
    return Bad(one, estimated_ps, one.candidates[min(told)[1]], None if known is None else known.regret_ps)


def _shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Of the total, where the policy has weights."""
    whole = fsum(map(abs, weights.values())) or 1.0
    return {name: weight / whole for name, weight in weights.items()}
