"""Block ids of a prompt: as runs, and whether there are as many as its length and the size of a block ask for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headway.errors import HeadwayError

Run = tuple[int, int]  # first id, count
Runs = Sequence[Run]
LARGEST: Final = 65536  # tokens of a block


def id_runs(ids: Sequence[int]) -> list[Run]:
    """Ids one after the other as runs of consecutive ones."""
    runs: list[Run] = []
    first = count = 0
    for block in ids:
        if count and block == first + count:
            count += 1
            continue
        if count:
            runs.append((first, count))
        first, count = block, 1
    if count:
        runs.append((first, count))
    return runs


def beginning(runs: Runs, blocks: int) -> list[Run]:
    """The first so many blocks, or all where there are fewer."""
    found: list[Run] = []
    for first, count in runs:
        if blocks <= 0:
            break
        found.append((first, min(count, blocks)))
        blocks -= count
    return found


def rest(runs: Runs, blocks: int) -> list[Run]:
    """What comes after the first so many blocks."""
    found: list[Run] = []
    for first, count in runs:
        skipped = min(count, blocks)
        blocks -= skipped
        if skipped < count:
            found.append((first + skipped, count - skipped))
    return found


def shared_blocks(one: Runs, other: Runs) -> int:
    """How many leading blocks are the same. Runs need not be cut at the same places."""
    shared = 0
    mine, theirs = iter(one), iter(other)
    first, count = next(mine, (0, 0))
    second, left = next(theirs, (0, 0))
    while count and left and first == second:
        step = min(count, left)
        shared += step
        first, count, second, left = first + step, count - step, second + step, left - step
        if not count:
            first, count = next(mine, (0, 0))
        if not left:
            second, left = next(theirs, (0, 0))
    return shared


class Fit:
    """Holds every row's length against its number of ids, so that a wrong size is never taken in silence: the first row
    that contradicts it is refused, with the size that would fit all rows so far."""

    __slots__ = ("_high", "_low", "_whole", "size")

    def __init__(self, size: int, whole: bool = False) -> None:
        self.size = size
        self._whole = whole  # a partly filled last block may go without an id
        self._low, self._high = 1, LARGEST

    def check(self, tokens: int, count: int, name: str, place: str) -> None:
        size = self.size
        if self._whole:
            self._low = max(self._low, tokens // (count + 1) + 1)
        elif count:
            self._low = max(self._low, -(-tokens // count))
        if count > 1:
            self._high = min(self._high, (tokens - 1) // (count - 1))
        wanted = -(-tokens // size)
        if count == wanted or (self._whole and count == tokens // size):
            return
        blocks = f"{tokens} tokens are {wanted} block{'s' if wanted > 1 else ''} of {size}"
        wrong = f"{name} has {count} {'entry' if count == 1 else 'entries'}, but {blocks}"
        raise HeadwayError(f"{place}: {wrong}; {self._remedy()}.")

    def _remedy(self) -> str:
        """The sizes that fit all rows so far, a power of two where one does."""
        low, high = self._low, self._high
        if low > high:
            return "no one size of blocks fits all rows so far"
        power = 1 << (low - 1).bit_length()
        if power <= high:
            low = high = power
        if low == high:
            return f"blocks of {low} tokens would fit so far: if they are that, say block_tokens {low}"
        return f"blocks of {low} to {high} tokens would fit so far: say how many they are as block_tokens"
