"""One instance's KV cache: paged blocks, prefix sharing by reference count, LRU over what nobody holds.

Content is named by (key, block): the key of the run that a block's last token lies in, and the block's place in its
sequence. Blocks of one key that share a fate are one *piece*, so that the cost is per touched run, not per block:

    held    blocks that some request holds: pieces with holders, and private blocks (counted, not listed)
    idle    cached blocks without a holder: pieces in the LRU, oldest first; the tail of a piece goes before its head
    empty   the rest

A request's blocks are released tail first, so a sequence's tail is always evicted before its head.
"""

from collections import OrderedDict

from headway.errors import InvariantError
from headway.sim.piece import Piece

Runs = tuple[tuple[int, int], ...]  # (key, end block), as Path.blocks gives them
Hold = tuple[int, int, int]  # key, first block, end block
Stretch = tuple[int, int, int, float]  # key, first block, end block, level
Eviction = tuple[int, int, int]  # when, key, first block


class KvCache:
    __slots__ = ("evicted", "held", "idle", "log", "lru", "now", "pieces", "releases", "spilt", "stored", "total")

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        self.idle = 0
        self.evicted = 0
        self.releases = 0
        self.log: list[Eviction] | None = None  # where somebody wants to know
        self.now = 0  # for the log
        self.spilt: list[Stretch] | None = None  # what was evicted, where it goes into another store
        self.stored: list[Stretch] | None = None  # what was computed or used last, where it is copied
        self.pieces: dict[int, Piece] = {}  # first piece by key
        self.lru: OrderedDict[Piece, int] = OrderedDict()  # how many were released before, itself included

    def match(self, runs: Runs, limit: int) -> int:
        """How many leading blocks are cached, at most `limit`."""
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

    def cached_beyond(self, runs: Runs, start: int) -> bool:
        """Whether any block from `start` on is cached."""
        for key, end in runs:
            if end > start:
                piece = self.pieces.get(key)
                while piece is not None:
                    if piece.end > start:
                        return True
                    piece = piece.next
        return False

    def idle_in(self, runs: Runs, hits: int) -> int:
        """How many of the first `hits` blocks nobody holds: they are free, but not for the taking."""
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

    def goes_tail_first(self, runs: Runs, hits: int) -> bool:
        """Whether eviction would take those of the first `hits` blocks that nobody holds from the tail on. It does,
        unless content was computed twice at a time and its first copy, which others do not hold, was released early."""
        newer = self.releases + 1
        for key, end in runs:
            piece = self.pieces.get(key)
            while piece is not None and piece.start < hits:
                if piece.holders == 0:
                    released = self.lru[piece]
                    if released >= newer:
                        return False
                    newer = released
                piece = piece.next
            if end >= hits:
                break
        return True

    def hold(self, runs: Runs, hits: int, priority: float = 0.0) -> list[Hold]:
        """Give the first `hits` blocks one more holder, whose priority this is."""
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
            if piece.end > stop:  # the back keeps its holders and its place in the LRU, the front becomes a piece
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

    def add(self, key: int, start: int, end: int, holds: list[Hold], priority: float = 0.0) -> None:
        """Computed blocks become hits, each unless its content is cached already; the caller's holds grow by those."""
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
        self._store(key, sorted(chain + fresh, key=_start))

    def take(self, count: int) -> None:
        """Private blocks for a request: empty ones first, then the least recently released."""
        self.held += count
        over = self.held + self.idle - self.total
        if over > 0:
            self.evict(over)

    def evict(self, count: int) -> None:
        """The blocks that are next become empty."""
        self.idle -= count
        self.evicted += count
        lru, spilt = self.lru, self.spilt
        while count > 0:
            piece = self.next_out()
            key = piece.key
            size = piece.end - piece.start
            if size > count:
                piece.end -= count
                if self.log is not None:
                    self.log.append((self.now, key, piece.end))
                if spilt is not None:
                    stretch = (key, piece.end, piece.end + count, piece.level)
                    if spilt and spilt[-1][0] == key:
                        follow(spilt, stretch)
                    else:
                        spilt.append(stretch)
                return
            count -= size
            del lru[piece]
            if self.log is not None:
                self.log.append((self.now, key, piece.start))
            if spilt is not None:
                if spilt and spilt[-1][0] == key:
                    follow(spilt, (key, piece.start, piece.end, piece.level))
                else:
                    spilt.append((key, piece.start, piece.end, piece.level))
            if piece.next is None and self.pieces[key] is piece:
                del self.pieces[key]
            else:
                self._store(key, [other for other in self._chain(key) if other is not piece])

    def next_out(self) -> Piece:
        """What is evicted next, from its tail on."""
        return next(iter(self.lru))

    def note(self, holds: list[Hold]) -> None:
        """Content was computed or used, and is to be copied."""
        assert self.stored is not None
        self.stored.extend((key, start, end, 0.0) for key, start, end in reversed(holds))

    def release(self, holds: list[Hold], blocks: int, removed: list[Stretch] | None = None) -> None:
        """A request gives up its `blocks`, tail first: what it alone held of cached content becomes idle, its private
        blocks become empty. Where a list is given, what would become idle goes there and becomes empty too."""
        pieces = self.pieces
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
                    self.lru[piece] = self.releases = self.releases + 1
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
                    # Neighbours in the LRU too: one piece.
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
        """A request gives up its `blocks`, and what it alone held of cached content is cached no longer; this is it."""
        removed: list[Stretch] = []
        self.release(holds, blocks, removed)
        removed.reverse()
        if self.log is not None:
            self.log.extend((self.now, key, start) for key, start, _, _ in removed)
        return removed

    def _chain(self, key: int) -> list[Piece]:
        chain = []
        piece = self.pieces.get(key)
        while piece is not None:
            chain.append(piece)
            piece = piece.next
        return chain

    def _store(self, key: int, chain: list[Piece]) -> None:
        """Link the pieces of a key again; neighbours with equally many holders and of one level become one."""
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

    def check(self, private: int) -> None:
        """Held + idle + empty = total, told from the pieces themselves and the requests' private blocks."""
        held = idle = 0
        for key in self.pieces:
            at = -1
            for piece in self._chain(key):
                if piece.start < at or piece.end <= piece.start or (piece.holders == 0) != (piece in self.lru):
                    raise InvariantError(f"KV piece {key}:{piece.start}-{piece.end} is out of order.")
                at = piece.end
                if piece.holders:
                    held += piece.end - piece.start
                else:
                    idle += piece.end - piece.start
        if held + private != self.held or idle != self.idle or self.held + self.idle > self.total or private < 0:
            raise InvariantError(
                f"KV blocks do not add up: {self.held} held, {self.idle} idle of {self.total}; "
                f"pieces say {held} and {idle}, requests hold {private} of their own."
            )


def follow(before: list[Stretch], stretch: Stretch) -> None:
    """What goes next: where it lies just before the last that went, the two are one."""
    if before:
        key, start, end, level = before[-1]
        if stretch[0] == key and stretch[2] == start and stretch[3] == level:
            before[-1] = (key, stretch[1], end, level)
            return
    before.append(stretch)


def _start(piece: Piece) -> int:
    return piece.start
