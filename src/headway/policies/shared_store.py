"""What the router believes a shared store to hold: one stretch of blocks a run.

Blocks apart from the stretch or behind a gap are ignored, so the belief errs low.
"""

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
