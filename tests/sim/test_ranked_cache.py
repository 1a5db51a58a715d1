"""Caches and stores that evict by uses or by priority, against lists of single blocks."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.sim.kv_cache import Hold, KvCache, Runs
from headway.sim.ranked_cache import RankedCache
from headway.sim.store import Store

TOTAL = 14
PATHS: tuple[Runs, ...] = (
    ((1, 4), (2, 7)),
    ((1, 4), (3, 9)),
    ((1, 4), (2, 7), (4, 10)),
    ((1, 3),),
    ((5, 3), (6, 5)),
)
Named = tuple[int, int]  # key and block


def names(runs: Runs, end: int) -> list[Named]:
    found, start = [], 0
    for key, last in runs:
        found += [(key, block) for block in range(start, min(last, end))]
        start = last
    return found[:end]


@dataclass
class Block:
    holders: int
    level: float
    released: int = 0


@dataclass
class Plain:
    """The cache block by block."""

    eviction: str
    content: dict[Named, Block] = field(default_factory=dict)
    private: int = 0
    releases: int = 0
    gone: list[Named] = field(default_factory=list)

    def order(self) -> list[Named]:
        """What nobody holds, the next to go first."""
        idle = [name for name, block in self.content.items() if not block.holders]
        return sorted(idle, key=lambda name: (self.content[name].level, self.content[name].released))

    def use(self, name: Named, priority: float) -> None:
        block = self.content.get(name)
        if block is None:
            block = self.content[name] = Block(0, 0)
        block.holders += 1
        block.level = {"lru": 0, "lfu": block.level + 1, "priority": priority}[self.eviction]

    def take(self, count: int) -> None:
        self.private += count
        for name in self.order()[: max(0, self.private + len(self.content) - TOTAL)]:
            del self.content[name]
            self.gone.append(name)

    def release(self, held: list[Named]) -> None:
        for name in reversed(held):
            block = self.content[name]
            block.holders -= 1
            if not block.holders:
                self.releases += 1
                block.released = self.releases


@dataclass
class User:
    runs: Runs
    priority: float
    holds: list[Hold]
    held: list[Named]
    blocks: int
    done: int  # blocks offered


def make(eviction: str) -> KvCache:
    return KvCache(TOTAL) if eviction == "lru" else RankedCache(TOTAL, eviction == "lfu")


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["enter", "enter", "offer", "serve", "serve", "leave", "lift"]),
        st.integers(0, 9),
        st.integers(-1, 2),
    ),
    max_size=60,
)


@pytest.mark.parametrize("eviction", ["lru", "lfu", "priority"])
@draws(60)
@given(actions=ACTIONS)
def test_a_cache_evicts_what_single_blocks_would(eviction: str, actions: list[tuple[str, int, int]]) -> None:
    cache, plain = make(eviction), Plain(eviction)
    cache.spilt = []
    users: list[User] = []
    for action, which, priority in actions:
        if action == "enter":
            enter(cache, plain, users, PATHS[which % len(PATHS)], float(priority))
        elif action == "serve":
            if enter(cache, plain, users, PATHS[which % len(PATHS)], float(priority)):
                while users[-1].done < users[-1].blocks:
                    offer(cache, plain, users[-1])
                leave(cache, plain, users.pop())
        elif users:
            user = users[which % len(users)]
            if action == "offer":
                offer(cache, plain, user)
            elif action == "lift":
                lift(cache, plain, user, priority)
            else:
                users.remove(user)
                leave(cache, plain, user)
        compare(cache, plain, users)


def leave(cache: KvCache, plain: Plain, user: User) -> None:
    cache.release(user.holds, user.blocks)
    plain.release(user.held)
    plain.private -= user.blocks - len(user.held)


def enter(cache: KvCache, plain: Plain, users: list[User], runs: Runs, priority: float) -> bool:
    total = runs[-1][1]
    hits = cache.match(runs, total - 1)
    named = names(runs, hits)
    assert all(name in plain.content for name in named)
    idle = [name for name in named if not plain.content[name].holders]
    assert cache.idle_in(runs, hits) == len(idle)
    in_order = [name for name in plain.order() if name in named]
    assert cache.goes_tail_first(runs, hits) == (in_order == [name for name in reversed(named) if name in idle])
    if total - hits > cache.total - cache.held - len(idle):
        return False
    holds = cache.hold(runs, hits, priority) if hits else []
    for name in named:
        plain.use(name, priority)
    cache.take(total - hits)
    plain.take(total - hits)
    users.append(User(runs, priority, holds, named, total, hits))
    return True


def offer(cache: KvCache, plain: Plain, user: User) -> None:
    """The next two blocks are computed."""
    end = min(user.blocks, user.done + 2)
    start = 0
    for key, last in user.runs:
        first, stop = max(start, user.done), min(last, end)
        if first < stop:
            cache.add(key, first, stop, user.holds, user.priority)
        start = last
    for name in names(user.runs, end)[user.done :]:
        if name not in plain.content:
            plain.use(name, user.priority)
            user.held.append(name)
            plain.private -= 1
    user.done = end


def lift(cache: KvCache, plain: Plain, user: User, level: int) -> None:
    if isinstance(cache, RankedCache) and user.holds:
        key, start, end = user.holds[-1]
        cache.lift(key, start + 1, end, level)
        for block in range(start + 1, end):
            plain.content[(key, block)].level = level


def compare(cache: KvCache, plain: Plain, users: list[User]) -> None:
    assert cache.spilt is not None
    assert plain.gone == [(key, block) for key, start, end, _ in cache.spilt for block in reversed(range(start, end))]
    pieces = [piece for key in cache.pieces for piece in cache._chain(key)]
    content = {(one.key, at): (one.holders, one.level) for one in pieces for at in range(one.start, one.end)}
    assert content == {name: (block.holders, block.level) for name, block in plain.content.items()}
    cache.check(sum(user.blocks - len(user.held) for user in users))


@pytest.mark.parametrize("eviction", ["lfu", "priority"])
def test_what_is_noted_for_copying_has_its_level(eviction: str) -> None:
    cache = make(eviction)
    cache.stored = []
    cache.take(4)
    holds: list[Hold] = []
    cache.add(1, 0, 4, holds, 5.0)
    cache.release(holds, 4)
    again = cache.hold(((1, 4),), 2, 3.0)
    cache.release(again, 2)
    level = 1.0 if eviction == "lfu" else 5.0
    assert cache.stored == [(1, 0, 4, level), (1, 0, 2, 2.0 if eviction == "lfu" else 3.0)]


PUTS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "discard", "overflow"]),
        st.sampled_from((3, 5)),
        st.integers(0, 12),
        st.integers(1, 6),
        st.integers(0, 3),
    ),
    max_size=40,
)


@given(st.integers(1, 15), PUTS)
def test_a_store_loses_the_lowest_level_first(blocks: int, actions: list[tuple[str, int, int, int, int]]) -> None:
    store = Store(blocks, ranked=True)
    plain: list[tuple[int, Named]] = []  # level and block, in order of coming
    for action, key, start, length, level in actions:
        named = [(key, block) for block in range(start, start + length)]
        if action == "overflow":
            order = sorted(plain, key=lambda one: one[0])  # stable: of equals the oldest
            over = order[: max(0, len(plain) - blocks)]
            gone = store.overflow()
            assert [(one, (k, at)) for k, first, end, one in gone for at in reversed(range(first, end))] == over
            plain = [one for one in plain if one not in over]
            store.check()
            continue
        plain = [one for one in plain if one[1] not in named]
        if action == "put":
            store.put([(key, start, start + length, level)], 0)
            plain += [(level, name) for name in reversed(named)]
        else:
            store.discard(key, start, start + length)
        assert store.used == len(plain)
        parts = [((key, at), span[4]) for span in store.within(key, 0, 99) for at in range(*span[:2])]
        assert parts == sorted((name, one) for one, name in plain if name[0] == key)
