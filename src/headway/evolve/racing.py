"""Racing: during a search, a candidate that falls behind all finalists skips its remaining cases.

After each look, a candidate is compared with the best candidates so far, over the same cases. If its mean gain is below
the mean gain of every one of them, it stops. The error of this rule is stated by ranks alone: the lowest of n + 1
candidates that are equally good is each of them with the same probability. So a candidate that is as good as the n
finalists stops wrongly with a probability of at most 1 / (n + 1) at each look.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count, takewhile
from typing import Final

from msgspec import Struct

from headway.evolve.evaluation import CaseResult, Evaluation
from headway.evolve.fitness import fitness
from headway.evolve.objectives import PRIMARY, Objective

FINALISTS: Final = 12  # number of best candidates, which also run on the validation part


class Race(Struct, frozen=True):
    """The bars of a race: for each look, the lowest mean gain of the finalists over as many cases. `whole` is the bar
    over all cases. Without bars, no candidate stops."""

    bars: dict[int, float] = {}
    whole: float = 0.0

    @classmethod
    def of(cls, evaluations: Iterable[Evaluation], objectives: Sequence[Objective]) -> Race:
        """Return the race against the best of the candidates that completed all cases. If fewer than `FINALISTS`
        candidates did, no candidate stops."""
        complete = {one.bundle_id: one for one in evaluations if one.ok and one.stopped is None}
        best = sorted(complete.values(), key=lambda one: -one.fitness[PRIMARY])[:FINALISTS]
        if len(best) < FINALISTS:
            return cls()

        def lowest(cases: int) -> float:
            return min(mean_gain(objectives, one.cases[:cases]) for one in best)

        cases = len(best[0].cases)
        return cls({look: lowest(look) for look in looks(cases)}, lowest(cases))


def mean_gain(objectives: Sequence[Objective], cases: Sequence[CaseResult]) -> float:
    return fitness(objectives, cases, 0)[PRIMARY]


def looks(cases: int) -> list[int]:
    """Return the numbers of cases after which candidates are compared: 1, 2, 3, 4, 6, 8, 12, 16 and so on. Every look
    waits for the slowest run, so many cases do not get a look each."""
    powers = (step << power for power in count() for step in (2, 3))
    return [1, *takewhile(lambda look: look < cases, powers)] if cases > 1 else []
