"""The prefix index against the plain per-block LRU it stands for."""

from __future__ import annotations

from collections import OrderedDict
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drawing import draws
from headway.policies import last_accesses, prefix_index
from headway.policies.prefix_index import PrefixIndex
from headway.types import Path

Block = tuple[int, int]


class BlockLRU:
    """The specification: one entry a block, touched last to first, the oldest evicted beyond the capacity."""

    def __init__(self, instances: int, capacity: int, block_tokens: int) -> None:
        self.capacity = capacity
        self.block_tokens = block_tokens
        self.held: list[OrderedDict[Block, None]] = [OrderedDict() for _ in range(instances)]

    def blocks(self, path: Path) -> list[Block]:
        """A block by its position and the run of its last token, which commits to all before it."""
        found = []
        for number in range(path.tokens // self.block_tokens):
            last = (number + 1) * self.block_tokens - 1
            found.append(next((key, number) for key, end in zip(path.keys, path.ends, strict=True) if last < end))
        return found

    def matches(self, path: Path) -> list[int]:
        found = []
        for held in self.held:
            count = 0
            for block in self.blocks(path):
                if block not in held:
                    break
                count += 1
            found.append(count)
        return found

    def touch(self, instance: int, path: Path) -> None:
        held = self.held[instance]
        for block in reversed(self.blocks(path)):
            held[block] = None
            held.move_to_end(block)
            if len(held) > self.capacity:
                held.popitem(last=False)

    def eviction_order(self, instance: int) -> list[Block]:
        return list(self.held[instance])

    def remove(self, instance: int, key: int, end: int) -> None:
        for block in [block for block in self.held[instance] if block[0] == key and block[1] >= end]:
            del self.held[instance][block]


def blocks(index: PrefixIndex, instance: int) -> list[Block]:
    """What the index expects to be evicted, block by block."""
    order = index.eviction_order(instance)
    return [(key, number) for key, first, end in order for number in reversed(range(first, end))]


@st.composite
def prompts(draw: st.DrawFn, block_tokens: int) -> list[Path]:
    """Prompts that branch off one another at run ends, or stop inside another's last run."""
    length = st.integers(1, 6 * block_tokens)
    found = [Path((1,), (draw(length),))]
    for key in range(2, draw(st.integers(2, 9))):
        parent = found[draw(st.integers(0, len(found) - 1))]
        depth = draw(st.integers(0, len(parent.keys)))
        keys, ends = parent.keys[:depth], parent.ends[:depth]
        last = ends[-1] if ends else 0
        if depth and draw(st.booleans()):
            before = ends[-2] if depth > 1 else 0
            found.append(Path(keys, (*ends[:-1], draw(st.integers(before + 1, last)))))
        else:
            found.append(Path((*keys, key), (*ends, last + draw(length))))
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, int, int, list[tuple[int, Path]]]:
    block_tokens = draw(st.sampled_from([1, 16, 512]))
    instances = draw(st.integers(1, 3))
    capacity = draw(st.integers(1, 14) | st.integers(15, 60))
    paths = draw(prompts(block_tokens))
    touch = st.tuples(st.integers(0, instances - 1), st.sampled_from(paths))
    return block_tokens, instances, capacity, draw(st.lists(touch, min_size=1, max_size=40))


@draws(40)
@given(histories(), st.sampled_from([0, 8]))
def test_the_index_is_exactly_a_per_block_lru(history: tuple[int, int, int, list[tuple[int, Path]]], many: int) -> None:
    block_tokens, instances, capacity, touches = history
    index = PrefixIndex(instances, capacity, block_tokens)
    plain = BlockLRU(instances, capacity, block_tokens)
    paths = list({(path.keys, path.ends): path for _, path in touches}.values())
    with patch.object(prefix_index, "MANY", many):  # runs of a prompt, from which on they are taken together
        for instance, path in touches:
            index.touch(instance, path)
            plain.touch(instance, path)
            assert [index.size(i) for i in range(instances)] == [len(held) for held in plain.held]
            assert [blocks(index, i) for i in range(instances)] == [plain.eviction_order(i) for i in range(instances)]
            for other in paths:
                assert index.matches(other) == plain.matches(other)


@draws(40)
@given(histories(), st.sampled_from([1, last_accesses.LEAST]))
def test_an_index_knows_when_each_block_was_last_sent(
    history: tuple[int, int, int, list[tuple[int, Path]]], least: int
) -> None:
    block_tokens, instances, capacity, touches = history
    index = PrefixIndex(instances, capacity, block_tokens)
    plain = BlockLRU(instances, capacity, block_tokens)
    paths = list({(path.keys, path.ends): path for _, path in touches}.values())
    times: list[dict[Block, int]] = [{} for _ in range(instances)]
    with patch.object(last_accesses, "LEAST", least):
        index.keep_accesses()
        for now, (instance, path) in enumerate(touches):
            index.touch(instance, path)
            index.accesses.record(now, instance, path, index)
            times[instance].update(dict.fromkeys(plain.blocks(path), now))
            for other in paths:
                last = [None if not count else plain.blocks(other)[count - 1] for count in index.matches(other)]
                assert index.last_accesses(other) == [seen.get(block) for seen, block in zip(times, last, strict=True)]
    index.clear(0)
    assert all(index.last_accesses(path)[0] is None for path in paths)
    index.store(0, paths[0].keys[0], 0, 1)  # blocks that an engine reports, and that this router never sent there
    assert index.last_accesses(paths[0])[0] is None


@draws(40)
@given(histories(), st.data())
def test_what_an_instance_says_it_has_evicted_is_believed(
    history: tuple[int, int, int, list[tuple[int, Path]]], data: st.DataObject
) -> None:
    block_tokens, instances, capacity, touches = history
    index = PrefixIndex(instances, capacity, block_tokens)
    plain = BlockLRU(instances, capacity, block_tokens)
    paths = list({(path.keys, path.ends): path for _, path in touches}.values())
    for instance, path in touches:
        index.touch(instance, path)
        plain.touch(instance, path)
        for _ in range(data.draw(st.integers(0, 2))):
            removed = (
                data.draw(st.integers(0, instances - 1)),
                data.draw(st.integers(1, 9)),
                data.draw(st.integers(0, 12)),
            )
            index.remove(*removed)
            plain.remove(*removed)
        assert [index.size(i) for i in range(instances)] == [len(held) for held in plain.held]
        assert [blocks(index, i) for i in range(instances)] == [plain.eviction_order(i) for i in range(instances)]
        for other in paths:
            assert index.matches(other) == plain.matches(other)


@draws(40)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=60), st.integers(1, 24))
@example([20, 3, 8, 15, 8, 3, 20], 10)
def test_prompts_that_stop_inside_a_shared_prefix_split_and_merge_its_run(lengths: list[int], capacity: int) -> None:
    index, plain = PrefixIndex(1, capacity, 1), BlockLRU(1, capacity, 1)
    for number, length in enumerate(lengths):
        path = Path((7,), (length,)) if number % 3 else Path((7, 100 + number), (length, length + 2))
        index.touch(0, path)
        plain.touch(0, path)
        for end in range(1, 22):
            probe = Path((7,), (end,))
            assert index.matches(probe) == plain.matches(probe)
        assert index.size(0) == len(plain.held[0]) <= capacity
        assert blocks(index, 0) == plain.eviction_order(0)
        assert index.utilization(0) == len(plain.held[0]) / capacity


def test_one_walk_gives_the_match_of_every_instance() -> None:
    index = PrefixIndex(4, 100, 16)
    index.touch(0, Path((1, 2), (64, 160)))
    index.touch(2, Path((1,), (64,)))
    index.touch(3, Path((1,), (40,)))
    assert index.matches(Path((1, 2), (64, 160))) == [10, 0, 4, 2]
    assert index.matches(Path((1, 3), (64, 160))) == [4, 0, 4, 2]
    assert index.matches(Path((9,), (64,))) == [0, 0, 0, 0]


def test_a_prompt_shorter_than_a_block_matches_and_holds_nothing() -> None:
    index = PrefixIndex(1, 100, 16)
    index.touch(0, Path((1,), (15,)))
    assert index.matches(Path((1,), (15,))) == [0]
    assert index.size(0) == 0


def test_a_prompt_larger_than_the_capacity_keeps_its_head() -> None:
    index = PrefixIndex(1, 4, 1)
    index.touch(0, Path((1, 2), (3, 9)))
    assert index.matches(Path((1, 2), (3, 9))) == [4]
    index.touch(0, Path((5,), (9,)))
    assert index.matches(Path((5,), (9,))) == [4]
    assert index.matches(Path((1, 2), (3, 9))) == [0]


def test_looking_does_not_refresh_recency() -> None:
    index = PrefixIndex(1, 2, 1)
    first, second, third = (Path((key,), (1,)) for key in (1, 2, 3))
    index.touch(0, first)
    index.touch(0, second)
    assert index.matches(first) == [1]
    index.touch(0, third)
    assert index.matches(first) == [0]
    assert index.matches(second) == [1]


@pytest.mark.parametrize("capacity", [1, 7, 50])
def test_the_index_never_exceeds_instances_times_capacity(capacity: int) -> None:
    index = PrefixIndex(3, capacity, 16)
    for number in range(500):
        index.touch(number % 3, Path((number % 5, 10 + number), (100, 100 + 16 * (number % 11))))
        assert all(index.size(instance) <= capacity for instance in range(3))
    assert sum(index.size(instance) for instance in range(3)) == 3 * capacity
    entries = sum(len(pieces) for pieces in index._pieces)
    assert entries <= 3 * capacity
    assert sum(len(holders) for holders in index._holders.values()) <= entries


def test_the_cost_of_a_touch_does_not_grow_with_the_length_of_its_runs() -> None:
    index = PrefixIndex(1, 10_000_000, 1)
    for number in range(200):
        index.touch(0, Path((1, 100 + number), (1_000_000, 2_000_000)))
    assert index.size(0) == 10_000_000
    assert len(index._pieces[0]) <= 11


def test_what_goes_next_is_the_tail_of_what_was_routed_longest_ago() -> None:
    index = PrefixIndex(2, 10, 16)
    system, chat, other = Path((1,), (48,)), Path((1, 2), (48, 96)), Path((3,), (64,))
    index.touch(0, chat)
    index.touch(0, other)
    assert index.utilization(0) == 1.0 and index.utilization(1) == 0.0
    assert list(index.eviction_order(0)) == [(2, 3, 6), (1, 0, 3), (3, 0, 4)]
    index.touch(0, system)
    assert list(index.eviction_order(0)) == [(2, 3, 6), (3, 0, 4), (1, 0, 3)]
    index.touch(0, Path((4,), (32,)))  # two blocks too many: the chat loses its last two
    assert list(index.eviction_order(0)) == [(2, 3, 4), (3, 0, 4), (1, 0, 3), (4, 0, 2)]
    index.remove(0, 3, 1)  # the instance says so
    assert list(index.eviction_order(0)) == [(2, 3, 4), (3, 0, 1), (1, 0, 3), (4, 0, 2)]
    assert index.utilization(0) == 0.7 and not list(index.eviction_order(1))


def test_a_front_that_was_cut_short_goes_by_what_is_left_of_it() -> None:
    index = PrefixIndex(1, 20, 1)
    index.touch(0, Path((1,), (12,)))
    index.touch(0, Path((1,), (4,)))
    assert list(index.eviction_order(0)) == [(1, 4, 12), (1, 0, 4)]
    index.remove(0, 1, 2)
    assert list(index.eviction_order(0)) == [(1, 0, 2)] and index.size(0) == 2
