"""The KV cache of a model whose layers differ in what they keep: groups of layers that share one pool of pages.

A *page* holds the tokens of one block in the layers of one group. All groups have pages of the same size, and any group
may use any page. The scheduler counts in blocks: a block of a request is one page in each group that keeps tokens.

    full groups     keep every block of a request
    window groups   keep the blocks of the window; those behind it are released as the window moves
    state pages     a fixed number of pages of each running request

If states are kept at the ends of chunks alone (`aligned`), the groups of states are window groups in which a chunk
takes a page for its last block only; the request *skips* the others.

Each group has its own content, under keys of its own. All groups share one LRU order. A request hits the longest prefix
that every group can serve: full groups need all its blocks, window groups the blocks of the last window.
"""

from collections.abc import Iterable

from headway.errors import InvariantError
from headway.sim.job import Job
from headway.sim.kv_cache import Hold, KvCache, Runs, Stored, Stretch
from headway.sim.piece import Piece
from headway.sim.setup import KvGroups
from headway.types import Path

KEPT_STATES = 2  # the state before a chunk, and the one at its end
DEAD = -1  # key of the generated blocks that windows have left behind: they age in the LRU, but nothing hits them
Span = tuple[int, int]  # (first block, end block)


class PagePool(KvCache):
    """The pages of all groups."""

    __slots__ = ()

    def evict(self, count: int) -> None:
        while count > 0:
            piece = self.next_out()
            size = min(count, piece.end - piece.start)
            if piece.key == DEAD:
                self.idle -= size
                piece.end -= size
                if piece.end == piece.start:
                    del self.lru[piece]
            else:
                super().evict(size)
            count -= size

    def abandon(self, count: int) -> None:
        """Release pages whose content nothing hits any more. They are evicted in their turn."""
        self.held -= count
        self.idle += count
        last = next(reversed(self.lru), None)
        if last is not None and last.key == DEAD:
            last.end += count
        else:
            self.lru[Piece(DEAD, 0, count, 0)] = self.releases = self.releases + 1

    def hold_span(self, key: int, start: int, end: int) -> None:
        """Add a holder to cached blocks of a key."""
        parts: list[Piece] = []
        for piece in self._chain(key):
            if piece.start >= end or piece.end <= start:
                parts.append(piece)
                continue
            middle = self._cut(piece, start, end, parts)
            if middle.holders == 0:
                self.idle -= middle.end - middle.start
                self.held += middle.end - middle.start
            middle.holders += 1
        self._store(key, parts)

    def _cut(self, piece: Piece, start: int, end: int, parts: list[Piece]) -> Piece:
        """Append the parts of a piece before, between and after two blocks to `parts`, and return the one between. Idle
        parts stay in the LRU: the last of them in place of the piece, and any other one in front of all pieces."""
        key, low, high, idle = piece.key, piece.start, piece.end, piece.holders == 0
        middle = Piece(key, max(low, start), min(high, end), piece.holders, None, piece.level)
        if low < start:
            front = piece if high <= end else Piece(key, low, start, piece.holders, None, piece.level)
            front.end = start
            parts.append(front)
            if idle and front is not piece:
                self.lru[front] = self.lru[piece]
                self.lru.move_to_end(front, last=False)
        parts.append(middle)
        if high > end:
            piece.start = end
            parts.append(piece)
        elif idle and low >= start:
            del self.lru[piece]
        return middle

    def spans(self, runs: Runs, start: int, stop: int, idle: bool = False) -> list[Span]:
        """Return the ranges of the blocks of a sequence from `start` to `stop` that are cached, or only the idle
        ones."""
        found: list[Span] = []
        first = 0
        for key, end in runs:
            piece = self.pieces.get(key) if end > start else None
            while piece is not None and piece.start < stop:
                low, high = max(piece.start, start, first), min(piece.end, stop, end)
                if low < high and not (idle and piece.holders):
                    if found and found[-1][1] == low:
                        found[-1] = (found[-1][0], high)
                    else:
                        found.append((low, high))
                piece = piece.next
            first = end
            if end >= stop:
                break
        return found

    def check(self, private: int) -> None:
        dead = 0
        for piece in self.lru:
            if piece.key == DEAD:
                dead += piece.end - piece.start
        self.idle -= dead
        super().check(private)
        self.idle += dead
        if self.held + self.idle > self.total:
            raise InvariantError(f"KV pages do not add up: {self.held} held, {self.idle} idle of {self.total}.")


class GroupedCache(KvCache):
    """Counts in blocks towards the scheduler, and keeps pages. `held` is rounded up, so that `total - held` blocks are
    surely free; `idle` is rounded so that blocks beyond `total - held - idle` surely evict content."""

    __slots__ = ("caching", "decodes", "groups", "pool", "short", "size", "surely")

    def __init__(self, groups: KvGroups, block_tokens: int, caching: bool, most: int, ahead: int = 0) -> None:
        super().__init__(groups.blocks)
        self.groups = groups
        self.pool = PagePool(groups.pages)
        self.size = block_tokens
        self.caching = caching
        # The most pages that a request has in a window group: those of the window, and of the tokens of one step.
        # `most` is the token budget of a step, and `ahead` the number of tokens for whose drafts a decode has blocks.
        self.surely = -(-(groups.window - 1 + most + ahead) // block_tokens) + 1
        if groups.aligned:
            self.surely = KEPT_STATES + -(-ahead // block_tokens)
        self.short = 0  # pages that were missing when a request was refused last
        self.decodes = 0  # number of decodes, which may each release a page in every window group

    @property
    def count(self) -> int:
        """The number of groups that keep tokens."""
        return self.groups.spread

    def keyed(self, runs: Runs, group: int) -> Runs:
        count = self.groups.spread
        return tuple([(key * count + group, end) for key, end in runs])

    def tally(self) -> None:
        """Derive the counts in blocks from the counts in pages."""
        pool, spread = self.pool, self.groups.spread
        empty = (pool.total - pool.held - pool.idle) // spread
        self.held = self.total - (pool.total - pool.held) // spread
        self.idle = self.total - self.held - empty
        self.evicted = pool.evicted // spread
        if pool.log:
            assert self.log is not None
            for time, order, key, start in pool.log:
                if key % spread == 0:  # the router hears of the first full group alone
                    self.log.append((time, order, key // spread, start))
            pool.log.clear()

    # --- what requests hit ---------------------------------------------------------------------------------------

    def match(self, runs: Runs, limit: int) -> int:
        groups = self.groups
        for group in range(groups.full):
            limit = self.pool.match(self.keyed(runs, group), limit)
        return self.match_window(runs, limit) if groups.windows and limit else limit

    def tokens_match(self, runs: Runs, limit: int) -> int:
        for group in range(self.groups.full):
            limit = self.pool.match(self.keyed(runs, group), limit)
        return limit if self.groups.full else 0

    def match_window(self, runs: Runs, limit: int) -> int:
        """Return the longest prefix of at most `limit` blocks whose last window is cached in every window group. Where
        no whole window is cached, a prefix that is cached from its first block on counts."""
        groups = self.groups
        spans: list[Span] = [(0, limit)]
        for group in range(groups.full, groups.spread):
            spans = intersect(spans, self.pool.spans(self.keyed(runs, group), 0, limit))
        needed = -(-(groups.window - 1) // self.size)
        for start, end in reversed(spans):
            if end - start >= needed or not start:
                return end
        return 0

    def cached_beyond(self, runs: Runs, start: int) -> bool:
        return any(self.pool.cached_beyond(self.keyed(runs, group), start) for group in range(self.groups.spread))

    def can_hold(self, blocks: int) -> bool:
        groups = self.groups
        pages = groups.full * blocks + groups.windows * min(blocks, self.surely) + groups.states
        return pages <= self.pool.total

    def idle_pages(self, runs: Runs, hits: int) -> int:
        """Return how many idle pages a request that hits these blocks would hold."""
        groups, count = self.groups, 0
        for group in range(groups.spread if hits else 0):
            start = groups.first_kept(hits * self.size, self.size) if group >= groups.full else 0
            for low, high in self.pool.spans(self.keyed(runs, group), start, hits, idle=True):
                count += high - low
        return count

    def lacks(self, runs: Runs, hits: int, need: int, chunk: int) -> bool:
        groups = self.groups
        taken = groups.states + self.idle_pages(runs, hits)
        pages = taken + self.pages_for(chunk - hits, self.skipped_blocks(hits, chunk))
        if need > chunk:
            near = 1 if groups.aligned else max(0, min(need, self.surely) - hits)
            whole = groups.full * (need - hits) + groups.windows * near
            pages = max(pages, taken + whole)
        self.short = pages - (self.pool.total - self.pool.held)
        return self.short > 0

    def goes_tail_first(self, runs: Runs, hits: int) -> bool:
        """Whether a request that was refused surely cannot enter while only decodes take blocks: no page that it would
        hit can be evicted, and windows release too few pages."""
        return self.short > self.groups.windows * self.decodes and not self.idle_pages(runs, hits)

    # --- blocks of requests --------------------------------------------------------------------------------------

    def hold(self, runs: Runs, hits: int, priority: float = 0.0) -> list[Hold]:
        groups, holds = self.groups, []
        for group in range(groups.full):
            holds += self.pool.hold(self.keyed(runs, group), hits)
        start = groups.first_kept(hits * self.size, self.size)
        for group in range(groups.full, groups.spread):
            first = 0
            for key, end in self.keyed(runs, group):
                low, high = max(first, start), min(end, hits)
                if low < high:
                    self.pool.hold_span(key, low, high)
                    holds.append((key, low, high))
                first = end
        self.tally()
        return holds

    def add(self, key: int, start: int, end: int, holds: list[Hold], priority: float = 0.0, released: int = 0) -> None:
        groups = self.groups
        for group in range(groups.spread):
            low = max(start, released) if group >= groups.full else start
            if low < end:
                own = key * groups.spread + group
                last = next((place for place in range(len(holds) - 1, -1, -1) if holds[place][0] == own), len(holds))
                fresh = holds[last : last + 1]
                self.pool.add(own, low, end, fresh)
                holds[last : last + 1] = fresh

    def take(self, count: int, skipped: int = 0) -> None:
        self.take_pages(self.pages_for(count, skipped))

    def skipped_blocks(self, first: int, end: int) -> int:
        return max(0, end - first - 1) if self.groups.aligned else 0

    def has_room(self, blocks: int, skipped: int = 0) -> bool:
        return self.pages_for(blocks, skipped) <= self.pool.total - self.pool.held

    def pages_for(self, blocks: int, skipped: int) -> int:
        return blocks * self.groups.spread - skipped * self.groups.windows

    def take_pages(self, count: int) -> None:
        pool = self.pool
        pool.now = self.now
        if self.log is not None and pool.log is None:
            pool.log = []
        pool.take(count)
        self.tally()

    def evict(self, count: int) -> None:
        """Evict all content."""
        self.pool.log = [] if self.log is not None else None
        self.pool.now = self.now
        self.pool.evict(self.pool.idle)
        self.tally()

    def release(self, holds: list[Hold], blocks: int, removed: list[Stretch] | None = None, released: int = -1) -> None:
        """Release all pages of a request, group by group, tail first. If `released` is negative, release only this
        number of private blocks."""
        spread = self.groups.spread
        pages = spread * blocks if released < 0 else self.pages_of(blocks, released)
        self.pool.release(sorted(holds, key=lambda hold: -(hold[0] % spread)), pages)
        self.tally()

    def move_window(self, job: Job, start: int, end: int) -> None:
        """Release the blocks of a request from `start` to `end` in every window group, except those it has skipped."""
        groups = self.groups
        for group in range(groups.full, groups.spread):
            cut: list[Hold] = []
            left: list[Hold] = []
            for key, first, stop in job.holds:
                if key % groups.spread == group and first < end:
                    cut.append((key, first, min(stop, end)))
                    if stop > end:
                        left.append((key, end, stop))
                else:
                    left.append((key, first, stop))
            self.pool.release(cut, end - start - job.skipped)
            job.holds = left
        self.tally()

    def abandon(self, count: int) -> None:
        """Release generated blocks that the windows of requests have left behind, in every window group."""
        pages = count * self.groups.windows
        if self.caching:
            self.pool.abandon(pages)
        else:
            self.pool.held -= pages
        self.tally()

    def tell_stored(self, time: int, order: int, key: int, first: int, path: Path) -> None:
        assert self.stores is not None
        end = first
        piece = self.pool.pieces.get(key * self.groups.spread)
        while piece is not None and piece.start <= end:
            end = max(end, piece.end)
            piece = piece.next
        if end > first:
            self.stores.append(Stored(time, order, key, end, path))

    def pages_of(self, blocks: int, released: int) -> int:
        groups = self.groups
        return groups.full * blocks + groups.windows * (blocks - released) + groups.states

    def check(self, private: int) -> None:
        self.pool.check(private)


def intersect(left: Iterable[Span], right: list[Span]) -> list[Span]:
    """Return the ranges that are in both lists. Each list is in order."""
    both: list[Span] = []
    place = 0
    for start, end in left:
        while place < len(right) and right[place][1] <= start:
            place += 1
        at = place
        while at < len(right) and right[at][0] < end:
            both.append((max(start, right[at][0]), min(end, right[at][1])))
            at += 1
    return both
