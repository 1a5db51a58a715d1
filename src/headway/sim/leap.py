"""A run: consecutive steps with the same decoding set and the same chunks, whose times follow from a formula.

Step j of a run takes `first + j * increment` picoseconds. A run is planned up to the first step boundary at which
anything can change. If an event happens earlier, it cuts the run.
"""

from math import isqrt

from headway.sim.job import Job


def duration(first: int, increment: int, steps: int) -> int:
    return steps * first + increment * (steps * (steps - 1) // 2)


def steps_begun(first: int, increment: int, elapsed: int) -> int:
    """Return how many steps begin in the first `elapsed` > 0 picoseconds. The last one ends at `elapsed` or later."""
    before = (elapsed - 1) // first
    steps = before + 1  # exact if `increment` is 0, otherwise an upper bound
    if increment and before and increment * (before * (before - 1) // 2) > (elapsed - 1) % first:
        slope = 2 * first - increment
        steps = (isqrt(slope * slope + 8 * increment * elapsed) - slope) // (2 * increment)
        while steps * first + increment * (steps * (steps - 1) // 2) < elapsed:
            steps += 1
    return steps


class Run:
    __slots__ = ("chunks", "end", "first", "increment", "length", "start")

    def __init__(self) -> None:
        self.end = -1  # when the run ends; -1 at a step boundary or if the instance is idle
        self.start = 0
        self.first = 0
        self.increment = 0
        self.length = 0  # number of steps of the run
        self.chunks: list[tuple[Job, int]] = []  # chunks of each step: (request, number of prompt tokens)

    def boundary(self, steps: int) -> int:
        """Return the time at which the first `steps` steps have ended."""
        return self.start + duration(self.first, self.increment, steps)

    def count_begun(self, at: int) -> int:
        """Return how many steps of the run began before `at`."""
        steps = steps_begun(self.first, self.increment, at - self.start)
        return steps if steps < self.length else self.length

    def count_ended(self, at: int) -> int:
        """Return how many steps of the run have ended by `at`."""
        begun = self.count_begun(at)
        return begun if self.boundary(begun) == at else begun - 1

    def cut(self, now: int) -> bool:
        """End the run at the first step boundary at or after this instant. If the run ends at that boundary anyway,
        change nothing. Return whether the run was cut and ends now."""
        if self.length == 1:
            return False
        steps = steps_begun(self.first, self.increment, now - self.start)
        if steps >= self.length:
            return False
        self.length = steps
        end = self.end = self.start + steps * self.first + self.increment * (steps * (steps - 1) // 2)
        return end == now

    def cut_later(self, now: int) -> None:
        """End the run one step after the first step boundary at or after this instant, unless it ends there or
        earlier."""
        if self.length > 2:
            steps = steps_begun(self.first, self.increment, now - self.start) + 1
            if steps < self.length:
                self.length = steps
                self.end = self.boundary(steps)
