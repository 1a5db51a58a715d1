"""What policies share that ask the router's prefix index: its two figures as parameters, and the index they name."""

from __future__ import annotations

from typing import Annotated

from headway.policies.context import Context
from headway.policies.registry import Bounds

BlockTokens = Annotated[int, Bounds(1, 4096, log=True)]
LruBlocks = Annotated[int, Bounds(1, 10_000_000, log=True)]

BLOCK_TOKENS = 16
LRU_BLOCKS = 31_250  # blocks an instance


class Believer:
    """Asks for the index when it is bound; those with equal figures share one. A policy gives both as parameters."""

    block_tokens: BlockTokens
    lru_blocks: LruBlocks

    def bind(self, context: Context) -> None:
        self.index = context.prefix_index(self.block_tokens, self.lru_blocks)
        self.matches = self.index.matches
