"""Prompts as paths in a tree: the tree contains all prompts of a trace, and each node is a run of consecutive block
ids.

    [0..13]            a prompt                      0 ─▶ 1..13
    [0] [14..20]       another prompt                  └▶ 14..20

A block is identified by its id *and* all ids before it. Therefore files in which an id identifies only the content of
its block are read correctly too. Blocks are numbered in order of first appearance. A run ends where prompts diverge,
and the key of a run is the key of its last block. The cost is per run, not per block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct, field

from headway import hashing
from headway.types import Path

IdRuns = Sequence[tuple[int, int]]  # each run is (first id, number of consecutive ids)


class Node(Struct, eq=False):
    """A run of blocks with consecutive ids, and the nodes that follow it."""

    first: int
    count: int
    number: int  # number of the first block
    after: dict[int, Node] = field(default_factory=dict)  # first id -> node that follows this node
    ends: bool = False  # whether a run ends at this node even if prompts do not diverge

    @property
    def parts(self) -> bool:
        return self.ends or len(self.after) != 1


class Tree:
    """All prompts of a trace. If `cut_at_ends` is set, a run also ends at the end of every prompt."""

    def __init__(self, cut_at_ends: bool) -> None:
        self._cut = cut_at_ends
        self._root = Node(0, 0, 0)
        self.blocks = 0  # number of distinct blocks so far

    def add(self, runs: IdRuns) -> None:
        node, at = self._root, 0
        for first, count in runs:
            while count:
                if at < node.count:
                    if first == node.first + at:
                        step = min(count, node.count - at)
                        at, first, count = at + step, first + step, count - step
                        continue
                    self._split(node, at)
                child = node.after.get(first)
                if child is not None:
                    node, at = child, 0
                    continue
                is_last = node.number + node.count == self.blocks and not node.after and not node.ends
                if is_last and 0 < node.count == first - node.first:
                    node.count += count
                else:
                    node.after[first] = node = Node(first, count, self.blocks)
                self.blocks += count
                at, count = node.count, 0
        if self._cut and at:
            if at < node.count:
                self._split(node, at)
            node.ends = True

    def _split(self, node: Node, at: int) -> None:
        back = Node(node.first + at, node.count - at, node.number + at, node.after, node.ends)
        node.count, node.after, node.ends = at, {back.first: back}, False

    def nodes(self, runs: IdRuns) -> Iterator[Node]:
        """Yield the nodes of an added prompt. Without `cut_at_ends`, the last node may extend beyond the prompt."""
        node, at = self._root, 0
        for first, count in runs:
            while count:
                if at == node.count:
                    node, at = node.after[first], 0
                    yield node
                step = min(count, node.count - at)
                at, first, count = at + step, first + step, count - step

    def path(self, runs: IdRuns, size: int, prompt_tokens: int, own: int) -> Path:
        """Return the path of an added prompt, with blocks of `size` tokens. Tokens without block ids get the content
        number `own`."""
        keys: list[int] = []
        ends: list[int] = []
        tokens, last = 0, self._root
        for node in self.nodes(runs):
            if tokens and last.parts:
                keys.append(_key(last))
                ends.append(tokens)
            tokens, last = tokens + node.count * size, node
        if tokens:
            tokens = size * sum(count for _, count in runs)  # the last node may extend beyond the prompt
            while not last.parts:
                (last,) = last.after.values()
            keys.append(_key(last))
            ends.append(min(tokens, prompt_tokens))
        if tokens < prompt_tokens:
            keys.append(hashing.key(hashing.PROMPT, own))
            ends.append(prompt_tokens)
        return Path(tuple(keys), tuple(ends))


def _key(node: Node) -> int:
    return hashing.key(hashing.TRACE, node.number + node.count - 1)


# Sessions derived from shared prompts, for traces that record no sessions.
#
# A request continues an earlier request if their prompts begin with the same blocks. If several earlier requests share
# the longest common beginning with the request, it continues the latest of them. But if the last block of that common
# beginning is a shared root, the request continues no other request. A shared root is a block that occurs in so many
# requests that it must belong to a system prompt.

ROOT_SHARE: Final = 10  # a shared root is in at least 1/ROOT_SHARE of all rows
ROOT_ROWS: Final = 10  # it is also in at least ROOT_ROWS rows; otherwise short files would have only shared roots
NONE: Final = -1


class Threads(Struct):
    """The derived sessions. `parent` has, for each row, the row that it continues, or -1. `session` has the number of
    its session. Sessions are numbered from 0 in order of their first row."""

    parent: array[int]
    session: array[int]
    count: int


def derive(rows: int, runs: Callable[[int], IdRuns]) -> Threads:
    """Derive the sessions of `rows` requests, which are in order of arrival. `runs` returns the block ids of a row."""
    tree = Tree(cut_at_ends=True)  # cut at ends, so that every prompt consists of whole nodes
    for row in range(rows):
        tree.add(runs(row))
    references: dict[int, int] = {}  # node number -> number of rows that contain the node
    for row in range(rows):
        for node in tree.nodes(runs(row)):
            references[node.number] = references.get(node.number, 0) + 1
    root = max(ROOT_ROWS, rows / ROOT_SHARE)
    owner: dict[int, int] = {}  # node number -> latest row that contains the node
    threads = Threads(array("q"), array("q"), 0)
    for row in range(rows):
        deepest = NONE
        for node in tree.nodes(runs(row)):
            if node.number in owner:
                deepest = node.number
            else:
                break
        parent = owner[deepest] if deepest >= 0 and references[deepest] < root else NONE
        threads.parent.append(parent)
        if parent >= 0:
            threads.session.append(threads.session[parent])
        else:
            threads.session.append(threads.count)
            threads.count += 1
        for node in tree.nodes(runs(row)):
            owner[node.number] = row
    return threads
