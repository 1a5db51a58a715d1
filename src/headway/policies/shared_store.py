"""The blocks that the router believes to be in a shared store. For each run (a sequence of consecutive blocks with one
key), the router records one contiguous range of blocks.

Blocks of the run outside this range are not recorded, so the store may contain more blocks than the router believes.
"""

from msgspec import Struct


class SharedStore(Struct, eq=False):
    level: int
    stretches: dict[int, tuple[int, int]] = {}  # key of a run -> (first block, end block)

    def put(self, key: int, start: int, end: int) -> None:
        if start >= end:
            return
        first, last = self.stretches.get(key, (start, end))
        if start <= last and end >= first:
            self.stretches[key] = (min(first, start), max(last, end))
        elif start < first:  # blocks nearer to the prompt's beginning are more useful
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
        """Return the first block at or after `at` that the store is not believed to contain."""
        first, last = self.stretches.get(key, (0, 0))
        return last if first <= at < last else at
