"""Sessions where a trace records none, from which prompts go on from which.

A request continues the latest earlier one that owns its deepest matched block, unless that block is a shared root: one
that so many requests have that it is a system prompt and not a conversation's own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from headway.workload.traces.paths import IdRuns, Tree

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
    found = Threads(array("q"), array("q"), 0)
    for row in range(rows):
        deepest = NONE
        for node in tree.nodes(runs(row)):
            if node.number in owner:
                deepest = node.number
            else:
                break
        parent = owner[deepest] if deepest >= 0 and references[deepest] < root else NONE
        found.parent.append(parent)
        if parent >= 0:
            found.session.append(found.session[parent])
        else:
            found.session.append(found.count)
            found.count += 1
        for node in tree.nodes(runs(row)):
            owner[node.number] = row
    return found
