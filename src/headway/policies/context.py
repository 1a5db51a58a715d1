"""The context that a policy receives in `bind`: instances, random streams, an estimator, prefix indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Annotated

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.prefix_index import PrefixIndex
from headway.policies.registry import Bounds
from headway.types import Request
from headway.views.instance import Estimator as Estimator
from headway.views.instance import InstanceView

Candidates = Sequence[InstanceView]  # scorers, filters and pickers must not change this sequence
BlockTokens = Annotated[int, Bounds(1, 4096, log=True)]
LruBlocks = Annotated[int, Bounds(1, 10_000_000, log=True)]

BLOCK_TOKENS = 16
LRU_BLOCKS = 31_250  # default capacity of a prefix index, per instance


class Context:
    """The argument of a policy's `bind`: instances, random streams, an estimator, the router's prefix indexes."""

    def __init__(
        self,
        instances: Sequence[InstanceView],
        rng: Callable[[str], Random],
        estimator: Estimator,
        block_tokens: int,
        truth: Callable[[Request], list[int]] | None = None,
        *,
        follows: Context | None = None,
    ) -> None:
        """Create a context. If this router replaces another one, `follows` is the context of the old router. The new
        router then continues to use the old router's prefix indexes."""
        self.instances = tuple(instances)
        self.rng = rng  # returns an independent random stream for each name
        self.estimator = estimator
        self.block_tokens = block_tokens  # block size of the engines
        self._truth = truth
        self._indexes: dict[tuple[int, int], PrefixIndex] = {}
        self._former = {} if follows is None else follows._indexes
        for view in self.instances:
            view._estimator = estimator

    def prefix_index(self, block_tokens: int, capacity: int) -> PrefixIndex:
        """Return the index of the blocks that the router believes to be cached on each instance. Calls with equal
        arguments return the same index."""
        for name, value in (("block_tokens", block_tokens), ("capacity", capacity)):
            if type(value) is not int or value < 1:
                raise HeadwayError(f"prefix_index: {name} must be a whole number of at least 1, got {shown(value)}.")
        key = (block_tokens, capacity)
        if key not in self._indexes:
            self._indexes[key] = self._former.get(key) or PrefixIndex(len(self.instances), capacity, block_tokens)
        return self._indexes[key]

    def with_streams(self, form: str) -> Context:
        """Return a copy of the context whose random streams have other names. `form` makes the new name from the old
        one: with `prefill.{}`, the stream `x` becomes `prefill.x`."""
        renamed = copy(self)
        renamed.rng = partial(_stream, self.rng, form)
        return renamed

    @property
    def indexes(self) -> list[PrefixIndex]:
        return list(self._indexes.values())

    def truth(self, request: Request) -> list[int]:
        """Return the number of prompt tokens that are truly cached on each instance, by index. Only policies that are
        declared as oracles may call this."""
        if self._truth is None:
            raise HeadwayError("Only the simulator knows the true cache state; this policy cannot run live.")
        return self._truth(request)


def _stream(rng: Callable[[str], Random], form: str, name: str) -> Random:
    return rng(form.format(name))


class Believer:
    """A policy that reads the router's prefix index. Policies with equal parameters share one index."""

    block_tokens: BlockTokens
    lru_blocks: LruBlocks

    def bind(self, context: Context) -> None:
        self.index = context.prefix_index(self.block_tokens, self.lru_blocks)
        self.matches = self.index.matches
