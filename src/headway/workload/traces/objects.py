"""The JSON objects of a file: one a line, or a single one over several lines. Times, and sessions that branch."""

from __future__ import annotations

import pathlib
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from fractions import Fraction
from heapq import heappop, heappush
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from headway.config.wording import one_line
from headway.errors import HeadwayError
from headway.workload.traces.source import Numbered, lines

T = TypeVar("T")
LARGEST: Final = 256 << 20  # bytes of one document, which has to be held in memory
WRONG: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)


def objects(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Each object as text, with its place for error messages."""
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
    """What `decode` makes of the text; where it cannot, an error that says what the form should be."""
    try:
        return decode(text)
    except WRONG as error:
        raise HeadwayError(f"{place}: {one_line(error, kind=False)}; {form}.") from None


def json_rows(
    path: pathlib.Path, kind: type[T], form: str, source: Iterable[Numbered] | None = None
) -> Iterator[tuple[str, T]]:
    """The lines of a file, or those of them that `source` has, as objects of a kind, each with its place."""
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
    """All lines as one text, found to be JSON as a whole: after that, mistakes have a path in it and no line."""
    texts, numbers, size = [line], [number], len(line)
    for number, line in rest:
        size += len(line) + 1
        if size > LARGEST:
            raise HeadwayError(
                f"{path.name} line {number}: one JSON document of more than {LARGEST >> 20} MiB; "
                "write one object a line instead, which is read line by line."
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
        raise HeadwayError(f"{path.name} line {at}: {why}; a file is one JSON object or one a line.") from None
    return text


# Times as trace formats write them, in whole numbers, and requests put in order of them.

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


def epoch_seconds(date: str, clock: str, zone: str | None) -> int:
    """The seconds since 1970 of 2026-05-19, 03:57:30 and Z or +02:00; without a zone it counts as UTC."""
    seconds = (datetime.fromisoformat(f"{date}T{clock}") - EPOCH) // SECOND
    if zone and zone not in "Zz":
        away = int(zone[1:3]) * 3600 + int(zone[-2:]) * 60
        seconds -= away if zone[0] == "+" else -away
    return seconds


def iso_ns(text: str) -> int | None:
    """A date and time as nanoseconds since 1970, None where it is neither."""
    match = ISO.fullmatch(text)
    if match is None:
        return None
    date, clock, digits, zone = match.groups()
    try:
        return epoch_seconds(date, clock, zone) * 1_000_000_000 + int((digits or "0").ljust(9, "0"))
    except ValueError:
        return None


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


# Sessions that branch: which requests a request waited for, as far as the times of a recording tell.
#
# A lane is a stretch of requests one after the other: a session's own, or those of a sub-agent that it started. A
# lane's first request waits for the latest one of the lane it branched off, and the first request that such a lane
# makes after a branch has ended waits for that branch. Requests are shown in order of their start.


class Lane:
    """Requests one after the other. `left` is how many are still to come."""

    __slots__ = ("_branches", "_end", "_last", "_latest", "left", "parent", "root")

    def __init__(self, left: int, parent: Lane | None = None) -> None:
        self.left = left
        self.parent = parent
        self.root: Lane = self if parent is None else parent.root
        self._branches: list[Lane] = []  # not yet waited for
        self._last: str | None = None  # the id of the latest request
        self._end = 0  # of all so far
        self._latest: str | None = None  # of a root: the latest request of the whole session

    def add(self, id: str, start: int, end: int) -> Wait:
        """The lane's next request, and what it waited for."""
        waits: list[tuple[int, str]] = []
        goes_on = self._last is not None
        if self._last is not None:
            waits.append((self._end, self._last))
        elif self.parent is not None and self.parent._last is not None:
            waits.append((self.parent._end, self.parent._last))
            self.parent._branches.append(self)
        until = waits[0][0] if waits else None
        for branch in [branch for branch in self._branches if not branch.left and branch._end <= start]:
            self._branches.remove(branch)
            if branch._last is not None:
                waits.append((branch._end, branch._last))
            if until is None or branch._end > until:
                until, goes_on = branch._end, False
        after = tuple(name for _, name in waits)
        if after == (self.root._latest,):
            after = ()  # as any request of a session waits for the one before
        self.left -= 1
        self._last = self.root._latest = id
        self._end = max(self._end, end)
        return Wait(after, until, goes_on)


class Wait(Struct):
    """What a request waited for; `until` is when the last of that ended, None where it waited for nothing.
    `goes_on` says that this was the lane's own previous request."""

    after: tuple[str, ...]
    until: int | None
    goes_on: bool
