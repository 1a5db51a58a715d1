"""The KV cache of an instance: paged blocks, prefix sharing with reference counts, LRU eviction of unused content.

A request's tokens form a sequence of *runs*, and each run of tokens has a key. Content is named by (key, block): the
key of the run that contains the block's last token, and the position of the block in the sequence. Adjacent blocks of
one key in the same state form one *piece*, so that costs depend on the number of pieces, not of blocks:

    held    blocks allocated to requests: pieces with holders, and private blocks, which are only counted
    idle    cached blocks without a holder: pieces in the LRU, evicted oldest first, each from its tail
    empty   all other blocks

A request releases its blocks tail first, so that the tail of a sequence is always evicted before its head.
"""

from collections import OrderedDict
from typing import Any, NamedTuple

from headway.errors import InvariantError
from headway.sim.piece import Piece
from headway.types import Path

Runs = tuple[tuple[int, int], ...]  # (key, end block) pairs, as `Path.blocks` returns them
Hold = tuple[int, int, int]  # (key, first block, end block)
Stretch = tuple[int, int, int, float]  # (key, first block, end block, eviction level)
Eviction = tuple[int, int, int, int]  # (time, LATER, key, first block)
# Order of events at the same time: first the `Stored` events of the step that ends, then all others.
STEP_END, LATER = 0, 1


class Stored(NamedTuple):
    """An event: the cache has the blocks of a key without a gap, from the first one up to `end`."""

    time: int
    order: int
    key: int
    end: int
    path: Path  # the prompt that contains the key, or after which the key's tokens were generated


class KvCache:
    __slots__ = (
        "evicted",
        "held",
        "idle",
        "log",
        "lru",
        "now",
        "pieces",
        "releases",
        "spilt",
        "stored",
        "stores",
        "total",
    )

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.idle = 0
        self.evicted = 0
        self.releases = 0
        self.log: list[Any] | None = None  # log of evictions; None if they are not reported
        self.stores: list[Any] | None = None  # log of `Stored` events; None if they are not reported
        self.now = 0  # time of the next entries in the logs
        # Content since the last update of the stores below the GPU: evicted (`spilt`), or computed or used (`stored`).
        # Each list is None if the stores do not need it.
        self.spilt: list[Stretch] | None = None
        self.stored: list[Stretch] | None = None
        self.pieces: dict[int, Piece] = {}  # first piece of each key; `Piece.next` links the others
        self.lru: OrderedDict[Piece, int] = OrderedDict()  # idle piece -> sequence number of its release; oldest first

    def match(self, runs: Runs, limit: int) -> int:
        """Return how many leading blocks of a sequence are cached, at most `limit`."""
        at = 0
        for key, end in runs:
            piece = self.pieces.get(key)
            while piece is not None and piece.start <= at:
                if piece.end > at:
                    at = piece.end
                piece = piece.next
            if at < end:
                break
            at = end
        return at if at < limit else limit

    def tokens_match(self, runs: Runs, limit: int) -> int:
        """Return how many leading blocks of a sequence are cached in the groups of layers that keep every token."""
        return self.match(runs, limit)

    def cached_beyond(self, runs: Runs, start: int) -> bool:
        """Whether any block of a sequence from `start` on is cached."""
        for key, end in runs:
            if end > start:
                piece = self.pieces.get(key)
                while piece is not None:
                    if piece.end > start:
                        return True
                    piece = piece.next
        return False

    def idle_in(self, runs: Runs, hits: int) -> int:
        """Return how many of the first `hits` blocks of a sequence are idle. Idle blocks count as free, but a request
        that hits these blocks needs them itself."""
        count = start = 0
        for key, end in runs:
            stop = min(end, hits)
            piece = self.pieces.get(key)
            while piece is not None and piece.start < stop:
                if piece.holders == 0:
                    count += min(piece.end, stop) - max(piece.start, start)
                piece = piece.next
            if end >= hits:
                break
            start = end
        return count

    def shared_with_others(self, holds: list[Hold]) -> int:
        """Return how many blocks of a request's ranges other requests hold as well."""
        count = 0
        for key, start, end in holds:
            piece = self.pieces.get(key)
            while piece is not None and piece.start < end:
                if piece.holders > 1 and piece.end > start:
                    count += min(piece.end, end) - max(piece.start, start)
                piece = piece.next
        return count

    def skipped_blocks(self, first: int, end: int) -> int:
        """Return how many blocks of a chunk, from `first` to `end`, take no pages in window groups."""
        return 0

    def has_room(self, blocks: int, skipped: int = 0) -> bool:
        """Whether so many blocks are free. `skipped` of them take no pages in window groups."""
        return blocks <= self.total - self.held

    def can_hold(self, blocks: int) -> bool:
        """Whether a request of so many blocks can run if it is alone."""
        return blocks <= self.total

    def lacks(self, runs: Runs, hits: int, need: int, chunk: int) -> bool:
        """Whether there are too few blocks for a request that hits `hits` blocks. It needs `need` blocks to enter, of
        which its first chunk takes `chunk`."""
        room = self.total - self.held
        return need > room and need - hits > room - self.idle_in(runs, hits)

    def goes_tail_first(self, runs: Runs, hits: int) -> bool:
        """Whether the cache would evict the idle blocks among the first `hits` blocks in order from last to first. This
        is true unless two requests computed the same content at the same time and the first copy was released early."""
        last: tuple[float, int] | None = None
        for key, end in runs:
            piece = self.pieces.get(key)
            while piece is not None and piece.start < hits:
                if piece.holders == 0:
                    place = (piece.level, self.lru[piece])
                    if last is not None and place >= last:
                        return False
                    last = place
                piece = piece.next
            if end >= hits:
                break
        return True

    def hold(self, runs: Runs, hits: int, priority: float = 0.0) -> list[Hold]:
        """Add a holder with this priority to the first `hits` blocks of a sequence. Return their ranges."""
        holds = []
        start = 0
        for key, end in runs:
            stop = end if end < hits else hits
            piece = self.pieces[key]
            if piece.start == start and piece.end == stop:
                if piece.holders == 0:
                    del self.lru[piece]
                    self.idle -= stop - start
                    self.held += stop - start
                piece.holders += 1
            else:
                self._hold_part(key, start, stop)
            holds.append((key, start, stop))
            if end >= hits:
                break
            start = end
        return holds

    def _hold_part(self, key: int, start: int, stop: int) -> None:
        chain = self._chain(key)
        for place, piece in enumerate(chain):
            if piece.start >= stop or piece.end <= start:
                continue
            if piece.end > stop:  # split: the back keeps its holders and LRU position; the front is a new piece
                front = Piece(key, piece.start, stop, piece.holders, None, piece.level)
                piece.start = stop
                chain.insert(place, front)
            else:
                front = piece
                if front.holders == 0:
                    del self.lru[front]
            if front.holders == 0:
                self.idle -= front.end - front.start
                self.held += front.end - front.start
            front.holders += 1
            if front.end == stop:
                break
        self._store(key, chain)

    def add(self, key: int, start: int, end: int, holds: list[Hold], priority: float = 0.0, released: int = 0) -> None:
        """Cache computed blocks, except those whose content is cached already. Append the newly cached blocks to
        `holds`. Windows have released the request's first `released` blocks."""
        first = self.pieces.get(key)
        if first is None:
            self.pieces[key] = Piece(key, start, end, 1)
        elif first.next is None and first.end == start and first.holders == 1:
            first.end = end
            if holds and holds[-1][0] == key and holds[-1][2] == start:
                holds[-1] = (key, holds[-1][1], end)
                return
        else:
            self._add_absent(key, start, end, holds)
            return
        holds.append((key, start, end))

    def _add_absent(self, key: int, start: int, end: int, holds: list[Hold]) -> None:
        chain = self._chain(key)
        fresh = []
        at = start
        for piece in chain:
            if piece.start >= end:
                break
            if piece.start > at:
                fresh.append(Piece(key, at, piece.start, 1))
            at = max(at, piece.end)
        if at < end:
            fresh.append(Piece(key, at, end, 1))
        holds.extend((key, piece.start, piece.end) for piece in fresh)
        self._store(key, sorted(chain + fresh, key=lambda piece: piece.start))

    def tell_stored(self, time: int, order: int, key: int, first: int, path: Path) -> None:
        """Report how far the blocks of a key are cached without a gap; `first` is the first block of the key."""
        assert self.stores is not None
        end = first
        piece = self.pieces.get(key)
        while piece is not None and piece.start <= end:
            end = max(end, piece.end)
            piece = piece.next
        if end > first:
            self.stores.append(Stored(time, order, key, end, path))

    def take(self, count: int, skipped: int = 0) -> None:
        """Allocate private blocks for a request: first empty blocks, then idle blocks, which are evicted. `skipped`
        is the number of those that take no pages in window groups."""
        held = self.held = self.held + count
        if held + self.idle > self.total:
            self.evict(held + self.idle - self.total)

    def evict(self, count: int) -> None:
        """Evict `count` idle blocks in eviction order."""
        self.idle -= count
        self.evicted += count
        lru, spilt, log = self.lru, self.spilt, self.log
        while count > 0:
            piece = self.next_out()
            key, start, end = piece.key, piece.start, piece.end
            count -= end - start
            if count < 0:  # evict only the tail of the piece
                start = piece.end = start - count
            else:
                del lru[piece]
                if piece.next is None and self.pieces[key] is piece:
                    del self.pieces[key]
                else:
                    self._store(key, [other for other in self._chain(key) if other is not piece])
            if log is not None:
                log.append((self.now, LATER, key, start))
            if spilt is not None:
                if spilt and spilt[-1][0] == key and spilt[-1][1] == end and spilt[-1][3] == piece.level:
                    end = spilt.pop()[2]
                spilt.append((key, start, end, piece.level))

    def next_out(self) -> Piece:
        """Return the piece that is evicted next. Its tail is evicted first."""
        return next(iter(self.lru))

    def note(self, holds: list[Hold]) -> None:
        """Note content that was computed or used, so that it is copied to another store."""
        assert self.stored is not None
        self.stored.extend((key, start, end, 0.0) for key, start, end in reversed(holds))

    def release(self, holds: list[Hold], blocks: int, removed: list[Stretch] | None = None, released: int = -1) -> None:
        """Release all blocks of a request, tail first; `blocks` is their number. Cached content without another holder
        becomes idle, private blocks become empty. If `removed` is a list, content without another holder is removed and
        appended to the list. `released` is the number of the request's
        blocks that windows have released; it matters only if the model has groups of layers."""
        pieces, lru = self.pieces, self.lru
        if self.stored is not None:
            self.note(holds)
        private = blocks
        idle = 0
        for key, start, end in reversed(holds):
            size = end - start
            private -= size
            piece = pieces[key]
            if piece.end == end and piece.start == start and piece.next is None:
                if piece.holders > 1:
                    piece.holders -= 1
                elif removed is None:
                    piece.holders = 0
                    lru[piece] = self.releases = self.releases + 1
                    idle += size
                else:
                    del pieces[key]
                    private += size
                    removed.append((key, start, end, piece.level))
            else:
                self._release_part(key, start, end, removed)
        self.idle += idle
        self.held -= private + idle

    def _release_part(self, key: int, start: int, end: int, removed: list[Stretch] | None) -> None:
        parts: list[Piece] = []
        idle: Piece | None = None
        for piece in reversed(self._chain(key)):
            if piece.start >= end or piece.end <= start:
                parts.append(piece)
                continue
            if piece.end > end:
                parts.append(Piece(key, end, piece.end, piece.holders, None, piece.level))
                piece.end = end
            front = None
            if piece.start < start:
                front = Piece(key, piece.start, start, piece.holders, None, piece.level)
                piece.start = start
            piece.holders -= 1
            if piece.holders:
                idle = None
                parts.append(piece)
            else:
                self.held -= piece.end - piece.start
                if removed is not None:
                    removed.append((key, piece.start, piece.end, piece.level))
                else:
                    self.idle += piece.end - piece.start
                    if idle is not None and idle.start == piece.end and idle.level == piece.level:
                        idle.start = piece.start
                    else:
                        idle = piece
                        self.lru[piece] = self.releases = self.releases + 1
                        parts.append(piece)
            if front is not None:
                parts.append(front)
        self._store(key, parts[::-1])

    def remove(self, holds: list[Hold], blocks: int) -> list[Stretch]:
        """Release all blocks of a request; `blocks` is their number. Remove and return the content without another
        holder."""
        removed: list[Stretch] = []
        self.release(holds, blocks, removed)
        removed.reverse()
        if self.log is not None:
            self.log.extend((self.now, LATER, key, start) for key, start, _, _ in removed)
        return removed

    def _chain(self, key: int) -> list[Piece]:
        chain = []
        piece = self.pieces.get(key)
        while piece is not None:
            chain.append(piece)
            piece = piece.next
        return chain

    def _store(self, key: int, chain: list[Piece]) -> None:
        """Link the pieces of a key. Merge neighbours with the same number of holders and the same level."""
        last: Piece | None = None
        for piece in chain:
            if last is None:
                self.pieces[key] = piece
            elif last.end == piece.start and last.holders == piece.holders > 0 and last.level == piece.level:
                last.end = piece.end
                continue
            else:
                last.next = piece
            last = piece
        if last is None:
            self.pieces.pop(key, None)
        else:
            last.next = None

    def pages_of(self, blocks: int, released: int) -> int:
        """Return how many pages a request with `blocks` blocks has. Without groups of layers, a page is a block."""
        return blocks

    def check(self, private: int) -> None:
        """Check the counts of held and idle blocks against the pieces and the requests' private blocks."""
        held = idle = 0
        lru = self.lru
        for key, first in self.pieces.items():
            at = -1
            piece: Piece | None = first
            while piece is not None:
                start, end = piece.start, piece.end
                if start < at or end <= start or (piece.holders == 0) != (piece in lru):
                    raise InvariantError(f"The KV piece {key}:{start}-{end} is out of order.")
                at = end
                if piece.holders:
                    held += end - start
                else:
                    idle += end - start
                piece = piece.next
        if held + private != self.held or idle != self.idle or self.held + self.idle > self.total or private < 0:
            raise InvariantError(
                f"KV blocks do not add up: {self.held} held, {self.idle} idle of {self.total}; "
                f"the pieces have {held} and {idle}, and requests hold {private} private blocks."
            )
