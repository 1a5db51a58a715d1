"""Times as trace formats write them, in whole numbers, and requests put in order of them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from fractions import Fraction
from heapq import heappop, heappush
from typing import Final, TypeVar

T = TypeVar("T")
PS_PER_MS: Final = 10**9
PS_PER_NS: Final = 1000
NS_PER_MS: Final = 10**6
LAST_NS: Final = 2**63 - 1  # since 1970: the year 2262
EPOCH: Final = datetime(1970, 1, 1)
SECOND: Final = timedelta(seconds=1)
ISO: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d{0,3})?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


def exact(value: float, unit: int) -> int:
    """A number of units, exactly as it is written. The number is finite."""
    if isinstance(value, int):
        return value * unit
    # The usual case, a few digits behind the point, takes no fractions: the float nearest to a decimal stands for it.
    millionths = round(value * 1_000_000)
    if unit % 1_000_000 == 0 and millionths / 1_000_000 == value:
        return millionths * (unit // 1_000_000)
    return round(Fraction(repr(value)) * unit)


def iso_ns(text: str) -> int | None:
    """A date and time as nanoseconds since 1970, None where it is neither; one without a zone counts as UTC."""
    match = ISO.fullmatch(text)
    if match is None:
        return None
    date, clock, digits, zone = match.groups()
    try:
        seconds = (datetime.fromisoformat(f"{date}T{clock}") - EPOCH) // SECOND
    except ValueError:
        return None
    if zone and zone not in "Zz":
        away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= away if zone[0] == "+" else -away
    return seconds * 1_000_000_000 + int((digits or "0").ljust(9, "0"))


def in_order(starts: array[int], items: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Items by their start, those of one start in the order in which they came. Files list requests as they end;
    since all `starts` are known, an item goes on as soon as none that has yet to come is earlier, so that only those
    in flight beside each other are held."""
    expected = iter(sorted(starts))
    next_start = next(expected, None)
    held: list[tuple[int, int, T]] = []
    for number, (start, item) in enumerate(items):
        heappush(held, (start, number, item))
        while held and held[0][0] == next_start:
            earliest = heappop(held)
            yield earliest[0], earliest[2]
            next_start = next(expected, None)
