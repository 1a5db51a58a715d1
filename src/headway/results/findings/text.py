"""Figures as the titles of findings write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.types import PS_PER_SECOND

NAMED: Final = 3  # instances that a sentence names


def seconds(time_ps: int) -> float:
    return time_ps / PS_PER_SECOND


def moment(at_ps: int) -> str:
    return f"{at_ps / PS_PER_SECOND:,.1f} s"


def duration(time_ps: int) -> str:
    """In seconds, or in milliseconds where that is less than one."""
    if time_ps >= PS_PER_SECOND:
        return f"{time_ps / PS_PER_SECOND:,.1f} s"
    return f"{time_ps / PS_PER_SECOND * 1000:.1f} ms"


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def listed(names: Sequence[str]) -> str:
    """The first few by name, the others by their number."""
    shown = list(names[:NAMED])
    rest = len(names) - len(shown)
    if rest:
        return f"{', '.join(shown)} and {rest} more"
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def span(at_ps: int, until_ps: int) -> str:
    return f"from {at_ps / PS_PER_SECOND:,.1f} s to {until_ps / PS_PER_SECOND:,.1f} s"
