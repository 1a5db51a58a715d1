"""What the router believes to lie in a store that several instances can load from.

Of each run it is one stretch, so that the cost is per run; content comes and goes from the tail on. What comes apart
from it is not known, nor what lies behind a gap: that errs low.
"""

from __future__ import annotations

from msgspec import Struct


class SharedStore(Struct, eq=False):
    level: int
    stretches: dict[int, tuple[int, int]] = {}  # key -> first block, end block

    def put(self, key: int, start: int, end: int) -> None:
        if start >= end:
            return
        first, last = self.stretches.get(key, (start, end))
        if start <= last and end >= first:
            self.stretches[key] = (min(first, start), max(last, end))
        elif start < first:  # what a prompt comes to first is of more use
            self.stretches[key] = (start, end)

    def lose(self, key: int, start: int, end: int) -> None:
        first, last = self.stretches.get(key, (0, 0))
        if start <= first:
            first = max(first, end)
        elif start < last:
            last = start
        if first < last:
            self.stretches[key] = (first, last)
        else:
            self.stretches.pop(key, None)

    def reach(self, key: int, at: int) -> int:
        """Where the blocks of a run end that are here without a gap from `at` on."""
        first, last = self.stretches.get(key, (0, 0))
        return last if first <= at < last else at
