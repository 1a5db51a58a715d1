"""The formula of a run: k steps of which step j lasts `first + j * increment` picoseconds."""

from __future__ import annotations

from math import isqrt


def duration(first: int, increment: int, steps: int) -> int:
    return steps * first + increment * (steps * (steps - 1) // 2)


def steps_begun(first: int, increment: int, elapsed: int) -> int:
    """How many steps begin in the first `elapsed` > 0 picoseconds; the last of them ends then or later."""
    steps = -(-elapsed // first)  # right where steps do not grow, else too many
    before = steps - 1
    if increment and before and before * first + increment * (before * (before - 1) // 2) >= elapsed:
        slope = 2 * first - increment
        steps = (isqrt(slope * slope + 8 * increment * elapsed) - slope) // (2 * increment)
        while steps * first + increment * (steps * (steps - 1) // 2) < elapsed:
            steps += 1
    return steps
