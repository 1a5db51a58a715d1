"""Reuse on runs of ids, against a cache that goes block by block, written from the rule alone."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain, cycle, repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.workload import reuse
from headway.workload.reuse import Run, hits

Prompts = list[list[Run]]


def block_by_block(prompts: Prompts, instances: int, capacity: int | None) -> tuple[int, list[int]]:
    """All hit blocks, and those of each prompt."""
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(instances)]
    each = []
    for number, runs in enumerate(prompts):
        cache = caches[number % instances]
        blocks = [block for first, count in runs for block in range(first, first + count)]
        hit = 0
        for block in blocks:
            if block not in cache:
                break
            hit += 1
        each.append(hit)
        for block in blocks:
            cache.pop(block, None)
            cache[block] = None
            if capacity is not None and len(cache) > capacity:
                cache.popitem(last=False)
    return sum(each), each


# Any runs at all: overlapping, repeated within a prompt, not saying anything of what comes before them.
anything = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 12)), max_size=4)
# Conversations: prompts that begin alike, part somewhere and go on with ids of their own.
conversations = st.lists(
    st.tuples(st.integers(0, 3), st.integers(1, 20), st.integers(0, 9)).map(
        lambda drawn: [(100 * drawn[0], drawn[1]), (100 * drawn[0] + 40 + drawn[2], 5)]
    ),
    min_size=1,
    max_size=60,
)


@pytest.mark.parametrize("short", [0, 1024])
@pytest.mark.parametrize("bits", [2, 14])
@given(
    prompts=st.lists(anything, min_size=1, max_size=40) | conversations,
    capacities=st.lists(st.none() | st.integers(1, 60), min_size=1, max_size=4),
    instances=st.integers(1, 4),
)
def test_runs_hit_exactly_what_blocks_would(
    bits: int, short: int, prompts: Prompts, capacities: list[int | None], instances: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:  # lists of few ids, and logs written anew early
        patch.setattr(reuse, "BUCKET_BITS", bits)
        patch.setattr(reuse, "SHORT", short)
        patch.setattr(reuse, "SPARSE", 1 if short == 0 else 4)
        totals = hits(zip(prompts, repeat(10**9)), cycle(range(instances)), capacities, 16)
    assert totals.blocks == [block_by_block(prompts, instances, capacity)[0] for capacity in capacities]
    assert totals.referenced == sum(count for _, count in chain.from_iterable(prompts))
    blocks = [
        {block for runs in prompts[which::instances] for first, count in runs for block in range(first, first + count)}
        for which in range(instances)
    ]
    assert totals.distinct == sum(map(len, blocks))


@given(prompts=conversations)
def test_tokens_and_requests_are_those_of_the_largest_cache(prompts: Prompts) -> None:
    tokens = [16 * sum(count for _, count in runs) - 7 for runs in prompts]  # the last block is not full
    totals = hits(zip(prompts, tokens, strict=True), repeat(0), [3, None], 16)
    _, each = block_by_block(prompts, 1, None)
    assert totals.requests == sum(1 for hit in each if hit)
    assert totals.tokens == sum(min(16 * hit, length) for hit, length in zip(each, tokens, strict=True))


@pytest.mark.full
def test_long_runs_are_not_walked_block_by_block() -> None:
    prompts = [[(0, 10**9)], [(0, 2 * 10**6)], [(5, 10)], [(10**9 - 5, 5)]] * 3
    totals = hits(zip(prompts[1:], repeat(10**12)), repeat(0), [10**6, None], 16)
    assert totals.referenced == sum(runs[0][1] for runs in prompts[1:])


def test_the_order_of_the_capacities_is_the_callers() -> None:
    prompts: Prompts = [[(0, 4)], [(10, 4)], [(0, 4)]]
    assert hits(zip(prompts, repeat(64)), repeat(0), [None, 4, 8], 16).blocks == [4, 0, 4]
