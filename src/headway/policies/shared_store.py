"""The blocks that the router believes to be in a shared store: for each run of a prompt, one contiguous range.

The router ignores other blocks of the run, so the store may contain more blocks than the router believes.
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
        """Return the first block of a run at or after block `at` that is not believed to be stored."""
        first, last = self.stretches.get(key, (0, 0))
        return last if first <= at < last else at
