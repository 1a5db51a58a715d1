"""Where the figures of a drawn scenario come from: a Hypothesis search, or a number."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from drawing import PROFILE


class Draws(Protocol):
    def between(self, low: int, high: int) -> int:
        """Draw an integer; both ends are possible."""

    def choose(self, values: Sequence[Any]) -> Any:
        """Draw one of the values."""


def pick(draws: Draws, *values: Any) -> Any:
    return draws.choose(values)


def pick_several(draws: Draws, most: int, values: Sequence[Any], least: int = 0) -> list[Any]:
    """Draw up to `most` different values, in any order."""
    left, chosen = list(dict.fromkeys(values)), []
    for _ in range(draws.between(least, most)):
        chosen.append(pick(draws, *left))
        left.remove(chosen[-1])
    return chosen


class Searched:
    """Hypothesis draws every figure, and reduces a scenario that fails to a small one."""

    def __init__(self, draw: DrawFn) -> None:
        self.draw = draw

    def between(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def choose(self, values: Sequence[Any]) -> Any:
        return values[self.between(0, len(values) - 1)]


class Scattered:
    """A number stands for all figures of a scenario.

    Nothing is reduced, but no two scenarios are alike, and scenarios of successive numbers take turns: where each of
    them chooses among n values, every value is chosen once in n scenarios. A few dozen scenarios then show what would
    need hundreds if every choice was independent. Which value goes with which of another choice stays random.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.between = Random(number).randint
        self.asked: Counter[str] = Counter()

    def choose(self, values: Sequence[Any]) -> Any:
        question = repr(values)
        self.asked[question] += 1
        lap, turn = divmod(self.number, len(values))
        order = list(range(len(values)))
        Random(zlib.crc32(f"{question} {self.asked[question]} {lap}".encode())).shuffle(order)
        return values[order[turn]]


def fresh_numbers(count: int) -> range:
    """Return the numbers of so many scattered scenarios, others in every run of `make test-long`."""
    start = 10**6 if PROFILE == "steady" else Random().randrange(10**6, 10**15)
    return range(start, start + count)
