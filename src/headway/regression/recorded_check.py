"""The conditions of a check between two recordings: all windows are there at once, so there is a single look."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headway.regression.conditions import Condition, value_of
from headway.regression.measure import Evidence, Measured, measure, measure_apart
from headway.regression.recordings import Recording, compatible, how_many, independent, windows
from headway.types import Json

FEWEST: Final = 8  # windows below which they are not merged any further


class Compared(Struct, frozen=True):
    """The conditions of two recordings. `evidence` is empty if the windows could not be paired."""

    measured: tuple[Measured, ...]
    windows: int
    evidence: Evidence
    notes: tuple[str, ...]


def compare_recordings(
    base: Recording, candidate: Recording, conditions: Sequence[Condition], error: float
) -> Compared:
    """Compare two recordings, in pairs of windows if both have the same requests. `error` is that of each condition."""
    paired = compatible(base, candidate)
    many = how_many((base, candidate))
    sides = [windows(side, many) for side in (base, candidate)]
    while many >= 2 * FEWEST and not all(independent(series) for series in _series(conditions, sides, paired)):
        many //= 2
        sides = [windows(side, many) for side in (base, candidate)]
    notes = []
    if not all(independent(series) for series in _series(conditions, sides, paired)):
        notes.append(f"Even {many} windows resemble their neighbours, so the intervals may be too narrow.")
    if paired:
        evidence: Evidence = {"": list(zip(*sides, strict=True))}
        measured = [measure(each, evidence, error, whole=True) for each in conditions]
        return Compared(tuple(measured), many, evidence, tuple(notes))
    notes.append("The recordings have different requests, so their windows are compared as independent samples.")
    measured = [measure_apart(each, sides[0], sides[1], error) for each in conditions]
    return Compared(tuple(measured), many, {}, tuple(notes))


def _series(conditions: Sequence[Condition], sides: Sequence[Sequence[Json]], paired: bool) -> list[list[float]]:
    """Return the numbers whose independence the intervals of the conditions assume."""
    series = []
    for each in conditions:
        base, candidate = ([value_of(summary, each.figure) for summary in side] for side in sides)
        if paired:
            numbers = [each.number(*pair) for pair in zip(base, candidate, strict=True)]
            series.append([one for one in numbers if not isinstance(one, str)])
        else:
            series += [[one for one in side if one is not None] for side in (base, candidate)]
    return [each for each in series if len(each) > 1]
