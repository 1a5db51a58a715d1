"""Block ids of a prompt, stored as runs of consecutive ids, and checks of their number against the prompt's length."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.workload.traces.limits import MAX_BLOCK

Run = tuple[int, int]  # (first block id, number of consecutive ids)
Runs = Sequence[Run]
IDS: Final = 1 << 64  # number of different ids; longer hashes are folded into 64 bits


def id_runs(ids: Sequence[int]) -> list[Run]:
    """Group consecutive ids into runs."""
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
    """Append a run to `runs`. If the new run continues the last run, extend the last run instead."""
    if runs and sum(runs[-1]) == first:
        runs[-1] = (runs[-1][0], runs[-1][1] + count)
    else:
        runs.append((first, count))


def block_count(tokens: int, size: int, whole: bool) -> int:
    """Return the number of blocks that hold this many tokens. If `whole` is set, count only full blocks."""
    return tokens // size if whole else -(-tokens // size)


def check_count(count: int, tokens: int, size: int, whole: bool, name: str, place: str) -> None:
    """Raise unless a prompt of this many tokens has `count` block ids."""
    expected = block_count(tokens, size, whole)
    if count != expected:
        blocks = f"{expected}{' full' if whole else ''} block{'s' if expected != 1 else ''} of {size}"
        raise HeadwayError(f"{place}: {name} has {count} ids, but {tokens} tokens are {blocks}.")


def beginning(runs: Runs, blocks: int) -> list[Run]:
    """Return the runs of the first `blocks` blocks. If there are fewer blocks, return all runs."""
    head: list[Run] = []
    for first, count in runs:
        if blocks <= 0:
            break
        head.append((first, min(count, blocks)))
        blocks -= count
    return head


def without_end(runs: tuple[Run, ...], blocks: int) -> tuple[Run, ...]:
    """Return the runs without the last `blocks` blocks."""
    while blocks and runs:
        first, count = runs[-1]
        runs = runs[:-1]
        if count > blocks:
            return (*runs, (first, count - blocks))
        blocks -= count
    return runs


def extended(runs: tuple[Run, ...], first: int, count: int) -> tuple[Run, ...]:
    """Return the runs and one more, which may continue the last of them."""
    if runs:
        start, length = runs[-1]
        if start + length == first:
            return (*runs[:-1], (start, length + count))
    return (*runs, (first, count))


def rest(runs: Runs, blocks: int) -> list[Run]:
    """Return the runs of the blocks after the first `blocks` blocks."""
    tail: list[Run] = []
    for first, count in runs:
        skipped = min(count, blocks)
        blocks -= skipped
        if skipped < count:
            tail.append((first + skipped, count - skipped))
    return tail


def shared_blocks(left: Runs, right: Runs) -> int:
    """Return the number of equal blocks at the start of two prompts. The two lists of runs may be split at different
    blocks."""
    shared = 0
    while left and right and left[0][0] == right[0][0]:
        step = min(left[0][1], right[0][1])
        shared += step
        left, right = rest(left, step), rest(right, step)
    return shared


class RunTable:
    """The runs of many prompts in columns. The runs of row i have the indices from `_starts[i]` to `_starts[i + 1]`."""

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
        """Return the runs of a row, with `offset` added to their ids."""
        places = range(self._starts[row], self._starts[row + 1])
        return [(self._firsts[at] + offset, self.counts[at]) for at in places]


class Fit(Struct):
    """Checks the block size against every row: its prompt length and its number of ids. If a row contradicts the size,
    the check raises an error that names the sizes that fit all rows so far."""

    size: int
    whole: bool = False  # whether a partly filled last block may have no id
    low: int = 1  # `low` and `high` are the smallest and the largest block size that fit all rows so far
    high: int = MAX_BLOCK

    def check(self, tokens: int, count: int, name: str, place: str) -> None:
        size = self.size
        if self.whole:
            self.low = max(self.low, tokens // (count + 1) + 1)
        elif count:
            self.low = max(self.low, -(-tokens // count))
        if count > 1:
            self.high = min(self.high, (tokens - 1) // (count - 1))
        needed = -(-tokens // size)
        if count == needed or (self.whole and count == tokens // size):
            return
        blocks = f"{tokens} tokens are {needed} block{'s' if needed > 1 else ''} of {size}"
        wrong = f"{name} has {count} {'entry' if count == 1 else 'entries'}, but {blocks}"
        raise HeadwayError(f"{place}: {wrong}. {self._remedy()}.")

    def _remedy(self) -> str:
        """Return a sentence with block sizes that fit all rows so far, preferably a single power of two."""
        low, high = self.low, self.high
        if low > high:
            return "No block size fits all rows so far"
        power = 1 << (low - 1).bit_length()
        if power <= high:
            low = high = power
        if low == high:
            return f"Blocks of {low} tokens fit all rows so far: if that is their size, set block_tokens to {low}"
        return f"Blocks of {low} to {high} tokens fit all rows so far: set block_tokens to their size"
