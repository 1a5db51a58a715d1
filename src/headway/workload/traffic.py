"""Traffic: the requests of a run as they come, some of them only because others have ended.

The event loop looks at `next_ps`, takes the request that comes then, and tells how each one ended. An open loop does
not listen; sessions and closed loops do. What comes at one instant comes in the order of its identity (source, session,
turn), never in the order in which it was found out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from typing import Annotated, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from headway.config.keys import Doc, Duration
from headway.config.section import check_range
from headway.errors import HeadwayError
from headway.types import NEVER, PS_PER_SECOND, Request
from headway.workload.sessions import Session, Turn

FUTILE: Final = 10_000  # requests rejected at one instant, after which no request will ever be accepted
FUTILE_EACH: Final = 20  # so many more for each user
MOST_RETRIES: Final = 30


class Planned(Struct, frozen=True, gc=False):
    """A request to come, with the truth: how many tokens it will really generate, and what that content is called."""

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
    """A turn as the request that it is, `number` being its place in the session."""
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
    """Requests whose clients wait no longer than that."""
    if timeout_ps is None:
        return requests
    return (
        replace(planned, request=replace(planned.request, deadline_ps=planned.request.arrival_ps + timeout_ps))
        for planned in requests
    )


class Traffic(Protocol):
    """Iterating takes the requests as if each ended the moment it came: what there would be to serve, unserved."""

    next_ps: int  # when the next request comes, as far as is known; NEVER where none is
    listens: bool  # whether it wants to hear how requests end
    not_issued: int  # turns of sessions that have begun which were planned and never came, so far
    abandoned: int  # those among them that never came because an earlier turn did not succeed
    retried: int  # requests taken that repeat one that did not succeed

    def take(self) -> Planned:
        """The request that comes at `next_ps`. Ids count up in the order of taking."""
        ...

    def on_ended(self, request: Request, at_ps: int, completed: bool) -> None:
        """A request has ended; what waited for it may now be known to come."""
        ...

    def stop(self) -> None:
        """The clock stops: count what never came."""
        ...

    def __iter__(self) -> Iterator[Planned]: ...


class OpenLoop:
    """Requests whose times are known beforehand, in order of arrival."""

    listens = False
    not_issued = 0
    abandoned = 0
    retried = 0

    def __init__(self, planned: Iterable[Planned]) -> None:
        self._source = iter(planned)
        self._upcoming: Planned | None = None
        self.next_ps = 0
        self._advance()

    def _advance(self) -> None:
        upcoming = self._upcoming = next(self._source, None)
        self.next_ps = NEVER if upcoming is None else upcoming.request.arrival_ps

    def take(self) -> Planned:
        planned = self._upcoming
        assert planned is not None
        self._advance()
        return planned

    def on_ended(self, request: Request, at_ps: int, completed: bool) -> None:
        """Nothing waits."""

    def stop(self) -> None:
        """What did not come is not counted: nobody had begun to ask for it."""

    def __iter__(self) -> Iterator[Planned]:
        while self.next_ps != NEVER:
            yield self.take()


class Retry(Struct, frozen=True):
    """What a client does after a request that did not succeed: up to `max` more attempts, each `backoff_ps` after the
    last one failed and twice as long each time. Then its session ends."""

    max: Annotated[int, Doc("attempts more", type="whole number, 0 to 30")] = 0
    backoff_ps: Annotated[Duration, "after the first failure; twice as long after each further one"] = PS_PER_SECOND

    def validate(self, where: str) -> Retry:
        check_range(self.max, 0, MOST_RETRIES, f"{where}.max")
        return self


SessionStart = tuple[int, Callable[[], Session]]  # when a session begins, and what makes it then


class Source(Struct):
    """Sessions in order of their start, lazily. Where `users` is given the starts are not looked at: so many sessions
    are live at a time, and the next begins `pause_ps` after one has ended."""

    sessions: Iterator[SessionStart]
    retry: Retry = Retry()
    stop_ps: int = NEVER  # nothing comes at or after this
    users: int | None = None
    pause_ps: int = 0
    timeout_ps: int | None = None  # how long the client of a request waits for it


class _Live:
    """A session whose turns are handed out. It has begun when the first of them comes."""

    __slots__ = ("begun", "late", "number", "open", "over", "session", "source")

    def __init__(self, source: int, number: int, session: Session) -> None:
        self.source = source
        self.number = number
        self.session = session
        self.begun = False
        self.open = 0  # turns known to come or on their way
        self.late = 0  # turns that would have come after the source's end
        self.over = False  # a turn failed for good: what waits for others does not come


Entry = tuple[int, int, int, int, int, _Live, Turn]  # time, source, session, turn, attempt


class Sessions:
    """Traffic in which requests wait for others. Memory goes with the sessions that are live, not with their number."""

    listens = True

    def __init__(self, sources: Iterable[Source]) -> None:
        self._sources = list(sources)
        self._counts = [0] * len(self._sources)  # sessions handed out by each source
        self._heap: list[Entry] = []  # what is known to come
        self._starts: list[tuple[int, int, Callable[[], Session]]] = []  # start, source: the next of each source
        self._flights: dict[int, Entry] = {}  # by request
        self._futile = (-1, 0)  # an instant, and how many requests of a fixed number of users it rejected at once
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

    # --- what the event loop asks ------------------------------------------------------------------------------

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
        """Of the sessions that have begun, count the turns that never came."""
        known = {(entry[1], entry[2]): entry[5] for entry in (*self._heap, *self._flights.values())}
        self.not_issued += len([True for entry in self._heap if entry[5].begun and not entry[4]])
        for live in known.values():
            self._close(live)
        self._heap.clear()
        self._starts.clear()
        self.next_ps = NEVER

    def __iter__(self) -> Iterator[Planned]:
        while self.next_ps != NEVER:
            planned = self.take()
            yield planned
            self.on_ended(planned.request, planned.request.arrival_ps, True)

    # --- how sessions begin, go on and end ---------------------------------------------------------------------

    def _await_start(self, index: int) -> None:
        upcoming = next(self._sources[index].sessions, None)
        if upcoming is not None and upcoming[0] < self._sources[index].stop_ps:
            heappush(self._starts, (upcoming[0], index, upcoming[1]))

    def _begin_next(self, index: int, at_ps: int) -> None:
        """Among a fixed number of users: the next session begins when one has ended."""
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
        """Send a request again, unless that was the last attempt or its source will have ended."""
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
        """Nothing more comes of a session; one that never began has nothing to count."""
        if live.begun:
            left = live.session.turns_left()
            self.not_issued += left + live.late
            if live.over:
                self.abandoned += left

    def _watch(self, at_ps: int) -> None:
        """Users who are turned away and come back at once would go on like that for ever."""
        instant, count = self._futile
        count = count + 1 if instant == at_ps else 1
        self._futile = (at_ps, count)
        if count > self._patience:
            raise HeadwayError(
                f"workload: {count:,} requests of a fixed number of users were turned away at one instant, each as "
                "soon as it came; give the users a pause, or look at why no request is accepted."
            )

    def _look(self) -> None:
        """Begin the sessions that start before anything else is known to come; of those that start at one instant only
        the next, as what its source sends later comes behind it."""
        heap, starts = self._heap, self._starts
        while starts:
            at_ps, index, make = starts[0]
            if heap and (at_ps > heap[0][0] or (at_ps == heap[0][0] and index >= heap[0][1])):
                break
            heappop(starts)
            self._begin(index, at_ps, make)
            self._await_start(index)
        self.next_ps = heap[0][0] if heap else NEVER
