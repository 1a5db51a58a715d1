"""Scorecards, which explain routing decisions."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from headway.policies.context import Candidates
from headway.types import Scorecard
from headway.views.instance import InstanceView

TOTAL: Final = "score"  # if a policy has a single score, this is its name; the score is also the total
NO_TERMS: Final[Mapping[str, Sequence[float]]] = MappingProxyType({})


class Cuts:
    """Records which candidates each filter removed, in the order of the filters."""

    def __init__(self, candidates: Candidates) -> None:
        self.candidates = ids(candidates)
        self.removed: dict[str, list[str]] = {}
        self.passed_over: list[str] = []

    def note(self, name: str, before: Candidates, left: Candidates) -> None:
        """Record the candidates that a filter removed. A filter that would remove all candidates has no effect."""
        staying = {view.index for view in left}
        self.removed[name] = [view.id for view in before if view.index not in staying]
        if not staying:
            self.passed_over.append(name)

    def card(
        self, left: Candidates, scores: dict[str, list[float]], totals: list[float], picked: InstanceView
    ) -> Scorecard:
        return Scorecard(self.candidates, picked.id, self.removed, self.passed_over, ids(left), scores, totals)


def single_score_card(
    candidates: Candidates,
    totals: Sequence[float],
    picked: InstanceView,
    *,
    lowest_wins: bool = False,
    terms: Mapping[str, Sequence[float]] = NO_TERMS,
) -> Scorecard:
    """Return the scorecard of a policy that has one score for each candidate. If the score is a formula, `terms` has
    the values of its terms by name."""
    names, values = ids(candidates), list(totals)
    scores: dict[str, Any] = {TOTAL: values, **terms}
    return Scorecard(names, picked.id, left=names, scores=scores, totals=values, lowest_wins=lowest_wins)


def ids(views: Candidates) -> list[str]:
    return [view.id for view in views]


def number_duplicates(names: Sequence[str]) -> list[str]:
    """Add numbers to repeated names: queue-depth, queue-depth#2."""
    numbered: list[str] = []
    for at, name in enumerate(names):
        number = names[:at].count(name) + 1
        numbered.append(name if number == 1 else f"{name}#{number}")
    return numbered
