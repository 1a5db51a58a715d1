"""Puts the numbered batches of one engine in order, and requests a replay of missing batches. If the engine cannot
replay them, the gateway forgets the engine's blocks, because the engine may have removed some of them. Silence does not
count as loss, because an idle engine publishes nothing.

    first batch is number 0, or the engine has restarted   the cache is known from now on (exact)
    first batch has a later number, or some are missing    replay; without it, earlier blocks are unknown (partial)
    the engine clears its cache                            the cache is known again (exact)

Blocks after an unknown block are skipped. If a batch number is not higher than the last number, the engine has
restarted. If the gateway misses the new batches until their numbers exceed the last number, it does not notice the
restart.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import Raw

from headway.gateway.signals.kv_batches import Batch, Cleared, Event, in_parts, read_batch, read_event
from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL, Ledger

RANKS: Final = 256  # maximum number of publishers (ranks) of an engine
PART: Final = 32  # maximum number of blocks applied in one step
HELD_BACK: Final = 4096  # maximum number of batches that wait for a replay
HELD_BACK_BYTES: Final = 64 * 1024 * 1024
# (trust, events): if `trust` is not empty, forget all blocks and set the new trust. Then apply the events.
Todo = tuple[str, Iterator[Raw]]


@dataclass(slots=True)
class _Rank:
    """One publisher (data-parallel rank) of an engine. Each publisher numbers its own batches."""

    next: int = 0  # number of the next batch to apply
    last: int = -1  # number of the last published batch
    waiting: deque[tuple[int, Batch | None]] | None = None  # batches that wait for a replay; None: no replay runs
    bytes: int = 0
    clears: bool = True  # whether batch 0 means that the engine has just started, so that its cache is empty


class Stream:
    """The batches of one engine. `ask` requests a replay of a rank's batches from a given number on, and returns
    whether the engine can replay. The caller passes the replayed batches to `on_replayed`, and then calls `end_replay`.
    `drop` cancels a replay. `step` applies a few blocks."""

    def __init__(
        self,
        ledger: Ledger,
        ask: Callable[[int, int], bool] = lambda rank, first: False,
        drop: Callable[[int], None] = lambda rank: None,
    ) -> None:
        self.ledger, self.counts = ledger, ledger.counts
        self.ask, self.drop = ask, drop
        self.trust = GUESSED
        self.todo: deque[Todo] = deque()
        self.parts: Iterator[Event] = iter(())  # remaining parts of the current event
        self._ranks: dict[int, _Rank] = {}

    def begin(self, rank: int = 0) -> None:
        """Request the earlier batches of a rank immediately, because the engine may be silent for a long time."""
        if self.ask(rank, 0):
            self._ranks[rank] = _Rank(waiting=deque(), clears=not self._ranks)

    def on_batch(self, number: int, payload: bytes) -> None:
        """Handle a batch that the engine has published."""
        batch = read_batch(payload)
        place = batch.rank if batch is not None and batch.rank is not None and 0 <= batch.rank < RANKS else 0
        rank = self._ranks.get(place)
        self.counts.batches += 1
        if rank is None:
            rank = self._ranks[place] = _Rank(clears=not self._ranks)
            if number:
                self.counts.late += 1
        elif number <= rank.last:  # the numbers of a publisher only grow, so the publisher has restarted
            self.counts.restarts += 1
            if rank.waiting is not None:
                self.drop(place)
            rank.next, rank.waiting, rank.clears = 0, None, True
        elif number > rank.next and rank.waiting is None:
            if rank.last < 0 and not rank.next:
                self.counts.late += 1
            else:
                self.counts.gaps += 1
        rank.last = number
        if rank.waiting is not None:
            rank.waiting.append((number, batch))
            rank.bytes += len(payload)
            if len(rank.waiting) > HELD_BACK or rank.bytes > HELD_BACK_BYTES:
                self.drop(place)
                self.end_replay(place)
        elif number > rank.next and self.ask(place, rank.next):
            rank.waiting, rank.bytes = deque([(number, batch)]), len(payload)
        else:
            self._take(rank, number, batch)

    def on_replayed(self, place: int, number: int, payload: bytes) -> None:
        """Handle a batch of a replay."""
        rank = self._ranks.get(place)
        if rank is not None and rank.waiting is not None and number >= rank.next:
            self.counts.replayed += 1
            self._take(rank, number, read_batch(payload))

    def end_replay(self, place: int) -> None:
        """End a replay, and handle the batches that waited for it."""
        rank = self._ranks.get(place)
        if rank is not None and rank.waiting is not None:
            waiting, rank.waiting = rank.waiting, None
            for number, batch in waiting:
                self._take(rank, number, batch)

    def _take(self, rank: _Rank, number: int, batch: Batch | None) -> None:
        if number < rank.next:
            return  # the batch was replayed already
        trust = EXACT if not number and rank.clears else ""
        if number > rank.next or batch is None:
            trust = PARTIAL
        rank.next = number + 1
        if batch is None:
            self.counts.malformed += 1
        self.todo.append((trust, iter(() if batch is None else batch.events)))

    # --- applying ----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Apply the next few blocks. Return False if no batch is left to apply."""
        if (part := next(self.parts, None)) is not None:
            self.ledger.apply(part)
            return True
        if not self.todo:
            return False
        trust, events = self.todo[0]
        if trust:
            self.todo[0] = ("", events)
            self._restart(trust)
            return True
        raw = next(events, None)
        if raw is None:
            self.todo.popleft()
            return True
        unreadable = self.counts.malformed
        event = read_event(raw, self.counts)
        if event is None:
            if self.counts.malformed > unreadable:
                self._restart(PARTIAL)
        elif isinstance(event, Cleared):
            self._restart(EXACT)
        else:
            self.parts = in_parts(event, PART)
        return True

    def _restart(self, trust: str) -> None:
        """Forget all blocks. `trust` says how well the cache is known from now on. If the engine has several ranks, the
        trust is at most PARTIAL."""
        if len(self._ranks) > 1:
            trust = PARTIAL
        if trust == PARTIAL == self.trust and not self.ledger.blocks:
            return  # the ledger has no blocks, and the trust stays the same
        self.trust = trust
        self.ledger.clear(trust)
