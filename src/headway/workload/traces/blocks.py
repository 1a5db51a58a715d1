"""Block ids of a prompt: as runs, and whether there are as many as its length and the size of a block ask for."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from headway.errors import HeadwayError
from headway.workload.traces.limits import MAX_BLOCK

Run = tuple[int, int]  # first id, count
Runs = Sequence[Run]
IDS: Final = 1 << 64  # how many ids there are; a longer hash is folded into 64 bits, which name it as well


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


def add_run(runs: list[Run], first: int, count: int) -> None:
    """Add a run at the end, as part of the last one where it goes on from that."""
    if runs and sum(runs[-1]) == first:
        runs[-1] = (runs[-1][0], runs[-1][1] + count)
    else:
        runs.append((first, count))


def block_count(tokens: int, size: int, whole: bool) -> int:
    """How many blocks hold so many tokens, or with `whole` are filled by them."""
    return tokens // size if whole else -(-tokens // size)


def beginning(runs: Runs, blocks: int) -> list[Run]:
    """The first so many blocks, or all where there are fewer."""
    head: list[Run] = []
    for first, count in runs:
        if blocks <= 0:
            break
        head.append((first, min(count, blocks)))
        blocks -= count
    return head


def rest(runs: Runs, blocks: int) -> list[Run]:
    """What comes after the first so many blocks."""
    tail: list[Run] = []
    for first, count in runs:
        skipped = min(count, blocks)
        blocks -= skipped
        if skipped < count:
            tail.append((first + skipped, count - skipped))
    return tail


def shared_blocks(left: Runs, right: Runs) -> int:
    """How many leading blocks are the same. Runs need not be cut at the same places."""
    shared = 0
    while left and right and left[0][0] == right[0][0]:
        step = min(left[0][1], right[0][1])
        shared += step
        left, right = rest(left, step), rest(right, step)
    return shared


class RunTable:
    """The runs of many prompts in columns: those of row i are `_starts[i]` to `_starts[i + 1]`."""

    __slots__ = ("_firsts", "_starts", "counts")

    def __init__(self) -> None:
        self._firsts = array("q")
        self.counts = array("q")
        self._starts = array("q", [0])

    def append(self, runs: Iterable[Run]) -> None:
        for first, count in runs:
            self._firsts.append((first + IDS // 2) % IDS - IDS // 2)
            self.counts.append(count)
        self._starts.append(len(self._firsts))

    def row(self, row: int, offset: int = 0) -> list[Run]:
        """The runs of a row, with `offset` added to their ids."""
        places = range(self._starts[row], self._starts[row + 1])
        return [(self._firsts[at] + offset, self.counts[at]) for at in places]


class Fit:
    """Holds every row's length against its number of ids, so that a wrong size is never taken in silence: the first row
    that contradicts it is refused, with the size that would fit all rows so far."""

    __slots__ = ("_high", "_low", "_whole", "size")

    def __init__(self, size: int, whole: bool = False) -> None:
        self.size = size
        self._whole = whole  # a partly filled last block may go without an id
        self._low, self._high = 1, MAX_BLOCK

    def check(self, tokens: int, count: int, name: str, place: str) -> None:
        size = self.size
        if self._whole:
            self._low = max(self._low, tokens // (count + 1) + 1)
        elif count:
            self._low = max(self._low, -(-tokens // count))
        if count > 1:
            self._high = min(self._high, (tokens - 1) // (count - 1))
        needed = -(-tokens // size)
        if count == needed or (self._whole and count == tokens // size):
            return
        blocks = f"{tokens} tokens are {needed} block{'s' if needed > 1 else ''} of {size}"
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
