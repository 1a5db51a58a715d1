"""Policies that are decision trees: one of the name `tree` in every stage. What runs is the tree's source."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from headway.errors import HeadwayError
from headway.policies.belief import BLOCK_TOKENS, LRU_BLOCKS, BlockTokens, LruBlocks
from headway.policies.code import CodeError
from headway.policies.code.stages import (
    Coded,
    CodedAdmission,
    CodedPriority,
    CodedRouting,
    CodedScaling,
    CodedScheduler,
    Values,
)
from headway.policies.registry import policy
from headway.policies.scheduling import ChunkTokens
from headway.policies.tree import tree_source
from headway.types import Request

LINE = re.compile(r"\btree line (\d+)")


@dataclass(eq=False, repr=False)
class Treed(Coded):
    """A tree in place of a source; mistakes are told with their place in the tree."""

    tree: Any = None
    parameters: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.tree is None:
            raise HeadwayError("tree: give the tree as 'tree', as in {tree: {if: ..., then: ..., else: ...}}.")
        self.made = tree_source(self.tree, self.stage)
        try:
            self.compile(self.made.text, "tree", self.parameters)
        except CodeError as error:
            if not error.rejections:
                raise
            first, more = error.rejections[0], len(error.rejections) - 1
            told = f"{self.made.place(first.line)}: {first.construct}: {first.why}"
            raise CodeError(f"{told}{f' (and {more} more)' if more else ''}.", error.rejections) from None

    def fail(self, error: BaseException, request: Request | None) -> HeadwayError:
        told = super().fail(error, request)
        if told is error:
            return told
        return CodeError(LINE.sub(lambda found: self.made.place(int(found[1])), str(told)))


@policy("routing", "tree", exact=(), reported=())
class TreeRouting(Treed, CodedRouting):
    """Scores each candidate by a decision tree, and the highest wins.

    `tree` has if, then and else; its values and conditions are expressions of the policy language. `parameters` are the
    values of those that it declares. Ties: lowest index. `block_tokens` and `lru_blocks` are of the belief that
    `cached_tokens` asks.
    """

    block_tokens: BlockTokens = BLOCK_TOKENS
    lru_blocks: LruBlocks = LRU_BLOCKS


@policy("admission", "tree", exact=(), reported=())
class TreeAdmission(Treed, CodedAdmission):
    """Admits by a decision tree, whose values are admit, reject, or seconds after which to ask again.

    `tree` has if, then and else; its conditions are expressions of the policy language. `parameters` are the values of
    those that it declares.
    """


@policy("priority", "tree", exact=(), reported=())
class TreePriority(Treed, CodedPriority):
    """Scores by a decision tree; higher matters more.

    `tree` has if, then and else; its values and conditions are expressions of the policy language. `parameters` are the
    values of those that it declares.
    """


@policy("scheduler", "tree", exact=(), reported=())
class TreeScheduler(Treed, CodedScheduler):
    """Serves first whoever a decision tree gives the lowest number.

    The tree is asked once, as a request arrives at its instance; ties in order of arrival. `tree` has if, then and
    else; its values and conditions are expressions of the policy language. `parameters` are the values of those that it
    declares.
    """

    chunk_tokens: ChunkTokens = None


@policy("scaling", "tree", exact=(), reported=())
class TreeScaling(Treed, CodedScaling):
    """Finds the number of replicas by a decision tree; the word stay leaves them as they are.

    `tree` has if, then and else; its values and conditions are expressions of the policy language. `parameters` are the
    values of those that it declares.
    """
