"""A trace in memory: columns, one row a request in order of arrival, and its prompts as runs of blocks."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from headway import hashing
from headway.types import PS_PER_SECOND, Path

PS_PER_DAY: Final = 86400 * PS_PER_SECOND
LAST_PS: Final = 100 * PS_PER_DAY  # times are 64-bit integers, good for 106 days: the rest is left for the run's end
MAX_LENGTH: Final = 2**31 - 1


def too_late(at_ps: int) -> str:
    """How far beyond the last arrival that leaves the clock room for the run a time lies."""
    return f"after {at_ps // PS_PER_DAY} days, but arrivals end after {LAST_PS // PS_PER_DAY}"


class Trace:
    """Times and lengths, and for formats that have them the ids of each prompt's blocks, renumbered from 0 in order
    of first appearance. Row i's ids are `ids[starts[i]:starts[i + 1]]`."""

    __slots__ = ("arrival_ps", "block_tokens", "format", "ids", "output_tokens", "prompt_tokens", "starts")

    def __init__(self, format: str, block_tokens: int | None) -> None:
        self.format = format
        self.block_tokens = block_tokens  # None: the format knows nothing of content
        self.arrival_ps = array("q")
        self.prompt_tokens = array("q")
        self.output_tokens = array("q")
        self.ids = array("q")
        self.starts = array("q", [0])

    def __len__(self) -> int:
        return len(self.arrival_ps)

    def paths(self) -> Callable[[int], Path]:
        """A function from a row to its prompt's path. Without block ids every prompt is content of its own."""
        if self.block_tokens is None:
            prompts, kind, key = self.prompt_tokens, hashing.PROMPT, hashing.key
            return lambda row: Path((key(kind, row),), (prompts[row],))
        return Runs(self).path


class Runs:
    """Prompts as runs: blocks that only ever occur together are one run, named by its last block.

    Blocks are told apart by their id *and* all before them (a tree from the common root), so a file whose ids do not
    commit to their prefix is still read right; where they do, tree nodes and ids are the same thing.
    """

    __slots__ = ("ends", "keys", "starts")

    def __init__(self, trace: Trace) -> None:
        assert trace.block_tokens is not None
        nodes, is_end = _tree(trace)
        size, key, kind = trace.block_tokens, hashing.key, hashing.TRACE
        self.keys, self.ends, self.starts = array("q"), array("q"), array("q", [0])
        for row, prompt in enumerate(trace.prompt_tokens):
            end = 0
            for node in nodes[trace.starts[row] : trace.starts[row + 1]]:
                end += size
                if is_end[node]:
                    self.keys.append(key(kind, node))
                    self.ends.append(min(end, prompt))
            self.starts.append(len(self.keys))

    def path(self, row: int) -> Path:
        first, last = self.starts[row], self.starts[row + 1]
        return Path(tuple(self.keys[first:last]), tuple(self.ends[first:last]))


def _tree(trace: Trace) -> tuple[array[int], bytearray]:
    """Each reference's node in the tree of prefixes, and for each node whether a run ends there: where a prompt ends
    or where prompts part."""
    numbers: dict[tuple[int, int], int] = {}
    nodes = array("q")
    is_end = bytearray()
    has_child = bytearray()
    for row in range(len(trace)):
        parent = -1
        for block in trace.ids[trace.starts[row] : trace.starts[row + 1]]:
            node = numbers.setdefault((parent, block), len(is_end))
            if node == len(is_end):
                is_end.append(0)
                has_child.append(0)
                if parent >= 0:
                    if has_child[parent]:
                        is_end[parent] = 1
                    has_child[parent] = 1
            nodes.append(node)
            parent = node
        is_end[parent] = 1
    return nodes, is_end
