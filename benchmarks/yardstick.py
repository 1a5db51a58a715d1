"""A fixed loop that does what the simulator does most (small objects, dictionaries, a heap, integer arithmetic), so
that figures from different machines can be compared: divide by its time."""

from __future__ import annotations

import time
from heapq import heappop, heappush


class Thing:
    __slots__ = ("due", "name", "seen")

    def __init__(self, name: int) -> None:
        self.name = name
        self.due = name * 7919 % 10007
        self.seen = 0


def work(count: int = 200_000) -> int:
    heap: list[tuple[int, int]] = []
    things: dict[int, Thing] = {}
    total = 0
    for number in range(count):
        thing = things[number] = Thing(number)
        heappush(heap, (thing.due + number, number))
        if len(heap) > 64:
            due, name = heappop(heap)
            old = things.pop(name)
            old.seen += 1
            total += due * 3 // 2 + old.seen - old.name % 16
    return total


def seconds(repeats: int = 5) -> float:
    """CPU seconds of the loop, the best of several."""
    best = float("inf")
    for _ in range(repeats):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best


if __name__ == "__main__":
    print(f"{seconds():.3f} s")
