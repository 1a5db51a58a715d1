"""Sessions: requests that hang together, each planned in full but for when it comes.

A session's turns wait for each other: the next comes some time (a person thinks, a tool runs) after the ones it waits
for have ended. What they say and how long they are is drawn beforehand, so it is the same whatever the cluster does.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from headway.types import Path


class Turn(Struct, gc=False):
    """One request as planned. Its `delay_ps` counts from the end of the last turn that it waits for, or from the
    session's start where it waits for none."""

    prompt_tokens: int
    output_tokens: int
    path: Path
    output_key: int  # names what it will generate, so that a later prompt may go on with it
    delay_ps: int = 0
    model: str = ""
    kind: str = "completion"
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    adapter: str | None = None


Numbered = tuple[int, Turn]  # a turn and its number in the session


class Session(Protocol):
    """What traffic asks of a session. It is asked for the turns that have become free, and told of each that ended
    well; after one that did not it is asked nothing more."""

    name: str | None  # None: its one request is no session
    tenant: str
    slo_class: str

    def begin(self) -> Iterable[Numbered]:
        """The turns that wait for nothing."""
        ...

    def on_ended(self, number: int) -> Iterable[Numbered]:
        """The turns that waited for this one and now wait for nothing more."""
        ...

    def turns_left(self) -> int:
        """How many turns were planned and never handed out."""
        ...


class Chain:
    """A session in which each turn waits for the one before. The turns may be drawn as they are needed."""

    __slots__ = ("_at", "_end", "_turns", "name", "slo_class", "tenant")

    def __init__(
        self,
        name: str | None,
        tenant: str,
        slo_class: str,
        turns: Iterator[Turn],
        count: int | None = None,
        first: int = 0,
    ) -> None:
        """`count` is how many turns there are, None where they have no end of their own; `first` numbers the first."""
        self.name = name
        self.tenant = tenant
        self.slo_class = slo_class
        self._turns = turns
        self._end = None if count is None else first + count
        self._at = first

    def begin(self) -> Iterable[Numbered]:
        return self._next()

    def on_ended(self, number: int) -> Iterable[Numbered]:
        return self._next()

    def turns_left(self) -> int:
        return 0 if self._end is None else self._end - self._at

    def _next(self) -> Iterable[Numbered]:
        turn = next(self._turns, None)
        if turn is None:
            return ()
        number = self._at
        self._at += 1
        return ((number, turn),)


class Graph:
    """A session whose turns wait for any of the earlier ones: sub-agents that branch off and are waited for."""

    __slots__ = ("_blocked", "_issued", "_turns", "_waiters", "name", "slo_class", "tenant")

    def __init__(
        self, name: str | None, tenant: str, slo_class: str, turns: Sequence[Turn], after: Sequence[Sequence[int]]
    ) -> None:
        """`after[i]` are the numbers of the turns that turn i waits for, each below i. A turn is looked at when it has
        become free, once."""
        self.name = name
        self.tenant = tenant
        self.slo_class = slo_class
        self._turns = turns
        self._waiters: list[list[int]] = [[] for _ in range(len(turns))]
        self._blocked = [0] * len(turns)
        for number, earlier in enumerate(after):
            for awaited in dict.fromkeys(earlier):
                self._waiters[awaited].append(number)
                self._blocked[number] += 1
        self._issued = 0

    def begin(self) -> Iterable[Numbered]:
        return self._hand_out([number for number, blocked in enumerate(self._blocked) if not blocked])

    def on_ended(self, number: int) -> Iterable[Numbered]:
        free = []
        for waiter in self._waiters[number]:
            self._blocked[waiter] -= 1
            if not self._blocked[waiter]:
                free.append(waiter)
        return self._hand_out(free)

    def turns_left(self) -> int:
        return len(self._turns) - self._issued

    def _hand_out(self, numbers: list[int]) -> Iterable[Numbered]:
        self._issued += len(numbers)
        return [(number, self._turns[number]) for number in numbers]
