"""Beliefs about each instance's cache: which blocks stay in the prefix indexes, and for how long. The result of a
method depends only on its arguments and on earlier calls, so a journal of the calls can be replayed.

    guessed   The instance publishes no events. A sent prompt is believed cached for `ttl` after it was last sent, up to
              the capacity of the index.
    exact     All events are known. A sent prompt is believed cached for `speculative`; within that time the instance
              must report it. Reported blocks are believed cached until the instance reports their removal.
    partial   The instance publishes, but earlier events are unknown. A sent prompt is believed cached for `ttl`.

These rules apply to the belief `both`. With `routed`, all events are ignored, so that every cache is guessed. With
`stored`, only reported blocks are believed cached.

An index stores each block after its parent and removes it before its parent, so that lookups are quick. Whenever a
prompt is sent, the caller first records it in the indexes (`PrefixIndex.touch`, which makes its blocks the most
recently used) and then calls `Beliefs.touch`. Therefore the order of the send times in this module is the order in
which the indexes evict.

Reported blocks have the gateway's block size. If an index has another block size, the key of an index block is the key
of the gateway's block in which the index block ends, as in `Path.blocks`. An index stores a block only if it has all
blocks before that block.

An instance may report that a block is in a slower tier, or that a block before it is. A sent prompt is believed to be
on the GPU, until the next report about its blocks.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL
from headway.policies.prefix_index import PrefixIndex
from headway.policies.prefix_tiers import GPU
from headway.types import PS_PER_SECOND, Belief, Path

TTL_PS: Final = 120 * PS_PER_SECOND
# How long a sent prompt is believed cached before the engine reports it. The time counts from dispatch, not from the
# first token, because an engine may compute and report blocks late.
SPECULATIVE_PS: Final = 30 * PS_PER_SECOND
MOST_UNCONFIRMED: Final = 131_072  # maximum of `Publisher.unconfirmed`; above it, the oldest prompts are dropped
SLICE: Final = 4096  # maximum number of block runs that expire in one call


class Dates:
    """The times at which blocks were last sent to an instance. In the index's order of eviction, all blocks that were
    last sent with the same prompt are consecutive, the last block first. Therefore one time per prompt is enough. It is
    stored under the key of the prompt's last block."""

    __slots__ = ("ends", "rest_ps")

    def __init__(self) -> None:
        # Key of a prompt's last block -> time at which the prompt was sent; oldest first.
        # If a later prompt contains an earlier prompt, only the later prompt has an entry.
        self.ends: OrderedDict[int, int] = OrderedDict()
        # Send time of the prompt whose last block was evicted most recently. Other blocks of this prompt may remain.
        self.rest_ps = 0

    def record_sent(self, now_ps: int, path: Path, end: int) -> None:
        ends = self.ends
        for key in ends.keys() & path.keys:
            del ends[key]
        ends[end] = now_ps

    def forget(self, index: PrefixIndex, instance: int) -> None:
        """Drop the times of prompts whose last block the index has evicted."""
        ends = self.ends
        while ends and not index.holds(instance, next(iter(ends))):
            self.rest_ps = ends.popitem(last=False)[1]


class Sent(NamedTuple):
    """A prompt that was sent to an instance. The instance has not reported all of its blocks yet."""

    at_ps: int
    path: Path
    # the prompt's keys that were unreported when it was sent; the last reported key, if there is one, comes first
    watched: tuple[int, ...]


class Publisher(Struct, eq=False):
    """An instance that publishes events."""

    trust: str
    blocks: dict[int, tuple[int, int, int]] = {}  # key of a reported block -> parent's key, first token, end
    levels: dict[int, int] = {}  # key of a reported block that is not on the GPU -> its tier, as an index in `TIERS`
    pending: deque[Sent] = field(default_factory=deque)
    watched: dict[int, int] = {}  # key -> number of pending prompts that have the key in their `watched`
    unconfirmed: int = 0  # sum, over all pending prompts, of the number of keys in their `watched`


class Beliefs:
    def __init__(
        self,
        instances: int,
        indexes: Sequence[PrefixIndex],
        ttl_ps: int = TTL_PS,
        speculative_ps: int = SPECULATIVE_PS,
        belief: Belief = "both",
    ) -> None:
        self.instances = instances
        self.belief = belief
        self.ttl_ps, self.speculative_ps = ttl_ps, speculative_ps
        self.publishers: list[Publisher | None] = [None] * instances
        self.indexes: list[PrefixIndex] = []
        self._dates: list[list[Dates]] = []  # for each index in `indexes` and each instance: its send times
        self.bind(indexes)

    def bind(self, indexes: Sequence[PrefixIndex]) -> None:
        """Switch to the prefix indexes of other policies. If an index was not in use before, replace its blocks of each
        publishing instance by the blocks that the instance has reported."""
        dates = []
        for index in indexes:
            old = [at for at, known in enumerate(self.indexes) if known is index]
            dates.append(self._dates[old[0]] if old else [Dates() for _ in range(self.instances)])
            for instance, publisher in enumerate(self.publishers):
                if publisher is not None and not old:
                    index.clear(instance)
                    for key in publisher.blocks:
                        self._store(index, instance, publisher, key)
        self.indexes, self._dates = list(indexes), dates

    def trust(self, instance: int) -> str:
        """Return how well the cache of an instance is known: guessed, partial or exact."""
        publisher = self.publishers[instance]
        return GUESSED if publisher is None else publisher.trust

    # --- sent prompts ------------------------------------------------------------------------------------------------

    def touch(self, now_ps: int, instance: int, path: Path) -> None:
        """Record that a prompt was sent to an instance. The caller has already recorded the prompt in the indexes
        (`PrefixIndex.touch`)."""
        if self.belief == "stored":
            return
        publisher = self.publishers[instance]
        if publisher is not None:
            self._await(now_ps, instance, publisher, path)
            return
        for index, dates in zip(self.indexes, self._dates, strict=True):
            runs = path.blocks(index.block_tokens)
            if runs:
                dates[instance].record_sent(now_ps, path, runs[-1][0])
                if index.size(instance) == index.capacities[instance]:
                    dates[instance].forget(index, instance)

    def resized(self, instance: int) -> None:
        """Record that the indexes may have evicted blocks, because the capacity of an instance has changed."""
        for index, dates in zip(self.indexes, self._dates, strict=True):
            dates[instance].forget(index, instance)

    def _await(self, now_ps: int, instance: int, publisher: Publisher, path: Path) -> None:
        keys, blocks = path.keys, publisher.blocks
        # The reported keys of a prompt come before its unreported keys, so bisect for the first unreported key.
        low = bisect_left(range(len(keys)), True, key=lambda place: keys[place] not in blocks)
        if low == len(keys):
            return
        watched = publisher.watched
        sent = Sent(now_ps, path, keys[max(0, low - 1) :])
        for key in sent.watched:
            watched[key] = watched.get(key, 0) + 1
        publisher.pending.append(sent)
        publisher.unconfirmed += len(sent.watched)
        while publisher.unconfirmed > MOST_UNCONFIRMED and len(publisher.pending) > 1:
            self._give_up(instance, publisher)

    def _give_up(self, instance: int, publisher: Publisher) -> int:
        """Stop waiting for reports on the oldest pending prompt. Drop its unreported blocks, except those that other
        pending prompts contain too. Return the number of keys in its `watched`."""
        sent = publisher.pending.popleft()
        self._drop(instance, publisher, sent, publisher.watched)
        return len(sent.watched)

    def _drop(self, instance: int, publisher: Publisher, sent: Sent, keep: Container[int]) -> None:
        """Remove the blocks of a sent prompt from the indexes, beginning with its last block. Stop at the first block
        that was reported or that is in `keep`."""
        watched = publisher.watched
        for key in sent.watched:
            if watched[key] == 1:
                del watched[key]
            else:
                watched[key] -= 1
        publisher.unconfirmed -= len(sent.watched)
        for index in self.indexes:
            runs = sent.path.blocks(index.block_tokens)
            for at in range(len(runs) - 1, -1, -1):
                key = runs[at][0]
                if key in publisher.blocks or key in keep:
                    break
                index.remove(instance, key, runs[at - 1][1] if at else 0, hole=False)

    # --- reported blocks ---------------------------------------------------------------------------------------------

    def stored(self, now_ps: int, instance: int, runs: Sequence[Sequence[int]]) -> None:
        """Record blocks that an instance has stored, parents first. Each element of `runs` is one block: its parent's
        key, its own key, the index of its first token, and the index after its last token."""
        publisher = self.publishers[instance]
        if publisher is None:
            return
        for parent, key, start, end in runs:
            publisher.blocks[key] = (parent, start, end)
            for index in self.indexes:
                self._store(index, instance, publisher, key)

    def _store(self, index: PrefixIndex, instance: int, publisher: Publisher, key: int) -> None:
        parent, start, end = publisher.blocks[key]
        size = index.block_tokens
        first, stop = start // size, end // size
        if first == stop:
            return
        last = first * size - 1  # index of the last token before the block `first`
        if last >= 0:
            while (above := publisher.blocks.get(parent)) is not None and above[1] > last:
                parent = above[0]
            if above is None or not index.holds(instance, parent):
                return
        if not index.store(instance, key, first, stop) and publisher.levels:
            index.forget_slow(instance, stop - first)
            if last < 0 or index.holds(instance, parent):
                index.store(instance, key, first, stop)
        index.place(instance, key, first, publisher.levels.get(key, GPU))

    def moved(self, now_ps: int, instance: int, keys: Sequence[int], level: int) -> None:
        """Record that reported blocks are in the tier with this index in `TIERS`."""
        publisher = self.publishers[instance]
        if publisher is None:
            return
        for key in keys:
            block = publisher.blocks.get(key)
            if block is None:
                continue
            if level == GPU:
                publisher.levels.pop(key, None)
            else:
                publisher.levels[key] = level
            for index in self.indexes:
                first = block[1] // index.block_tokens
                if block[2] // index.block_tokens > first:
                    index.place(instance, key, first, level)

    def removed(self, now_ps: int, instance: int, keys: Sequence[int]) -> None:
        """Drop the blocks that an instance has removed. `keys` lists children before their parents."""
        publisher = self.publishers[instance]
        if publisher is None:
            return
        cut = [key for key in keys if key in publisher.watched] if publisher.watched else []
        if cut:
            self._cut(instance, publisher, cut)
        for key in keys:
            publisher.levels.pop(key, None)
            block = publisher.blocks.pop(key, None)
            if block is not None:
                for index in self.indexes:
                    first = block[1] // index.block_tokens
                    if block[2] // index.block_tokens > first:
                        index.remove(instance, key, first, hole=False)

    def _cut(self, instance: int, publisher: Publisher, cut: Sequence[int]) -> None:
        """Drop the pending prompts that contain removed blocks, because blocks after a removed block are not cached."""
        lost = frozenset(cut)
        dropped = [sent for sent in publisher.pending if not lost.isdisjoint(sent.watched)]
        publisher.pending = deque(sent for sent in publisher.pending if lost.isdisjoint(sent.watched))
        for sent in dropped:
            self._drop(instance, publisher, sent, ())

    def cleared(self, now_ps: int, instance: int, trust: str = GUESSED) -> None:
        """Forget all blocks of an instance. `trust` says how well its cache is known from now on: guessed if the
        instance publishes no events, otherwise exact or partial."""
        publishes = trust in (EXACT, PARTIAL) and self.belief != "routed"
        self.publishers[instance] = Publisher(trust) if publishes else None
        for index, dates in zip(self.indexes, self._dates, strict=True):
            index.clear(instance)
            dates[instance] = Dates()

    # --- time --------------------------------------------------------------------------------------------------------

    def expire(self, now_ps: int, most: int = SLICE) -> bool:
        """Drop expired blocks. Stop after about `most` runs of blocks, so that a call takes little time. Return whether
        expired blocks remain."""
        left = most
        for instance, publisher in enumerate(self.publishers):
            if publisher is not None:
                life = self.speculative_ps if publisher.trust == EXACT else self.ttl_ps
                while publisher.pending and publisher.pending[0].at_ps + life <= now_ps:
                    if left <= 0:
                        return True
                    left -= self._give_up(instance, publisher)
                continue
            for index, dates in zip(self.indexes, self._dates, strict=True):
                if index.size(instance):
                    left -= self._age(index, instance, dates[instance], now_ps - self.ttl_ps, left)
                    if left <= 0:
                        return True
        return False

    def _age(self, index: PrefixIndex, instance: int, dates: Dates, until_ps: int, most: int) -> int:
        """Evict blocks that were last sent at `until_ps` or earlier, but at most `most` runs of consecutive blocks.
        Return the number of evicted runs."""
        blocks = count = 0
        at_ps = dates.rest_ps
        for key, first, end in index.eviction_order(instance):
            at_ps = dates.ends.get(key, at_ps)
            if at_ps > until_ps or count >= most:
                break
            blocks += end - first
            count += 1
        if blocks:
            index.evict(instance, blocks)
            dates.forget(index, instance)
        return count
