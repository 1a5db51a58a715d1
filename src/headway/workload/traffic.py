"""Traffic: the requests of a simulation run in order of arrival. Some requests arrive only after others have ended.

The event loop reads `next_ps`, takes the request that arrives at this time, and reports how each request ended. Open
loops ignore these reports; sessions and closed loops need them. Requests that arrive at the same time are ordered by
source, session and turn, not by the order in which they were planned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Annotated, Final, Protocol, runtime_checkable

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Duration, Form
from headway.config.section import check_range
from headway.errors import HeadwayError
from headway.types import NEVER, PS_PER_SECOND, Request
from headway.workload.sessions import Session, Turn

FUTILE: Final = 10_000  # number of rejections at one simulated time after which the run counts as stuck
FUTILE_EACH: Final = 20  # number added to `FUTILE` for each user and for each retry of a user
MOST_RETRIES: Final = 30


class Planned(Struct, frozen=True, gc=False):
    """A planned request, with two values that policies must not see: the true length and the key of its output."""

    request: Request
    output_tokens: int
    output_key: int


def plan(
    id: int,
    at_ps: int,
    turn: Turn,
    session: str | None,
    tenant: str,
    slo_class: str,
    number: int,
    deadline_ps: int | None = None,
) -> Planned:
    """Return a turn as a planned request. `number` is the position of the turn in its session."""
    request = Request(
        id,
        at_ps,
        turn.prompt_tokens,
        turn.path,
        turn.model,
        tenant,
        slo_class,
        session,
        number,
        turn.max_tokens,
        deadline_ps,
        turn.adapter,
        shared_prefix_tokens=turn.shared_prefix_tokens,
        kind=turn.kind,
    )
    return Planned(request, turn.output_tokens, turn.output_key)


def with_deadlines(requests: Iterable[Planned], timeout_ps: int | None) -> Iterable[Planned]:
    """Return the requests with deadlines: arrival plus timeout. If the timeout is None, return them unchanged."""
    if timeout_ps is None:
        return requests
    return (
        replace(planned, request=replace(planned.request, deadline_ps=planned.request.arrival_ps + timeout_ps))
        for planned in requests
    )


class Traffic(Protocol):
    """The requests of a simulation run. Iterating over it yields all requests, as if each ended when it arrived."""

    next_ps: int  # arrival time of the next known request; NEVER if no request is known
    listens: bool  # whether the traffic needs to know how requests end
    not_issued: int  # number of planned turns of started sessions that will never arrive, counted so far
    abandoned: int  # number of turns in `not_issued` that never arrived because an earlier turn failed
    retried: int  # number of requests that repeat a failed request

    def take(self) -> Planned:
        """Remove and return the request that arrives at `next_ps`. Request ids ascend in the order of these calls."""
        ...

    def on_ended(self, request: Request, at_ps: int, completed: bool) -> None:
        """Record the end of a request and plan the requests that waited for it."""
        ...

    def stop(self) -> None:
        """End the traffic. Add to `not_issued` the number of turns of started sessions that never arrived."""
        ...

    def draw_ahead(self) -> None:
        """Draw now what does not depend on the run, so that forked copies of this process need not draw it again."""
        ...

    def __iter__(self) -> Iterator[Planned]: ...


class OpenLoop:
    """Traffic in which all arrival times are known in advance."""

    listens = False
    not_issued = 0
    abandoned = 0
    retried = 0

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._source = iter(planned)
        self._upcoming = next(self._source, None)
        self.next_ps = NEVER if self._upcoming is None else self._upcoming.request.arrival_ps

    def take(self) -> Planned:
        planned = self._upcoming
        assert planned is not None
        upcoming = self._upcoming = next(self._source, None)
        self.next_ps = NEVER if upcoming is None else upcoming.request.arrival_ps
        return planned

    def on_ended(self, request: Request, at_ps: int, completed: bool) -> None:
        """Do nothing, because no request waits for another."""

    def stop(self) -> None:
        """Do nothing, because `not_issued` counts only turns of sessions, and an open loop has no sessions."""

    def draw_ahead(self) -> None:
        self._source = iter(list(self._source))

    def __iter__(self) -> Iterator[Planned]:
        while self.next_ps != NEVER:
            yield self.take()


class Retry(Struct, frozen=True):
    """The retries of clients after a failed request. If all retries fail, the session ends."""

    max: Annotated[
        int,
        Form.of(Annotated[int, Meta(ge=0, le=MOST_RETRIES)]),
        Doc("number of retries", type="whole number, 0 to 30"),
    ] = 0
    backoff_ps: Annotated[Duration, "delay before the first retry; it doubles with each further one"] = PS_PER_SECOND

    def validate(self, where: str) -> Retry:
        check_range(self.max, 0, MOST_RETRIES, f"{where}.max")
        return self


SessionStart = tuple[int, Callable[[], Session]]  # (start time of a session, function that creates the session)


@runtime_checkable
class Drawable(Protocol):
    """Sessions that can be drawn before they begin."""

    def draw_ahead(self) -> None: ...


class Source(Struct):
    """Sessions in order of their start, created on demand. If `users` is set, start times are ignored. Then `users`
    sessions are live at a time, and whenever a session has ended, the next session begins after `pause_ps`."""

    sessions: Iterator[SessionStart]
    retry: Retry = Retry()
    stop_ps: int = NEVER  # no request arrives at or after this time
    users: int | None = None
    pause_ps: int = 0
    timeout_ps: int | None = None  # maximum time that a client waits for a request


class _Live(Struct, eq=False):
    """A session in progress. `begun` is true from the arrival of its first turn on."""

    source: int
    number: int
    session: Session
    begun: bool = False
    open: int = 0  # number of turns that are planned or in flight
    late: int = 0  # number of turns that are not sent, because they would arrive after the end of the source
    over: bool = False  # whether a turn failed and has no retry left, so that no further turn arrives


# A planned turn: its arrival time, the numbers of its source, session, turn and attempt, its session and its turn.
Entry = tuple[int, int, int, int, int, _Live, Turn]


class Sessions:
    """Traffic in which requests wait for other requests. Memory grows with the live sessions, not with all sessions."""

    listens = True

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = list(sources)
        self._counts = [0] * len(self._sources)  # number of sessions begun by each source
        self._heap: list[Entry] = []  # heap of planned turns
        # Heap with the next session of each source: (start time, index of the source, function that creates it).
        self._starts: list[tuple[int, int, Callable[[], Session]]] = []
        self._flights: dict[int, Entry] = {}  # request id -> turn, for requests in flight
        self._futile = (-1, 0)  # (time, number of closed-loop requests that were rejected on arrival at that time)
        self._patience = FUTILE + FUTILE_EACH * sum(
            (source.users or 0) * (1 + source.retry.max) for source in self._sources
        )
        self._requests = 0
        self.not_issued = 0
        self.abandoned = 0
        self.retried = 0
        self.next_ps = NEVER
        for index, source in enumerate(self._sources):
            if source.users is None:
                self._await_start(index)
            else:
                for _ in range(source.users):
                    self._begin_next(index, 0)
        self._look()

    # --- called by the event loop ------------------------------------------------------------------------------

    def take(self) -> Planned:
        entry = heappop(self._heap)
        at_ps, _, _, number, attempt, live, turn = entry
        live.begun = True
        if attempt:
            self.retried += 1
        session, timeout_ps = live.session, self._sources[live.source].timeout_ps
        row = self._requests
        self._requests += 1
        self._flights[row] = entry
        self._look()
        deadline_ps = None if timeout_ps is None else at_ps + timeout_ps
        return plan(row, at_ps, turn, session.name, session.tenant, session.slo_class, number, deadline_ps)

    def on_ended(self, request: Request, at_ps: int, completed: bool) -> None:
        entry = self._flights.pop(request.id)
        live = entry[5]
        live.open -= 1
        if not live.over:
            if completed:
                self._plan(live, live.session.on_ended(entry[3]), at_ps)
            else:
                if entry[0] == at_ps and self._sources[live.source].users is not None:
                    self._watch(at_ps)
                live.over = not self._retry(entry, at_ps)
        if not live.open:
            self._close(live)
            if self._sources[live.source].users is not None:
                self._begin_next(live.source, at_ps + self._sources[live.source].pause_ps)
        self._look()

    def stop(self) -> None:
        """Count the turns of started sessions that never arrived, and drop all planned turns."""
        known = {(entry[1], entry[2]): entry[5] for entry in (*self._heap, *self._flights.values())}
        self.not_issued += len([True for entry in self._heap if entry[5].begun and not entry[4]])
        for live in known.values():
            self._close(live)
        self._heap.clear()
        self._starts.clear()
        self.next_ps = NEVER

    def draw_ahead(self) -> None:
        for source in self._sources:
            if isinstance(source.sessions, Drawable):
                source.sessions.draw_ahead()

    def __iter__(self) -> Iterator[Planned]:
        while self.next_ps != NEVER:
            planned = self.take()
            yield planned
            self.on_ended(planned.request, planned.request.arrival_ps, True)

    # --- sessions begin, continue and end ----------------------------------------------------------------------

    def _await_start(self, index: int) -> None:
        upcoming = next(self._sources[index].sessions, None)
        if upcoming is not None and upcoming[0] < self._sources[index].stop_ps:
            heappush(self._starts, (upcoming[0], index, upcoming[1]))

    def _begin_next(self, index: int, at_ps: int) -> None:
        """Begin the next session of a closed loop, after another session has ended."""
        source = self._sources[index]
        while at_ps < source.stop_ps:
            upcoming = next(source.sessions, None)
            if upcoming is None:
                return
            live = self._begin(index, at_ps, upcoming[1])
            if live.open or live.late:
                return

    def _begin(self, index: int, at_ps: int, make: Callable[[], Session]) -> _Live:
        session = make()
        live = _Live(index, self._counts[index], session)
        self._counts[index] += 1
        self._plan(live, session.begin(), at_ps)
        return live

    def _plan(self, live: _Live, turns: Iterable[tuple[int, Turn]], from_ps: int) -> None:
        stop_ps = self._sources[live.source].stop_ps
        for number, turn in turns:
            at_ps = from_ps + turn.delay_ps
            if at_ps < stop_ps:
                live.open += 1
                heappush(self._heap, (at_ps, live.source, live.number, number, 0, live, turn))
            else:
                live.late += 1

    def _retry(self, failed: Entry, at_ps: int) -> bool:
        """Plan a retry of a failed turn. Return False if no retry is left or the source ends before the retry."""
        _, index, session, number, attempt, live, turn = failed
        source = self._sources[index]
        if attempt >= source.retry.max:
            return False
        again_ps = at_ps + (source.retry.backoff_ps << attempt)
        if again_ps >= source.stop_ps:
            return False
        live.open += 1
        heappush(self._heap, (again_ps, index, session, number, attempt + 1, live, turn))
        return True

    def _close(self, live: _Live) -> None:
        """Add to `not_issued` the number of turns that a session never sent. If the first turn of the session never
        arrived, add nothing."""
        if live.begun:
            left = live.session.turns_left()
            self.not_issued += left + live.late
            if live.over:
                self.abandoned += left

    def _watch(self, at_ps: int) -> None:
        """Raise if too many closed-loop requests are rejected on arrival at the same time. Their users would send new
        requests at once, so that simulated time would never advance."""
        instant, count = self._futile
        count = count + 1 if instant == at_ps else 1
        self._futile = (at_ps, count)
        if count > self._patience:
            raise HeadwayError(
                f"workload: {count:,} requests of a closed loop were rejected at one instant, each on arrival. Set a "
                "pause or think time for the users, or find out why no request is accepted."
            )

    def _look(self) -> None:
        """Begin the sessions that start before the next planned turn, and set `next_ps` to the time of the next turn.
        If a session starts at the time of that turn, the session begins first only if its source has a lower index than
        the turn's source."""
        heap, starts = self._heap, self._starts
        while starts:
            at_ps, index, make = starts[0]
            if heap and (at_ps > heap[0][0] or (at_ps == heap[0][0] and index >= heap[0][1])):
                break
            heappop(starts)
            self._begin(index, at_ps, make)
            self._await_start(index)
        self.next_ps = heap[0][0] if heap else NEVER
