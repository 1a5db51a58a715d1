"""Sessions: groups of related requests, called turns. The arrival of a turn depends on the end of other turns.

A turn waits for other turns. After these have ended, the turn arrives with a delay, in which a person thinks or a tool
runs. The content and the length of each turn are planned in advance, so they do not depend on the cluster.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from headway.types import Path


class Turn(Struct, gc=False):
    """A planned request of a session. `delay_ps` counts from the end of the last turn that this turn waits for. If this
    turn waits for no other turn, `delay_ps` counts from the start of the session."""

    prompt_tokens: int
    output_tokens: int
    path: Path
    output_key: int  # key of the output's content, which a later prompt may repeat
    delay_ps: int = 0
    model: str = ""
    kind: str = "completion"
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    adapter: str | None = None


Numbered = tuple[int, Turn]  # (number of the turn in its session, turn)


class Session(Protocol):
    """The interface of a session. `Traffic` reports each completed turn to it. A failed turn ends the session."""

    name: str | None  # None: a single request without a session
    tenant: str
    slo_class: str

    def begin(self) -> Iterable[Numbered]:
        """Return the turns that wait for no other turn."""
        ...

    def on_ended(self, number: int) -> Iterable[Numbered]:
        """Return the turns that become ready because this turn has ended."""
        ...

    def turns_left(self) -> int:
        """Return the number of planned turns that `begin` and `on_ended` have not returned yet."""
        ...


class Chain(Struct, eq=False):
    """A session in which each turn waits for the previous turn. The turns may be created on demand."""

    name: str | None
    tenant: str
    slo_class: str
    turns: Iterator[Turn]
    count: int | None = None  # number of turns that have not been sent yet; None if the turns never end
    number: int = 0  # number of the next turn

    def begin(self) -> Iterable[Numbered]:
        turn = next(self.turns, None)
        if turn is None:
            return ()
        number = self.number
        self.number += 1
        if self.count is not None:
            self.count -= 1
        return ((number, turn),)

    def on_ended(self, number: int) -> Iterable[Numbered]:
        return self.begin()

    def turns_left(self) -> int:
        return self.count or 0


class Graph:
    """A session whose turns may wait for any earlier turns, such as the last turns of several sub-agents."""

    __slots__ = ("_blocked", "_issued", "_turns", "_waiters", "name", "slo_class", "tenant")

    def __init__(
        self, name: str | None, tenant: str, slo_class: str, turns: Sequence[Turn], after: Sequence[Sequence[int]]
    ) -> None:
        """`after[i]` lists the turns that turn i waits for, each with a number below i. Each item of `turns` is read
        once, when the turn is ready."""
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
