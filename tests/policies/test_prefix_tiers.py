"""Where the router believes blocks to lie, against single blocks with a tier each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.errors import HeadwayError
from headway.policies.prefix_index import GONE, GPU, TIERS, PrefixIndex
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
