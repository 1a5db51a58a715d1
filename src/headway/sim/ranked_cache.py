"""KV caches that evict by level: content with the lowest *level* first; LRU order decides ties.

lfu        the level is the number of requests that have used the content, including the one that computed it
priority   the level is the priority of the last request that began to use the content
"""

from heapq import heapify, heappop, heappush

from headway.sim.kv_cache import Hold, KvCache, Runs
from headway.sim.piece import Piece

SPARE = 64  # the heap may have this many stale entries, and one more per valid entry


class RankedCache(KvCache):
    __slots__ = ("counts", "levels", "ranked_to")

    def __init__(self, total: int, counts: bool) -> None:
        super().__init__(total)
        self.counts = counts  # whether levels are use counts; otherwise they are priorities
        self.levels: list[tuple[float, int, Piece]] = []  # heap: (level, number of the release, piece)
        self.ranked_to = 0  # sequence number of the last release whose pieces are in the heap

    def hold(self, runs: Runs, hits: int, priority: float = 0.0) -> list[Hold]:
        holds = super().hold(runs, hits, priority)
        for key, start, end in holds:
            self.lift(key, start, end, 1.0 if self.counts else priority, self.counts)
        return holds

    def add(self, key: int, start: int, end: int, holds: list[Hold], priority: float = 0.0, released: int = 0) -> None:
        known = len(holds)
        self._add_absent(key, start, end, holds)
        for _, first, last in holds[known:]:
            self.lift(key, first, last, 1.0 if self.counts else priority)
        if 0 < known < len(holds) and holds[known - 1][0] == key and holds[known - 1][2] == holds[known][1]:
            holds[known - 1 : known + 1] = [(key, holds[known - 1][1], holds[known][2])]  # merge adjacent holds

    def lift(self, key: int, start: int, end: int, level: float, further: bool = False) -> None:
        """Set the level of the blocks between `start` and `end` that are allocated to requests. If `further` is set,
        add `level` to their level instead."""
        parts: list[Piece] = []
        for piece in self._chain(key):
            if piece.start >= end or piece.end <= start or not piece.holders:
                parts.append(piece)
                continue
            if piece.start < start:
                parts.append(Piece(key, piece.start, start, piece.holders, None, piece.level))
                piece.start = start
            parts.append(piece)
            if piece.end > end:
                parts.append(Piece(key, end, piece.end, piece.holders, None, piece.level))
                piece.end = end
            piece.level = piece.level + level if further else level
        self._store(key, parts)

    def note(self, holds: list[Hold]) -> None:
        assert self.stored is not None
        for key, start, end in reversed(holds):
            for piece in reversed(self._chain(key)):
                if piece.start < end and piece.end > start:
                    self.stored.append((key, max(piece.start, start), min(piece.end, end), piece.level))

    def next_out(self) -> Piece:
        lru, levels = self.lru, self.levels
        for piece in reversed(lru):  # pieces released since the last call are at the end of the LRU
            if lru[piece] <= self.ranked_to:
                break
            heappush(levels, (piece.level, lru[piece], piece))
        self.ranked_to = self.releases
        if len(levels) > 2 * len(lru) + SPARE:
            self.levels = levels = [(piece.level, number, piece) for piece, number in lru.items()]
            heapify(levels)
        while lru.get(levels[0][2]) != levels[0][1]:
            heappop(levels)
        return levels[0][2]
