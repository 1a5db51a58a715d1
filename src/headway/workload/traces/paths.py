"""Prompts as paths: the tree of all prompts of a trace, held as runs of consecutive ids.

    [0..13]            a prompt                      0 ─▶ 1..13
    [0] [14..20]       another                         └▶ 14..20

Blocks are told apart by their id *and* all before them, so a file whose ids do not commit to their prefix is still read
right. A block's number is its place in the order of first appearance; a run goes on to where prompts part, and is named
by its last block. The cost is per run, never per block.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from msgspec import Struct

from headway import hashing
from headway.types import Path

IdRuns = Iterable[tuple[int, int]]  # first id, count


class Node:
    """A stretch of blocks with consecutive ids, with what follows it."""

    __slots__ = ("after", "count", "ends", "first", "number")

    def __init__(self, first: int, count: int, number: int) -> None:
        self.first = first
        self.count = count
        self.number = number  # of the first block
        self.after: dict[int, Node] = {}  # by their first ids
        self.ends = False  # a run ends here though prompts may not part

    @property
    def parts(self) -> bool:
        return self.ends or len(self.after) != 1


class Tree:
    """`cut_at_ends` ends a run also where a prompt ends inside another; that is finer than need be, since a shorter run
    with the same key is the beginning of the longer one."""

    __slots__ = ("_cut", "_root", "blocks")

    def __init__(self, cut_at_ends: bool) -> None:
        self._cut = cut_at_ends
        self._root = Node(0, 0, 0)
        self.blocks = 0  # different ones so far

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
                if self._extends(node, first):
                    node.count += count
                else:
                    node.after[first] = node = Node(first, count, self.blocks)
                self.blocks += count
                at, count = node.count, 0
        if self._cut and at:
            if at < node.count:
                self._split(node, at)
            node.ends = True

    def _extends(self, node: Node, first: int) -> bool:
        """Whether a new block may join the last stretch, numbers and all."""
        last = node.number + node.count == self.blocks and first == node.first + node.count
        return last and node.count > 0 and not node.after and not node.ends

    def _split(self, node: Node, at: int) -> None:
        back = Node(node.first + at, node.count - at, node.number + at)
        back.after, back.ends = node.after, node.ends
        node.count, node.after, node.ends = at, {back.first: back}, False

    def nodes(self, runs: IdRuns) -> Iterator[Node]:
        """The stretches of a prompt that was added, once all are; the last may go on beyond it unless ends cut."""
        node, at = self._root, 0
        for first, count in runs:
            while count:
                if at == node.count:
                    node, at = node.after[first], 0
                    yield node
                step = min(count, node.count - at)
                at, first, count = at + step, first + step, count - step

    def path(self, runs: IdRuns, size: int, prompt_tokens: int, own: int) -> Path:
        """The path of a prompt that was added, in blocks of `size`; what its ids do not cover is content `own`."""
        keys: list[int] = []
        ends: list[int] = []
        node, at, tokens = self._root, 0, 0
        for first, count in runs:
            while count:
                if at == node.count:
                    if tokens and node.parts:
                        keys.append(_key(node))
                        ends.append(tokens)
                    node, at = node.after[first], 0
                step = min(count, node.count - at)
                at, first, count = at + step, first + step, count - step
                tokens += step * size
        if tokens:
            while not node.parts:
                (node,) = node.after.values()
            keys.append(_key(node))
            ends.append(min(tokens, prompt_tokens))
        if tokens < prompt_tokens:
            keys.append(hashing.key(hashing.PROMPT, own))
            ends.append(prompt_tokens)
        return Path(tuple(keys), tuple(ends))


def _key(node: Node) -> int:
    return hashing.key(hashing.TRACE, node.number + node.count - 1)


# Sessions where a trace records none, from which prompts go on from which.
#
# A request continues the latest earlier one that owns its deepest matched block, unless that block is a shared root:
# one that so many requests have that it is a system prompt and not a conversation's own.

ROOT_SHARE: Final = 10  # a block in at least a tenth of the rows is a shared root
ROOT_ROWS: Final = 10  # and in at least so many, lest every block of a short file be one
NONE: Final = -1


class Threads(Struct):
    """For each row, the row that it continues (-1 for none), and its session, numbered from 0 by their first rows."""

    parent: array[int]
    session: array[int]
    count: int


def derive(rows: int, runs: Callable[[int], IdRuns]) -> Threads:
    """The sessions of `rows` requests in order of arrival, `runs` of each being the ids of its blocks."""
    tree = Tree(cut_at_ends=True)  # so that each prompt covers nodes whole
    for row in range(rows):
        tree.add(runs(row))
    references: dict[int, int] = {}  # by a node's number: how many rows have it
    for row in range(rows):
        for node in tree.nodes(runs(row)):
            references[node.number] = references.get(node.number, 0) + 1
    root = max(ROOT_ROWS, rows / ROOT_SHARE)
    owner: dict[int, int] = {}  # the latest row so far that has a node
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
