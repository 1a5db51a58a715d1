"""Findings are about episodes: what happened again and again with little time between belongs together, and of many
episodes the worst are told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import nlargest
from typing import Final

from headway.results.records import EXAMPLES, Finding

MOST: Final = 5  # findings of one kind


def runs(times: Sequence[int], gap_ps: int) -> Iterator[tuple[int, int]]:
    """Maximal stretches of ascending times with no more than the gap between two of them, as slices."""
    begin = 0
    for place in range(1, len(times) + 1):
        if place == len(times) or times[place] - times[place - 1] > gap_ps:
            yield begin, place
            begin = place


def worst(found: Iterable[Finding]) -> list[Finding]:
    """The most severe of one kind, each with how many there were in all in its evidence."""
    every = list(found)
    kept = sorted(every, key=lambda one: (-one.severity, one.at_ps))[:MOST]
    return [_numbered(one, len(every)) for one in kept]


def _numbered(one: Finding, count: int) -> Finding:
    one.evidence["of_this_kind"] = count
    return one


def examples(weights: Iterable[tuple[float, int]]) -> list[int]:
    """The requests of the greatest weights, the heaviest first; of equals the first to arrive."""
    return [-row for _, row in nlargest(EXAMPLES, ((weight, -row) for weight, row in weights))]


def busiest(counts: dict[int, int]) -> list[int]:
    """Keys by their counts, the most first."""
    return sorted(counts, key=lambda key: (-counts[key], key))
