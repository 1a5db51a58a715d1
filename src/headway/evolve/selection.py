"""The Pareto front of a search, and the choice of the winner on the validation part."""

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
from headway.evolve.racing import FINALISTS
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner

Point = Sequence[float]  # a value for each objective; higher is better


def dominates(point: Point, other: Point) -> bool:
    """Return whether `point` is at least as high as `other` in every objective, and higher in at least one."""
    pairs = list(zip(point, other, strict=True))
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def ranks(points: Sequence[Point]) -> list[int]:
    """Return the Pareto rank of each point. If no other point dominates a point, its rank is 0. If only points of rank
    0 dominate it, its rank is 1, and so on."""
    order = [0] * len(points)
    left = list(range(len(points)))
    rank = 0
    while left:
        best = {left[place] for place in front([points[place] for place in left])}
        for place in best:
            order[place] = rank
        left = [place for place in left if place not in best]
        rank += 1
    return order


def front(points: Sequence[Point]) -> list[int]:
    """Return the indexes of the points that no other point dominates."""
    return [place for place, point in enumerate(points) if not any(dominates(other, point) for other in points)]


def crowding(points: Sequence[Point]) -> list[float]:
    """Return the crowding distance of each point among points of one rank. It is the distance between the two
    neighbours of the point as a fraction of the range, summed over the objectives. The two extreme points of each
    objective have an infinite distance."""
    distances = [0.0] * len(points)
    for axis in range(len(points[0]) if points else 0):
        order = sorted(range(len(points)), key=lambda place: points[place][axis])
        low, high = points[order[0]][axis], points[order[-1]][axis]
        distances[order[0]] = distances[order[-1]] = math.inf
        if high > low:
            for before, place, after in zip(order, order[1:], order[2:], strict=False):
                distances[place] += (points[after][axis] - points[before][axis]) / (high - low)
    return distances


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """Return the volume above a reference point that the points dominate together. If a point is not above the
    reference in every objective, it adds no volume."""
    above = [tuple(a - b for a, b in zip(point, reference, strict=True)) for point in points]
    return _volume([point for point in above if all(value > 0 for value in point)])


def _volume(points: list[tuple[float, ...]]) -> float:
    """Return the volume above the origin that the points dominate together. Cut the volume into slices at the points'
    values of the last objective. The height of a slice is the difference between two such values. The base of a slice
    is the volume that the points at or above the slice dominate in the other objectives."""
    if not points:
        return 0.0
    if len(points[0]) == 1:
        return max(point[0] for point in points)
    points = list(dict.fromkeys(points))
    points = [points[place] for place in front(points)]
    if len(points[0]) == 2:
        return _area(points)
    points.sort(key=lambda point: point[-1], reverse=True)
    slices = []
    for count, point in enumerate(points, 1):
        below = points[count][-1] if count < len(points) else 0.0
        if point[-1] > below:
            slices.append((point[-1] - below) * _volume([higher[:-1] for higher in points[:count]]))
    return math.fsum(slices)


def _area(points: list[tuple[float, ...]]) -> float:
    steps, highest = [], 0.0
    for width, height in sorted(points, reverse=True):
        if height > highest:
            steps.append(width * (height - highest))
            highest = height
    return math.fsum(steps)


SHOWN: Final = 12  # maximum number of candidates of the front in the report


class Selection(Struct, frozen=True):
    """The winner and the Pareto front. `front` is computed on the train part and sorted by descending primary fitness.
    `validated` has the evaluations on the validation part by candidate id."""

    front: list[Judged]
    dominated: float  # hypervolume of the front above the baseline
    winner: Judged
    chosen_on: str  # validation, or train if the suite has no validation part
    validated: dict[str, Evaluation]


def select(
    judged: Sequence[Judged], suite: Suite, *, cache: Cache | None = None, runner: Runner | None = None
) -> Selection:
    """Choose the winner: the finalist with the highest primary fitness on the validation part. Of equal finalists,
    choose the simplest, and then the first. If the suite has no validation part, use the train part."""
    first: dict[str, Judged] = {}
    for candidate in judged:
        first.setdefault(candidate.bundle.id, candidate)
    working = [tried for tried in first.values() if tried.evaluation.ok and tried.evaluation.stopped is None]
    if not working:
        why = next((tried.evaluation.error or tried.evaluation.stopped for tried in judged), "there was none.")
        raise HeadwayError(f"{suite.name}: no candidate completed the train part. The first candidate: {why}")
    names = [objective.name for objective in suite.objectives if objective.weight > 0]
    fitnesses = [tried.evaluation.fitness for tried in working]
    points = [[fitness[name] for name in names] for fitness in fitnesses]
    simple = [[*point, -fitness[COMPLEXITY]] for point, fitness in zip(points, fitnesses, strict=True)]
    ahead = sorted((working[place] for place in front(simple)), key=lambda tried: _best_first(tried.evaluation))
    finalists = sorted(working, key=lambda tried: _best_first(tried.evaluation))[:FINALISTS]
    dominated = hypervolume(points, [0.0] * len(names))
    if not suite.parts.get("validation"):
        return Selection(ahead, dominated, finalists[0], "train", {})
    bundles = [finalist.bundle for finalist in finalists]
    evaluations = evaluate_many(bundles, suite, "validation", cache=cache, runner=runner, progress=False)
    validated = {bundle.id: evaluation for bundle, evaluation in zip(bundles, evaluations, strict=True)}
    winner = min(finalists, key=lambda finalist: _best_first(validated[finalist.bundle.id]))
    return Selection(ahead, dominated, winner, "validation", validated)


def _best_first(evaluation: Evaluation) -> tuple[float, float]:
    return -evaluation.fitness[PRIMARY], evaluation.fitness[COMPLEXITY]
