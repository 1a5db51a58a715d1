"""A fixed loop of the operations that dominate the simulator: small objects, dictionaries, a heap and integers.
To compare times from different machines, divide them by the time of this loop."""

from __future__ import annotations

import time
from heapq import heappop, heappush


class Item:
    __slots__ = ("due", "name", "uses")

    def __init__(self, name: int) -> None:
        self.name = name
        self.due = name * 7919 % 10007
        self.uses = 0


def work(count: int = 200_000) -> int:
    heap: list[tuple[int, int]] = []
    items: dict[int, Item] = {}
    total = 0
    for number in range(count):
        item = items[number] = Item(number)
        heappush(heap, (item.due + number, number))
        if len(heap) > 64:
            due, name = heappop(heap)
            old = items.pop(name)
            old.uses += 1
            total += due * 3 // 2 + old.uses - old.name % 16
    return total


def seconds(repeats: int = 5) -> float:
    """Return the CPU time of the loop in seconds: the minimum of several runs."""
    best = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best


if __name__ == "__main__":
    print(f"{seconds():.3f} s")
