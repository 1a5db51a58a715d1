"""The order of what one engine tells. Each batch has the number after that of the batch before; one that is missing is
asked for again, and where it cannot be had all that was known of the engine is forgotten, since a block may have gone.

Silence is no loss: an engine without requests has nothing to tell.

    first batch is number 0, or an engine has started anew   all is known from now on (exact)
    first batch is a later one, or some are missing          asked for again; else what was before is unknown (partial)
    the engine clears its cache                              all is known again (exact)

Blocks that follow one of which nothing is known are passed over. That an engine has started anew shows by a number that
goes back; if all was lost until it had caught up with its former self, nothing shows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Raw

from headway.gateway.signals.kv_batches import Batch, Cleared, Event, in_parts, read_batch, read_event
from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL, Ledger

RANKS: Final = 256  # publishers of an engine at most
PART: Final = 32  # blocks
HELD_BACK: Final = 4096  # batches that wait for those before them
HELD_BACK_BYTES: Final = 64 * 1024 * 1024
Todo = tuple[str, Iterator[Raw]]  # what is known before these events, where that changes, and they


class _Rank:
    """One of an engine's publishers: each has numbers of its own."""

    __slots__ = ("bytes", "heard", "next", "waiting")

    def __init__(self) -> None:
        self.next = 0  # number of the batch that is to come
        self.heard = -1  # of the last that came by itself
        self.waiting: deque[tuple[int, Batch | None]] | None = None  # while those before them are asked for
        self.bytes = 0


class Stream:
    """`ask` asks for the batches of a rank from a number on, and says whether it can; what comes goes to `replayed`,
    and `answered` ends it. `drop` takes a question back. What is to do is done by `step`, a few blocks at a time."""

    def __init__(
        self, ledger: Ledger, ask: Callable[[int, int], bool] | None = None, drop: Callable[[int], None] | None = None
    ) -> None:
        self.ledger, self.counts = ledger, ledger.counts
        self.ask, self.drop = ask, drop
        self.trust = GUESSED
        self.todo: deque[Todo] = deque()
        self.parts: Iterator[Event] = iter(())  # of the event that is being read
        self._ranks: dict[int, _Rank] = {}

    def begin(self) -> None:
        """What was told before anybody listened is asked for at once: an engine may be silent for long."""
        if self.ask is not None and self.ask(0, 0):
            rank = self._ranks[0] = _Rank()
            rank.waiting = deque()

    def heard(self, number: int, payload: bytes) -> None:
        """A batch has come by itself."""
        batch = read_batch(payload)
        place = batch.rank if batch is not None and batch.rank is not None and 0 <= batch.rank < RANKS else 0
        rank = self._ranks.get(place)
        self.counts.batches += 1
        if rank is None:
            rank = self._ranks[place] = _Rank()
            if number:
                self.counts.late += 1
        elif number <= rank.heard:  # one publisher never goes back
            self.counts.restarts += 1
            if rank.waiting is not None and self.drop is not None:
                self.drop(place)
            rank.next, rank.waiting = 0, None
        elif number > rank.next and rank.waiting is None:
            if rank.heard < 0 and not rank.next:
                self.counts.late += 1
            else:
                self.counts.gaps += 1
        rank.heard = number
        if rank.waiting is not None:
            rank.waiting.append((number, batch))
            rank.bytes += len(payload)
            if len(rank.waiting) > HELD_BACK or rank.bytes > HELD_BACK_BYTES:
                if self.drop is not None:
                    self.drop(place)
                self.answered(place)
        elif number > rank.next and self.ask is not None and self.ask(place, rank.next):
            rank.waiting, rank.bytes = deque([(number, batch)]), len(payload)
        else:
            self._take(rank, number, batch)

    def replayed(self, place: int, number: int, payload: bytes) -> None:
        """A batch that was asked for."""
        rank = self._ranks.get(place)
        if rank is not None and rank.waiting is not None and number >= rank.next:
            self.counts.replayed += 1
            self._take(rank, number, read_batch(payload))

    def answered(self, place: int) -> None:
        """No more comes of what was asked for."""
        rank = self._ranks.get(place)
        if rank is not None and rank.waiting is not None:
            waiting, rank.waiting = rank.waiting, None
            for number, batch in waiting:
                self._take(rank, number, batch)

    def _take(self, rank: _Rank, number: int, batch: Batch | None) -> None:
        if number < rank.next:
            return  # came again meanwhile
        trust = ""
        if number > rank.next:
            trust = PARTIAL
        elif number == 0:
            trust = EXACT
        rank.next = number + 1
        if batch is None:
            self.counts.malformed += 1
            trust = PARTIAL
        self.todo.append((trust, iter(batch.events if batch is not None else ())))

    # --- what is to be done ------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do the next thing; False where there is none."""
        if (part := next(self.parts, None)) is not None:
            self.ledger.apply(part)
            return True
        if not self.todo:
            return False
        trust, events = self.todo[0]
        if trust:
            self.todo[0] = ("", events)
            self._known(trust)
            return True
        raw = next(events, None)
        if raw is None:
            self.todo.popleft()
            return True
        unreadable = self.counts.malformed
        event = read_event(raw, self.counts)
        if event is None:
            if self.counts.malformed > unreadable:
                self._known(PARTIAL)
        elif isinstance(event, Cleared):
            self._known(EXACT)
        else:
            self.parts = in_parts(event, PART)
        return True

    def _known(self, trust: str) -> None:
        """Begin again, knowing nothing or that there is nothing. Of several ranks one alone does not know all."""
        if len(self._ranks) > 1:
            trust = PARTIAL
        if trust == PARTIAL == self.trust and not self.ledger.blocks:
            return  # there is nothing that could be wrong
        self.trust = trust
        self.ledger.clear(trust)
