"""The context that a policy receives in `bind`: instances, random streams, an estimator, prefix indexes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Annotated, Literal

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.policies.prefix_index import PrefixIndex
from headway.policies.registry import AUTO, Bounds, Usual
from headway.types import Belief, Request
from headway.views.instance import Estimator as Estimator
from headway.views.instance import InstanceView

Candidates = Sequence[InstanceView]  # scorers, filters and pickers must not change this sequence
BlockTokens = Annotated[int, Bounds(1, 4096, log=True)]
# `auto`: the number of KV blocks of each instance
LruBlocks = Annotated[int | Literal["auto"], Bounds(1, 10_000_000, log=True)]

BLOCK_TOKENS = 16
Figures = tuple[int, int | Literal["auto"]]  # arguments of a prefix index: tokens per block, blocks per instance
LRU_BLOCKS = Usual(31_250)  # capacity of a prefix index for each instance, unless the defaults say `auto`


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
        auto: bool = False,
        belief: Belief = "routed",
    ) -> None:
        """Create a context. If this router replaces another one, `follows` is the context of the old router. The new
        router then continues to use the old router's prefix indexes. With `auto`, a prefix index whose policy sets no
        capacity has the instances' capacities. `belief` says which blocks the prefix indexes hold."""
        self.instances = tuple(instances)
        self.rng = rng  # returns an independent random stream for each name
        self.estimator = estimator
        self.block_tokens = block_tokens  # block size of the engines
        self._truth = truth
        self._lengths: Callable[[Request], int] | None = None
        self.auto = auto
        self.belief: Belief = belief
        self._indexes: dict[Figures, PrefixIndex] = {}
        self._hidden: list[PrefixIndex] = []  # `auto` indexes from `hidden_index`, which policies cannot see
        self._former = {} if follows is None else follows._indexes
        for view in self.instances:
            view._estimator = estimator

    def prefix_index(self, block_tokens: int, capacity: int | Literal["auto"], accesses: bool = False) -> PrefixIndex:
        """Return the index of the blocks that the router believes to be cached on each instance. `capacity` is its
        number of blocks for each instance; with `auto`, each instance has as many blocks as its KV cache. With
        `accesses`, the index has `last_accesses`. Calls with an equal block size and capacity return the same index."""
        key = self.figures(block_tokens, capacity)
        if key not in self._indexes:
            self._indexes[key] = self._former.get(key) or self._new_index(*key)
        if accesses:
            self._indexes[key].keep_accesses()
        return self._indexes[key]

    def hidden_index(self) -> PrefixIndex:
        """Return a new index that no policy can see. It has the engines' block size and the default capacity."""
        index = self._new_index(*self.figures(self.block_tokens, LRU_BLOCKS))
        if self.auto:
            self._hidden.append(index)
        return index

    def figures(self, block_tokens: int, capacity: int | Literal["auto"]) -> Figures:
        """Check the arguments of a prefix index, and return them. If a policy does not set the capacity, the defaults
        determine it: `auto` or a number."""
        if isinstance(capacity, Usual):
            capacity = AUTO if self.auto else int(capacity)
        for name, value in (("block_tokens", block_tokens), ("capacity", capacity)):
            if (type(value) is not int or value < 1) and not (name == "capacity" and value == AUTO):
                right = "a whole number of at least 1" + (" or 'auto'" if name == "capacity" else "")
                raise HeadwayError(f"prefix_index: {name} must be {right}, got {shown(value)}.")
        return block_tokens, capacity

    def fit(self, instance: int) -> None:
        """Adapt the `auto` indexes to the instance's KV cache, whose size has changed."""
        automatic = [index for (_, capacity), index in self._indexes.items() if capacity == AUTO]
        for index in (*automatic, *self._hidden):
            index.resize(instance, self._blocks_of(self.instances[instance], index.block_tokens))

    def _new_index(self, block_tokens: int, capacity: int | Literal["auto"]) -> PrefixIndex:
        blocks = [self._blocks_of(view, block_tokens) for view in self.instances] if capacity == AUTO else capacity
        return PrefixIndex(len(self.instances), blocks, block_tokens, bounded=self.belief != "stored")

    def _blocks_of(self, view: InstanceView, block_tokens: int) -> int:
        """Return how many blocks of this size fit into the instance's KV cache."""
        return max(1, view.kv_blocks * self.block_tokens // block_tokens)

    def with_streams(self, form: str) -> Context:
        """Return a copy of the context whose random streams have other names. `form` makes the new name from the old
        one: with `prefill.{}`, the stream `x` becomes `prefill.x`."""
        renamed = copy(self)
        renamed.rng = partial(_stream, self.rng, form)
        return renamed

    def with_lengths(self, lengths: Callable[[Request], int]) -> Context:
        """Return a copy of the context for an oracle that may ask for the true output lengths. No other policy gets
        this copy."""
        knowing = copy(self)
        knowing._lengths = lengths
        return knowing

    @property
    def indexes(self) -> list[PrefixIndex]:
        return list(self._indexes.values())

    @property
    def routed_indexes(self) -> list[PrefixIndex]:
        """The indexes that learn which prompts the router sends."""
        return [] if self.belief == "stored" else self.indexes

    def truth(self, request: Request) -> list[int]:
        """Return the number of prompt tokens that are truly cached on each instance, by index. Only policies that are
        declared as oracles may call this."""
        if self._truth is None:
            raise HeadwayError("Only the simulator knows the true cache state; this policy cannot run live.")
        return self._truth(request)

    def true_length(self, request: Request) -> int:
        """Return how many tokens the request will generate. Only an estimator that is declared as an oracle may call
        this."""
        if self._lengths is None:
            raise HeadwayError("Only the simulator knows the true output length, and tells it only to an oracle.")
        return self._lengths(request)


def _stream(rng: Callable[[str], Random], form: str, name: str) -> Random:
    return rng(form.format(name))


class Believer:
    """A policy that reads the router's prefix index. Policies with equal parameters share one index."""

    block_tokens: BlockTokens
    lru_blocks: LruBlocks

    def bind(self, context: Context) -> None:
        self.index = context.prefix_index(self.block_tokens, self.lru_blocks)
        self.matches = self.index.matches
