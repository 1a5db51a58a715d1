"""A piece of cached content: adjacent blocks with the same state."""

from __future__ import annotations

from msgspec import Struct


class Piece(Struct, eq=False, gc=False):
    """Blocks `start` to `end` of one key, all with the same number of holders and the same level."""

    key: int
    start: int
    end: int
    holders: int
    next: Piece | None = None  # the next piece of the same key in the sequence
    level: float = 0  # eviction level: the lowest level is evicted first; LRU order decides ties
