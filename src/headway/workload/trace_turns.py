"""Convert the rows of a trace to turns of sessions: their arrivals, waits, lengths, labels and max_tokens."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Final

from msgspec import Struct, field

from headway import hashing
from headway.errors import HeadwayError
from headway.types import Path
from headway.workload.adapters import salt_content
from headway.workload.sessions import Turn
from headway.workload.trace_spec import PLACE
from headway.workload.traces.limits import LAST_PS, too_late
from headway.workload.traces.record import Record
from headway.workload.traces.table import NONE, Labels, Trace

TENANT: Final = "default"
SLO_CLASS: Final = "standard"
KIND: Final = "completion"


def check_stamp(row: int, at_ps: int | None) -> int:
    if at_ps is None or at_ps == NONE:
        wrong = f"request {row} of the trace has no recorded time, only a delay"
        raise HeadwayError(f"{PLACE}.replay: {wrong}. Set replay: think.")
    return at_ps


def sender_of(labels: Labels | Record, session: str | None) -> tuple[str | None, str, str]:
    """Return the session, the tenant and the SLO class of a request."""
    return session, labels.tenant or TENANT, labels.slo_class or SLO_CLASS


class Clock:
    """Converts times of the trace to times of the simulation, by dividing by the speed and rounding. It also knows when
    the workload ends."""

    def __init__(self, speed: float, stop_ps: int) -> None:
        exact = Fraction(str(speed))
        self._by, self._over, self._half = 2 * exact.denominator, 2 * exact.numerator, exact.numerator
        self.stop_ps = stop_ps

    def scale(self, ps: int) -> int:
        return (ps * self._by + self._half) // self._over

    def over(self, at_ps: int, row: int, key: str = "speed") -> bool:
        """Return whether this time is at or after the end of the workload. If the time is later than the clock can
        represent, raise an error that suggests a higher value of `key`."""
        if at_ps > LAST_PS and self.stop_ps > LAST_PS:
            raise HeadwayError(f"{PLACE}.{key}: request {row} would arrive {too_late(at_ps)}. Raise this key.")
        return at_ps >= self.stop_ps


class Maker(Struct):
    """Creates turns from rows. `declare` draws the max_tokens that clients send. The values are drawn in the order of
    the trace, even if the rows are used in another order."""

    model: str
    declare: Callable[[], int] | None
    limits: array[int] = field(default_factory=lambda: array("q"))  # max_tokens of the rows drawn so far

    def turn(
        self, row: int, prompt_tokens: int, output_tokens: int, path: Path, labels: Labels | Record, delay_ps: int = 0
    ) -> Turn:
        limit = labels.max_tokens
        if self.declare is not None:
            while len(self.limits) <= row:
                self.limits.append(self.declare())
            limit = self.limits[row]
            output_tokens = min(output_tokens, limit)
        output_key, adapter = hashing.key(hashing.OUTPUT, row), labels.adapter
        if adapter is not None:
            path, output_key = salt_content(path, output_key, adapter)
        return Turn(
            prompt_tokens,
            max(1, output_tokens),  # some traces have empty answers, but an engine generates at least one token
            path,
            output_key,
            delay_ps,
            labels.model or self.model,
            labels.kind or KIND,
            limit,
            labels.shared_prefix_tokens,
            adapter,
        )


def groups(trace: Trace, session: Sequence[int]) -> list[list[int]]:
    """Return a list of rows for each group of sessions. Groups are in order of their first row.

    If a request of one session waits for a request of another, the two sessions are in the same group. A row without a
    session is a group of its own.
    """
    leaders = _join_sessions(trace, session)
    rows_of: dict[int, list[int]] = {}
    for row in range(len(session)):
        number = _number(session, row)
        rows_of.setdefault(leaders.get(number, number), []).append(row)
    return list(rows_of.values())


def _number(session: Sequence[int], row: int) -> int:
    """Return the session of a row, or a unique negative number if the row has no session."""
    return session[row] if session[row] >= 0 else -1 - row


def _join_sessions(trace: Trace, session: Sequence[int]) -> dict[int, int]:
    """Choose one session of each group to represent the group. Return a mapping from the other sessions of the group to
    this session."""
    leaders: dict[int, int] = {}

    def leader(row: int) -> int:
        number = _number(session, row)
        while number in leaders:
            number = leaders[number]
        return number

    for row, awaited in trace.after.items():
        for other in awaited:
            here, there = leader(row), leader(other)
            if here != there:
                leaders[here] = there
    for number in leaders:
        while (further := leaders.get(leaders[number])) is not None:
            leaders[number] = further
    return leaders


def waits(trace: Trace, session: Sequence[int], rows: list[int]) -> Iterator[tuple[int, list[int], int]]:
    """Yield each row of a group, the rows that it waits for, and its delay in picoseconds after they have ended.

    By default a row waits for the previous row of its session. If a row waits for no other row, its delay counts from
    the start of the group.
    """
    stamps = trace.arrival_ps
    latest: dict[int, int] = {}  # session -> its latest row
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
        yield row, after, delay_ps
