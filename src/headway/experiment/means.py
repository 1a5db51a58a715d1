"""Several summaries as one: the mean of each figure over the seeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import Any

from headway.types import Json


def mean_summary(summaries: Sequence[Json]) -> Json:
    """A summary whose figures are means over runs, None where one of them has none. A tenant or a section that only
    some have is the mean of those. What is neither number nor section stays where all agree on it."""
    found: Json = _mean(list(summaries))
    return found


def _mean(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _mean([value[key] for value in values if key in value]) for key in keys}
    if all(value == first for value in values):
        return first
    if isinstance(first, list):
        return _rows(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return fsum(values) / len(values)
    return None


def _rows(lists: list[list[Any]]) -> list[Any]:
    """Rows go by their ids; lists of anything else have no mean."""
    by_id: dict[Any, list[Any]] = {}
    for rows in lists:
        for row in rows:
            if not isinstance(row, dict) or "id" not in row:
                return []
            by_id.setdefault(row["id"], []).append(row)
    return [_mean(rows) for rows in by_id.values()]
