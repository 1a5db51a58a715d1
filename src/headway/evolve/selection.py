"""What a search hands on: the candidates that nobody dominates, and of the best ones the winner on validation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.evaluate import evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.journal import Judged
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner

# Pareto ranks, crowding and hypervolume. For every objective a higher value is better.

Point = Sequence[float]


def dominates(one: Point, other: Point) -> bool:
    """Whether `one` is nowhere below `other` and somewhere above."""
    pairs = list(zip(one, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def ranks(points: Sequence[Point]) -> list[int]:
    """0 for those that nobody dominates, 1 for those that only these do, and so on."""
    found = [0] * len(points)
    left = list(range(len(points)))
    rank = 0
    while left:
        best = [one for one in left if not any(dominates(points[other], points[one]) for other in left)]
        for one in best:
            found[one] = rank
        chosen = set(best)
        left = [one for one in left if one not in chosen]
        rank += 1
    return found


def front(points: Sequence[Point]) -> list[int]:
    """The places of those that nobody dominates."""
    return [place for place, one in enumerate(points) if not any(dominates(other, one) for other in points)]


def crowding(points: Sequence[Point]) -> list[float]:
    """How far apart the neighbours of each point are, summed over the objectives as shares of the whole spread; the
    points at the ends are infinitely far. Meant for points of one rank."""
    found = [0.0] * len(points)
    for axis in range(len(points[0]) if points else 0):
        order = sorted(range(len(points)), key=lambda place: points[place][axis])
        low, high = points[order[0]][axis], points[order[-1]][axis]
        found[order[0]] = found[order[-1]] = math.inf
        if high > low:
            for before, place, after in zip(order, order[1:], order[2:], strict=False):
                found[place] += (points[after][axis] - points[before][axis]) / (high - low)
    return found


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume between the points and a reference below them: what they dominate together. Points that are not above
    the reference everywhere add nothing."""
    above = [tuple(a - b for a, b in zip(point, reference, strict=True)) for point in points]
    return _volume([point for point in above if all(value > 0 for value in point)])


def _volume(points: list[tuple[float, ...]]) -> float:
    """Above the origin, by slices along the last objective: each is as high as the gap to the next lower point, and
    its base is what all points from there up dominate in the other objectives."""
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    points = _undominated(points)
    if len(points[0]) == 2:
        return _area(points)
    points.sort(key=lambda point: point[-1], reverse=True)
    slices = []
    for count, point in enumerate(points, 1):
        below = points[count][-1] if count < len(points) else 0.0
        if point[-1] > below:
            slices.append((point[-1] - below) * _volume([one[:-1] for one in points[:count]]))
    return math.fsum(slices)


def _area(points: list[tuple[float, ...]]) -> float:
    steps, highest = [], 0.0
    for width, height in sorted(points, reverse=True):
        if height > highest:
            steps.append(width * (height - highest))
            highest = height
    return math.fsum(steps)


def _undominated(points: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    points = sorted(dict.fromkeys(points), reverse=True)  # who dominates another comes before it
    kept: list[tuple[float, ...]] = []
    for point in points:
        if not any(dominates(other, point) for other in kept):
            kept.append(point)
    return kept


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
