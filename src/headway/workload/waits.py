"""Which requests of a trace hang together, what each of them waits for, and how long after that it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from headway.workload.traces.table import NONE, Trace


class Wait(Struct, gc=False):
    """A row of the trace, the rows that it waits for, and how long after the last of them has ended it comes, or after
    the group's start where it waits for none."""

    row: int
    after: list[int]
    delay_ps: int


def groups(trace: Trace, session: Sequence[int]) -> list[list[int]]:
    """The rows of each session in the file's order, the sessions by their first rows. Sessions of which one waits for
    another are one group; a row without a session is one of its own."""
    stands = _joined(trace, session)
    found: dict[int, list[int]] = {}
    for row in range(len(session)):
        number = _number(session, row)
        found.setdefault(stands.get(number, number), []).append(row)
    return list(found.values())


def _number(session: Sequence[int], row: int) -> int:
    """A row's session, one of its own where it has none."""
    return session[row] if session[row] >= 0 else -1 - row


def _joined(trace: Trace, session: Sequence[int]) -> dict[int, int]:
    """The session that stands for each one that is joined to another."""
    stands: dict[int, int] = {}

    def standing(row: int) -> int:
        number = _number(session, row)
        while number in stands:
            number = stands[number]
        return number

    for row, awaited in trace.after.items():
        for other in awaited:
            here, there = standing(row), standing(other)
            if here != there:
                stands[here] = there
    for number in stands:
        while (further := stands.get(stands[number])) is not None:
            stands[number] = further
    return stands


def is_chain(trace: Trace, rows: list[int]) -> bool:
    """Whether each row of a group just waits for the one before."""
    return not any(row in trace.after for row in rows)


def waits(trace: Trace, session: Sequence[int], rows: list[int]) -> Iterator[Wait]:
    """What the rows of a group wait for. One that does not say waits for its session's previous."""
    stamps = trace.arrival_ps
    latest: dict[int, int] = {}  # row of each session so far
    for row in rows:
        number = _number(session, row)
        after = list(trace.after.get(row, ()))
        if not after and number in latest:
            after = [latest[number]]
        latest[number] = row
        before = max((stamps[other] for other in after), default=stamps[rows[0]])
        delay_ps = trace.delay_ps[row]
        if not after or delay_ps == NONE:
            known = stamps[row] != NONE and before != NONE
            delay_ps = max(0, stamps[row] - before) if known else 0
        yield Wait(row, after, delay_ps)
