"""What a search hands on: the candidates that nobody dominates, and of the best ones the winner on validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.journal import Judged
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.pareto import front, hypervolume
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner

FINALISTS: Final = 12  # candidates that are put to the validation part
SHOWN: Final = 12  # of the front


class Selection(Struct, frozen=True):
    """`front` is by the train part, best primary fitness first; `validated` are evaluations by a candidate's id."""

    front: list[Judged]
    dominated: float  # the volume between the front's objectives and the baseline
    winner: Judged
    chosen_on: str  # validation, or train where the suite has no validation part
    validated: dict[str, Evaluation]


def select(
    found: Sequence[Judged], suite: Suite, *, cache: Cache | None = None, runner: Runner | None = None
) -> Selection:
    """The winner has the highest primary fitness on validation; of equals the simplest, then the first."""
    working = [one for one in distinct(found) if one.evaluation.ok and one.evaluation.stopped is None]
    if not working:
        why = next((one.evaluation.error or one.evaluation.stopped for one in found), "nothing was tried")
        raise HeadwayError(f"{suite.name}: no candidate came through the train part; the first: {why}")
    names = [one.name for one in suite.objectives if one.weight > 0]
    points = [[one.evaluation.fitness[name] for name in names] for one in working]
    simple = [[*point, -one.evaluation.fitness[COMPLEXITY]] for point, one in zip(points, working, strict=True)]
    ahead = sorted((working[place] for place in front(simple)), key=_best_first)
    finalists = sorted(working, key=_best_first)[:FINALISTS]
    dominated = hypervolume(points, [0.0] * len(names))
    if not suite.parts.get("validation"):
        return Selection(ahead, dominated, min(finalists, key=_best_first), "train", {})
    judged = evaluate_many([one.bundle for one in finalists], suite, "validation", cache=cache, runner=runner)
    pairs = list(zip(finalists, judged, strict=True))
    winner = min(pairs, key=lambda pair: (-pair[1].fitness[PRIMARY], pair[1].fitness[COMPLEXITY]))[0]
    return Selection(ahead, dominated, winner, "validation", {one.bundle.id: made for one, made in pairs})


def distinct(found: Sequence[Judged]) -> list[Judged]:
    """Each candidate once, where it came first."""
    first: dict[str, Judged] = {}
    for one in found:
        first.setdefault(one.bundle.id, one)
    return list(first.values())


def _best_first(one: Judged) -> tuple[float, float]:
    return -one.evaluation.fitness[PRIMARY], one.evaluation.fitness[COMPLEXITY]
