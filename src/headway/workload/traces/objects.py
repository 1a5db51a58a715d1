"""Helpers for JSON formats: JSON objects (one per line, or a single one over several lines), timestamps, and sessions
that branch."""

from __future__ import annotations

import pathlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from heapq import heappop, heappush
from typing import Final, TypeVar

import msgspec

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.source import Numbered, lines

T = TypeVar("T")
LARGEST: Final = 256 << 20  # maximum size of a document in bytes, because the document is read into memory
WRONG: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)


def objects(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Yield each object as undecoded JSON, with its location for errors."""
    source = lines(path)
    number, line = next(source, (0, b""))
    if not number:
        raise HeadwayError(f"{path.name}: the file is empty.")
    if _complete(line) or line.endswith(b"}"):
        yield f"{path.name} line {number}", line
        for number, line in source:
            yield f"{path.name} line {number}", line
    else:
        yield path.name, _document(path, number, line, source)


def decode_object(decode: Callable[[bytes], T], text: bytes, place: str, form: str) -> T:
    """Decode JSON. If that fails, raise an error that ends with `form`, a description of the expected form."""
    try:
        return decode(text)
    except WRONG as error:
        raise HeadwayError(f"{place}: {one_line(error, kind=False)}; {form}.") from None


def json_rows(
    path: pathlib.Path, kind: type[T], form: str, source: Iterable[Numbered] | None = None
) -> Iterator[tuple[str, T]]:
    """Yield each line of a file as an object of a type, with its location for errors. If `source` is set, read the
    lines from it instead of the file."""
    decode = msgspec.json.Decoder(kind).decode
    for number, line in lines(path) if source is None else source:
        place = f"{path.name} line {number}"
        yield place, decode_object(decode, line, place, form)


def _complete(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except WRONG:
        return False
    return True


def _document(path: pathlib.Path, number: int, line: bytes, rest: Iterator[Numbered]) -> bytes:
    """Join all lines, and check that they form one JSON document, so that an error can name the line."""
    texts, numbers, size = [line], [number], len(line)
    for number, line in rest:
        size += len(line) + 1
        if size > LARGEST:
            raise HeadwayError(
                f"{path.name} line {number}: one JSON document has more than {LARGEST >> 20} MiB. "
                "Write one object per line instead."
            )
        texts.append(line)
        numbers.append(number)
    text = b"\n".join(texts)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except WRONG as error:
        byte = re.search(r"byte (\d+)", str(error))
        at = numbers[text.count(b"\n", 0, int(byte[1]))] if byte else numbers[-1]
        why = one_line(error, kind=False)
        raise HeadwayError(f"{path.name} line {at}: {why}; a file has one JSON object, or one per line.") from None
    return text


# Times

NS_PER_MS: Final = 10**6
LAST_NS: Final = 2**63 - 1  # maximum time in ns since 1970 that fits into 64 bits; it is in the year 2262
EPOCH: Final = datetime(1970, 1, 1)
SECOND: Final = timedelta(seconds=1)
MAX_ZONE_HOURS: Final = 14  # maximum offset of a time zone from UTC
STAMP: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


def stamp_ps(text: str) -> int | None:
    """Return a date and time as picoseconds since 1970. Without a time zone, the time is in UTC. If the text is
    invalid, return None."""
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    date, clock, digits, zone = match.groups()
    try:
        seconds = (datetime.fromisoformat(f"{date}T{clock}") - EPOCH) // SECOND
    except ValueError:
        return None
    if zone and zone not in "Zz":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        if hours > MAX_ZONE_HOURS or minutes > 59:
            return None
        seconds -= (hours * 3600 + minutes * 60) * (1 if zone[0] == "+" else -1)
    return seconds * PS_PER_SECOND + int((digits or "0").ljust(12, "0"))


def in_order(starts: array[int], items: Iterable[tuple[int, T]]) -> Iterator[tuple[int, T]]:
    """Yield items sorted by their start. Items with the same start keep their order.

    Files list requests in order of their end. Because all `starts` are known in advance, this function yields an item
    as soon as all items with an earlier start have been read. So memory holds only requests that overlap in time.
    """
    expected = iter(sorted(starts))
    next_start = next(expected, None)
    held: list[tuple[int, int, T]] = []
    for number, (start, item) in enumerate(items):
        heappush(held, (start, number, item))
        while held and held[0][0] == next_start:
            earliest = heappop(held)
            yield earliest[0], earliest[2]
            next_start = next(expected, None)


# Sessions that branch: the requests that a request waited for, inferred from recorded times.
#
# A lane is a sequence of requests: those of a session itself, or those of a sub-agent that the session started.
# The lane of a sub-agent is a branch of its parent lane.
# The first request of a branch waits for the latest request of its parent lane.
# The parent lane's first request after the end of a branch waits for that branch.
# Requests are added in order of their start.


class Lane:
    """The requests of a session or of one of its sub-agents, which follow each other. `left` is the number of requests
    of the lane that have not been added yet."""

    def __init__(self, left: int, parent: Lane | None = None) -> None:
        self.left, self.parent = left, parent
        self.root: Lane = self if parent is None else parent.root
        self.branches: list[Lane] = []  # branches that no request has waited for yet
        self.last: str | None = None  # id of the latest request
        self.end = 0  # latest end of all requests so far
        self.latest: str | None = None  # id of the latest request of the whole session; only the root lane keeps it

    def add(self, id: str, start: int, end: int) -> tuple[tuple[str, ...], int | None, bool]:
        """Add the next request of the lane. Return three values: the ids of the requests that it waited for, the latest
        end of these requests, and whether the previous request of the lane has this latest end.

        If the request waited for no other request, the latest end is None. If it waited only for the latest request of
        the session, the ids are empty, because a request does so by default.
        """
        after: tuple[str, ...] = ()
        until: int | None = None
        goes_on = self.last is not None
        if self.last is not None:
            after, until = (self.last,), self.end
        elif self.parent is not None and self.parent.last is not None:
            after, until = (self.parent.last,), self.parent.end
            self.parent.branches.append(self)
        for branch in [branch for branch in self.branches if not branch.left and branch.end <= start]:
            self.branches.remove(branch)
            if branch.last is not None:
                after += (branch.last,)
            if until is None or branch.end > until:
                until, goes_on = branch.end, False
        root = self.root
        if after == (root.latest,):
            after = ()  # by default, a request waits for the previous request of its session
        self.left -= 1
        self.last = root.latest = id
        self.end = max(self.end, end)
        return after, until, goes_on
