"""How long the prefix indexes believe what they believe of each instance. Every method depends on its arguments alone,
so a journal of the calls can be replayed.

    guessed   the instance publishes no events. Prompts sent to it are believed for `ttl` after they were last sent, and
              the index's own bound keeps the most recent of them.
    exact     it has published all. Prompts sent to it are believed for `speculative`; by then it must have reported
              them as stored. Reported blocks are believed until it reports their removal.
    partial   it publishes, but of the time before nothing is known. Prompts sent to it are believed for `ttl`.

In each index, the blocks believed of an instance stay closed under prefixes, so that lookups are quick: a block comes
after its parent and goes before it. To that end `touch` has to be called whenever an index is touched.

Reported blocks have the gateway's own size, and the range of their tokens. An index of another block size stores a
block under the key of the own block in which its last token lies, as `Path.blocks` says, and only if all before it are
held.
"""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL
from headway.policies.prefix_index import PrefixIndex
from headway.types import PS_PER_SECOND, Path

TTL_PS: Final = 120 * PS_PER_SECOND
# Counted from sending, not from the first token: an engine reports blocks when it computes them, which may be late.
SPECULATIVE_PS: Final = 30 * PS_PER_SECOND
MOST_UNCONFIRMED: Final = 131_072  # keys sent to an instance and not reported; beyond them the oldest are given up
SLICE: Final = 4096  # runs of blocks that expire in one call


class Dates:
    """When the blocks believed of an instance were last sent to it. In the index's order of eviction, the blocks last
    sent with one prompt lie together, its end first; so one date a prompt is enough, by the key of its end."""

    __slots__ = ("ends", "rest_ps")

    def __init__(self) -> None:
        self.ends: OrderedDict[int, int] = OrderedDict()  # the oldest first; none that a later prompt went through
        self.rest_ps = 0  # when the prompt was sent whose end was evicted last, for the blocks left of it

    def record_sent(self, now_ps: int, path: Path, end: int) -> None:
        ends = self.ends
        if not ends.keys().isdisjoint(path.keys):
            for key in path.keys:
                ends.pop(key, None)
        ends[end] = now_ps

    def forget(self, index: PrefixIndex, instance: int) -> None:
        """Drop the dates of prompts whose end the index has evicted."""
        ends = self.ends
        while ends and not index.holds(instance, next(iter(ends))):
            self.rest_ps = ends.popitem(last=False)[1]


class Sent(NamedTuple):
    """A prompt that was sent to an instance, and not yet reported as a whole."""

    at_ps: int
    path: Path
    watched: tuple[int, ...]  # its keys that were unreported when it was sent, and the one before them


class Publisher(Struct, eq=False):
    """An instance that publishes events."""

    trust: str
    blocks: dict[int, tuple[int, int, int]] = {}  # own key -> parent's key, first token, end
    pending: deque[Sent] = field(default_factory=deque)
    watched: dict[int, int] = {}  # key -> how many of them watch it
    unconfirmed: int = 0  # keys that they watch


class Beliefs:
    def __init__(
        self, instances: int, indexes: Sequence[PrefixIndex], ttl_ps: int = TTL_PS, speculative_ps: int = SPECULATIVE_PS
    ) -> None:
        self.instances = instances
        self.ttl_ps, self.speculative_ps = ttl_ps, speculative_ps
        self.publishers: list[Publisher | None] = [None] * instances
        self.indexes: list[PrefixIndex] = []
        self._dates: list[list[Dates]] = []  # by index and instance
        self.bind(indexes)

    def bind(self, indexes: Sequence[PrefixIndex]) -> None:
        """Follow the indexes of other policies. A new one gets the reported blocks, and nothing else."""
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
        """Return how well the cache of an instance is known."""
        publisher = self.publishers[instance]
        return GUESSED if publisher is None else publisher.trust

    # --- sent prompts ------------------------------------------------------------------------------------------------

    def touch(self, now_ps: int, instance: int, path: Path) -> None:
        """Record a prompt that was sent to an instance and touched in the indexes."""
        publisher = self.publishers[instance]
        if publisher is not None:
            self._await(now_ps, instance, publisher, path)
            return
        for index, dates in zip(self.indexes, self._dates, strict=True):
            runs = path.blocks(index.block_tokens)
            if runs:
                dates[instance].record_sent(now_ps, path, runs[-1][0])
                if index.size(instance) == index.capacity:
                    dates[instance].forget(index, instance)

    def _await(self, now_ps: int, instance: int, publisher: Publisher, path: Path) -> None:
        keys, blocks = path.keys, publisher.blocks
        # Of a prompt the instance has reported the beginning.
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
        """Drop the unreported blocks that only the oldest pending prompt has; return the keys that it watched."""
        sent = publisher.pending.popleft()
        self._unwatch(publisher, sent)
        for index in self.indexes:
            runs = sent.path.blocks(index.block_tokens)
            at = len(runs)
            while at:
                at -= 1
                key = runs[at][0]
                if key in publisher.blocks or key in publisher.watched:
                    break
                index.drop(instance, key, runs[at - 1][1] if at else 0)
        return len(sent.watched)

    def _unwatch(self, publisher: Publisher, sent: Sent) -> None:
        watched = publisher.watched
        for key in sent.watched:
            if watched[key] == 1:
                del watched[key]
            else:
                watched[key] -= 1
        publisher.unconfirmed -= len(sent.watched)

    # --- reported blocks ---------------------------------------------------------------------------------------------

    def stored(self, now_ps: int, instance: int, runs: Sequence[Sequence[int]]) -> None:
        """Record blocks that an instance has stored, parents first: (parent's key, key, first token, end)."""
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
        last = first * size - 1  # token of the block before
        if last >= 0:
            while (above := publisher.blocks.get(parent)) is not None and above[1] > last:
                parent = above[0]
            if above is None or not index.holds(instance, parent):
                return
        index.store(instance, key, first, stop)

    def removed(self, now_ps: int, instance: int, keys: Sequence[int]) -> None:
        """Drop blocks that an instance has removed, children first."""
        publisher = self.publishers[instance]
        if publisher is None:
            return
        cut = [key for key in keys if key in publisher.watched] if publisher.watched else []
        if cut:
            self._cut(instance, publisher, cut)
        for key in keys:
            block = publisher.blocks.pop(key, None)
            if block is not None:
                for index in self.indexes:
                    first = block[1] // index.block_tokens
                    if block[2] // index.block_tokens > first:
                        index.drop(instance, key, first)

    def _cut(self, instance: int, publisher: Publisher, cut: Sequence[int]) -> None:
        """Drop the prompts that were sent as continuations of removed blocks: they cannot be there either."""
        lost = frozenset(cut)
        keep: deque[Sent] = deque()
        dropped: list[Sent] = []
        for sent in publisher.pending:
            (keep if lost.isdisjoint(sent.watched) else dropped).append(sent)
        publisher.pending = keep
        for sent in dropped:
            self._unwatch(publisher, sent)
            for index in self.indexes:
                runs = sent.path.blocks(index.block_tokens)
                at = len(runs)
                while at and runs[at - 1][0] not in publisher.blocks:
                    at -= 1
                    index.drop(instance, runs[at][0], runs[at - 1][1] if at else 0)

    def cleared(self, now_ps: int, instance: int, trust: str = GUESSED) -> None:
        """Forget an instance. `trust` says how well it is known from now on: guessed if it publishes nothing, as a new
        instance in that place, or else exact or partial."""
        self.publishers[instance] = Publisher(trust) if trust in (EXACT, PARTIAL) else None
        for index, dates in zip(self.indexes, self._dates, strict=True):
            index.clear(instance)
            dates[instance] = Dates()

    # --- time --------------------------------------------------------------------------------------------------------

    def expire(self, now_ps: int, most: int = SLICE) -> bool:
        """Drop what is too old, up to about so many runs of blocks; return whether there is more."""
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
        """Evict the blocks last sent by then, least recently used first; return how many runs of blocks that was."""
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
