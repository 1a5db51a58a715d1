"""Where the router believes blocks to lie, against single blocks with a tier each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.policies.prefix_index import PrefixIndex
from headway.policies.prefix_tiers import GONE, GPU, TIERS
from headway.types import Path

PATHS = (Path((1, 2), (4, 9)), Path((1, 3), (4, 7)), Path((1,), (3,)), Path((5, 6), (2, 8)))
ACTIONS = st.lists(
    st.tuples(
        st.booleans(),  # a prompt is sent, or an instance tells something
        st.integers(0, 1),
        st.sampled_from(PATHS),
        st.sampled_from((1, 2, 3, 5, 6)),
        st.integers(0, 9),
        st.sampled_from([(0, 1), (0, 2), (0, GONE), (1, 2), (1, GONE), (2, GONE), (GONE, GPU)]),
    ),
    max_size=40,
)


def named(path: Path) -> list[tuple[int, int]]:
    found, start = [], 0
    for key, end in path.blocks(1):
        found += [(key, block) for block in range(start, end)]
        start = end
    return found


@given(ACTIONS)
def test_every_block_lies_where_it_was_last_said_to(actions) -> None:
    index = PrefixIndex(2, 1000, 1)
    plain: list[dict[tuple[int, int], int]] = [{}, {}]  # the tier of each block, by instance
    for sent, instance, path, key, block, (source, target) in actions:
        content = plain[instance]
        if sent:
            index.touch(instance, path)
            content.update(dict.fromkeys(named(path), GPU))
        else:
            index.move(instance, key, block, source, target)
            blocks = [name for name in content if name[0] == key]
            if target == GPU:
                content.update({name: GPU for name in blocks if name[1] < block})
            else:
                touched = [name for name in blocks if name[1] >= block and content[name] == source]
                first = min(touched, default=(key, GONE + 100))
                for name in blocks:
                    # What a run continues with is never believed to lie higher up than what is before it.
                    if name >= first and content[name] < target:
                        content[name] = target
                    if content[name] == GONE:
                        del content[name]
        for path in PATHS:
            for level, tier in enumerate(TIERS):
                assert index.matches_within(path, tier) == [leading(one, path, level) for one in plain]
            assert index.matches(path) == index.matches_within(path, "storage")


def leading(content: dict[tuple[int, int], int], path: Path, level: int) -> int:
    count = 0
    for name in named(path):
        if content.get(name, GONE) > level:
            break
        count += 1
    return count


def test_what_goes_beyond_the_capacity_leaves_no_trace() -> None:
    index = PrefixIndex(1, 5, 1)
    index.touch(0, PATHS[0])
    index.move(0, 2, 4, 0, 1)
    assert index.matches_within(PATHS[0], "gpu") == [4]
    index.touch(0, PATHS[3])
    index.touch(0, PATHS[0])
    assert index.matches_within(PATHS[0], "gpu") == index.matches(PATHS[0]) == [5]


def test_a_tier_must_be_known() -> None:
    with pytest.raises(HeadwayError, match="no tier 'cpus'"):
        PrefixIndex(1, 5, 1).matches_within(PATHS[0], "cpus")


def alone_has(index: PrefixIndex, instance: int, block: tuple[int, int]) -> bool:
    return any(key == block[0] and block[1] < end for key, _, end in index.eviction_order(instance))


CHANGES = st.lists(
    st.tuples(st.booleans(), st.sampled_from((1, 2, 3, 5, 6)), st.integers(0, 8), st.integers(1, 9)), max_size=12
)


@given(ACTIONS, CHANGES)
def test_a_shared_store_goes_on_where_an_instance_leaves_off(actions, changes) -> None:
    """It is believed to have no more than it has, and leaves the instances what they have alone."""
    alone, index, apart = PrefixIndex(2, 1000, 1), PrefixIndex(2, 1000, 1), PrefixIndex(2, 1000, 1)
    store, _ = index.share([0], "cpu"), apart.share([0, 1], "cpu")
    for sent, instance, path, key, block, (source, target) in actions:
        for one in (alone, index, apart):
            if sent:
                one.touch(instance, path)
            else:
                one.move(instance, key, block, source, target)
    there: set[tuple[int, int]] = set()
    for came, key, start, length in changes:
        blocks = [(key, block) for block in range(start, start + length)]
        (there.update if came else there.difference_update)(blocks)
        (store.put if came else store.lose)(key, start, start + length)
    for path in PATHS:
        for tier in TIERS:
            own, found = alone.matches_within(path, tier), index.matches_within(path, tier)
            assert apart.matches_within(path, tier) == own
            assert found[1] == own[1] and found[0] >= own[0]
            assert tier != "gpu" or found == own
            held = set(named(path)[: own[0]]) | there | {block for block in named(path) if alone_has(alone, 0, block)}
            assert held.issuperset(named(path)[: found[0]])
        assert index.matches(path) == index.matches_within(path, "storage")


def test_a_shared_store_is_one_stretch_of_a_run_that_comes_and_goes_from_the_tail_on() -> None:
    index = PrefixIndex(2, 1000, 1)
    store = index.share([0, 1], "cpu")
    path = PATHS[0]
    index.touch(0, PATHS[2])  # its first three blocks
    store.put(2, 4, 9)
    assert index.matches(path) == [3, 0]
    store.put(1, 3, 4)
    assert index.matches(path) == [9, 0]
    assert index.matches_within(path, "gpu") == [3, 0]
    store.put(1, 0, 3)
    assert index.matches(path) == [9, 9]
    store.lose(2, 7, 9)
    assert index.matches(path) == [7, 7]
    store.lose(1, 1, 2)
    assert index.matches(path) == [3, 1]  # what lies behind a gap is not known
    store.put(1, 3, 4)  # nor what comes apart
    assert index.matches(path) == [3, 1]
    store.lose(1, 0, 4)
    assert index.matches(path) == [3, 0]
