"""How long the prefix indexes believe what they believe of each instance. Every method is a function of what it is told
and of nothing else, so that what was told can be told again.

    guessed   the instance tells nothing. What was sent to it is believed for `ttl` after it was last sent, and of that
              the index's own bound keeps what is most recent.
    exact     it has told all. What was sent to it is believed for `speculative`, by when it must have told that it
              stored it; what it has told is believed until it tells that it is gone.
    partial   it tells, but of what was before nothing is known, and of that it will not tell again. What was sent is
              believed for `ttl`.

In each index what an instance is believed to hold stays closed under prefixes, so that looking is quick: a block comes
after its parent and goes before it, whether it was told or only sent. To that end `touched` has to hear of every touch.

Told blocks are those of the gateway's own size, with the tokens they are of. An index of another size has a block under
the key of that one of them in which its last token lies, as `Path.blocks` says, and only if all before are held.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL
from headway.policies.prefix_index import PrefixIndex
from headway.types import PS_PER_SECOND, Path

TTL_PS: Final = 120 * PS_PER_SECOND
# From when it was sent, not from its first token: an engine tells when it computes, and may be long in coming to that.
SPECULATIVE_PS: Final = 30 * PS_PER_SECOND
UNTOLD: Final = 131_072  # keys of an instance that were sent and not told; beyond them the oldest are given up
SLICE: Final = 4096  # stretches that go in one call


class Dates:
    """When what an instance is believed to hold was last sent to it. In the order in which the index lets go, what was
    last sent with one prompt lies together, its end first; so one date a prompt is enough, by the key of its end."""

    __slots__ = ("ends", "rest_ps")

    def __init__(self) -> None:
        self.ends: OrderedDict[int, int] = OrderedDict()  # the oldest first; none that a later prompt went through
        self.rest_ps = 0  # when that prompt was sent whose end went last: of what is left of it

    def sent(self, now_ps: int, path: Path, end: int) -> None:
        ends = self.ends
        if not ends.keys().isdisjoint(path.keys):
            for key in path.keys:
                ends.pop(key, None)
        ends[end] = now_ps

    def forget(self, index: PrefixIndex, instance: int) -> None:
        """The index has let go of some."""
        ends = self.ends
        while ends and not index.holds(instance, next(iter(ends))):
            self.rest_ps = ends.popitem(last=False)[1]


class Sent(NamedTuple):
    """A prompt that was sent to an instance which has not told all of it."""

    at_ps: int
    path: Path
    watched: tuple[int, ...]  # its keys that were not told when it was sent, and the one before them


class Told:
    """Of an instance that tells."""

    __slots__ = ("blocks", "pending", "trust", "untold", "watched")

    def __init__(self, trust: str) -> None:
        self.trust = trust
        self.blocks: dict[int, tuple[int, int, int]] = {}  # own key -> parent's key, first token, end
        self.pending: deque[Sent] = deque()
        self.watched: dict[int, int] = {}  # key -> by how many of them
        self.untold = 0  # keys that they watch


class Beliefs:
    def __init__(
        self, instances: int, indexes: Sequence[PrefixIndex], ttl_ps: int = TTL_PS, speculative_ps: int = SPECULATIVE_PS
    ) -> None:
        self.instances = instances
        self.ttl_ps, self.speculative_ps = ttl_ps, speculative_ps
        self.told: list[Told | None] = [None] * instances
        self.indexes: list[PrefixIndex] = []
        self._dates: list[list[Dates]] = []  # by index and instance
        self.bind(indexes)

    def bind(self, indexes: Sequence[PrefixIndex]) -> None:
        """Other policies may ask for other indexes. A new one learns what instances have told, and nothing else."""
        dates = []
        for index in indexes:
            old = [at for at, known in enumerate(self.indexes) if known is index]
            dates.append(self._dates[old[0]] if old else [Dates() for _ in range(self.instances)])
            for instance, told in enumerate(self.told):
                if told is not None and not old:
                    index.clear(instance)
                    for key in told.blocks:
                        self._store(index, instance, told, key)
        self.indexes, self._dates = list(indexes), dates

    def trust(self, instance: int) -> str:
        """How it is known what an instance has cached."""
        told = self.told[instance]
        return GUESSED if told is None else told.trust

    # --- what was sent -----------------------------------------------------------------------------------------------

    def touched(self, now_ps: int, instance: int, path: Path) -> None:
        """A prompt was sent to an instance, and the indexes have been touched with it."""
        told = self.told[instance]
        if told is not None:
            self._await(now_ps, instance, told, path)
            return
        for index, dates in zip(self.indexes, self._dates, strict=True):
            runs = path.blocks(index.block_tokens)
            if runs:
                dates[instance].sent(now_ps, path, runs[-1][0])
                if index.size(instance) == index.capacity:
                    dates[instance].forget(index, instance)

    def _await(self, now_ps: int, instance: int, told: Told, path: Path) -> None:
        keys, blocks = path.keys, told.blocks
        low, high = 0, len(keys)  # all below low were told, and none from high on
        while low < high:
            middle = (low + high) // 2
            if keys[middle] in blocks:
                low = middle + 1
            else:
                high = middle
        if low == len(keys):
            return
        watched = told.watched
        sent = Sent(now_ps, path, keys[max(0, low - 1) :])
        for key in sent.watched:
            watched[key] = watched.get(key, 0) + 1
        told.pending.append(sent)
        told.untold += len(sent.watched)
        while told.untold > UNTOLD and len(told.pending) > 1:
            self._give_up(instance, told)

    def _give_up(self, instance: int, told: Told) -> int:
        """What the oldest pending prompt alone has, and nobody has told, is believed no longer."""
        sent = told.pending.popleft()
        self._unwatch(told, sent)
        for index in self.indexes:
            runs = sent.path.blocks(index.block_tokens)
            at = len(runs)
            while at:
                at -= 1
                key = runs[at][0]
                if key in told.blocks or key in told.watched:
                    break
                index.drop(instance, key, runs[at - 1][1] if at else 0)
        return len(sent.watched)

    def _unwatch(self, told: Told, sent: Sent) -> None:
        watched = told.watched
        for key in sent.watched:
            if watched[key] == 1:
                del watched[key]
            else:
                watched[key] -= 1
        told.untold -= len(sent.watched)

    # --- what was told -----------------------------------------------------------------------------------------------

    def stored(self, now_ps: int, instance: int, runs: Sequence[Sequence[int]]) -> None:
        """An instance has stored own blocks, each told after its parent: (parent's key, key, first token, end)."""
        told = self.told[instance]
        if told is None:
            return
        for parent, key, start, end in runs:
            told.blocks[key] = (parent, start, end)
            for index in self.indexes:
                self._store(index, instance, told, key)

    def _store(self, index: PrefixIndex, instance: int, told: Told, key: int) -> None:
        parent, start, end = told.blocks[key]
        size = index.block_tokens
        first, stop = start // size, end // size
        if first == stop:
            return
        last = first * size - 1  # token of the block before
        if last >= 0:
            while (above := told.blocks.get(parent)) is not None and above[1] > last:
                parent = above[0]
            if above is None or not index.holds(instance, parent):
                return
        index.store(instance, key, first, stop)

    def removed(self, now_ps: int, instance: int, keys: Sequence[int]) -> None:
        """An instance has own blocks no longer, each told before its parent."""
        told = self.told[instance]
        if told is None:
            return
        cut = [key for key in keys if key in told.watched] if told.watched else []
        if cut:
            self._cut(instance, told, cut)
        for key in keys:
            block = told.blocks.pop(key, None)
            if block is not None:
                for index in self.indexes:
                    first = block[1] // index.block_tokens
                    if block[2] // index.block_tokens > first:
                        index.drop(instance, key, first)

    def _cut(self, instance: int, told: Told, cut: Sequence[int]) -> None:
        """What was sent as the continuation of blocks that go now cannot be there either."""
        lost = frozenset(cut)
        keep: deque[Sent] = deque()
        gone: list[Sent] = []
        for sent in told.pending:
            (keep if lost.isdisjoint(sent.watched) else gone).append(sent)
        told.pending = keep
        for sent in gone:
            self._unwatch(told, sent)
            for index in self.indexes:
                runs = sent.path.blocks(index.block_tokens)
                at = len(runs)
                while at and runs[at - 1][0] not in told.blocks:
                    at -= 1
                    index.drop(instance, runs[at][0], runs[at - 1][1] if at else 0)

    def cleared(self, now_ps: int, instance: int, trust: str = GUESSED) -> None:
        """Nothing is believed of an instance any more; from now on it is known as `trust` says: guessed where it does
        not tell, as of a new instance in that place, or exact or partial where it does."""
        self.told[instance] = Told(trust) if trust in (EXACT, PARTIAL) else None
        for index, dates in zip(self.indexes, self._dates, strict=True):
            index.clear(instance)
            dates[instance] = Dates()

    # --- time --------------------------------------------------------------------------------------------------------

    def expire(self, now_ps: int, most: int = SLICE) -> bool:
        """What is too old goes, up to about so many stretches; whether there is more."""
        left = most
        for instance, told in enumerate(self.told):
            if told is not None:
                life = self.speculative_ps if told.trust == EXACT else self.ttl_ps
                while told.pending and told.pending[0].at_ps + life <= now_ps:
                    if left <= 0:
                        return True
                    left -= self._give_up(instance, told)
                continue
            for index, dates in zip(self.indexes, self._dates, strict=True):
                if index.size(instance):
                    left -= self._age(index, instance, dates[instance], now_ps - self.ttl_ps, left)
                    if left <= 0:
                        return True
        return False

    def _age(self, index: PrefixIndex, instance: int, dates: Dates, until_ps: int, most: int) -> int:
        """Let go of what was last sent by then, the least recently used first; how many stretches that was."""
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
