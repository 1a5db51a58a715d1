"""A piece of cached content: neighbouring blocks that share a fate."""

from __future__ import annotations

from msgspec import Struct


class Piece(Struct, eq=False, gc=False):
    """Blocks `start` to `end` of one key, all with the same number of holders and the same level."""

    key: int
    start: int
    end: int
    holders: int
    next: Piece | None = None  # the next piece of the same key, further down the sequence
    level: float = 0  # the lowest is evicted first, of equals the least recently released
