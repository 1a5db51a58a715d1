"""A store of KV content against a plain list of blocks, least recently put first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.sim.store import Store

KEYS = (3, 5)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "discard", "overflow"]), st.sampled_from(KEYS), st.integers(0, 12), st.integers(1, 6)
    ),
    max_size=40,
)


@draws(80)
@given(st.integers(1, 15), ACTIONS)
def test_it_is_a_list_of_blocks_in_order_of_recency(blocks: int, actions) -> None:
    store = Store(blocks)
    plain: list[tuple[int, int]] = []
    for action, key, start, length in actions:
        named = [(key, block) for block in range(start, start + length)]
        if action == "overflow":
            over = max(0, len(plain) - blocks)
            gone = [(k, block) for k, first, end, _ in store.overflow() for block in reversed(range(first, end))]
            assert gone == plain[:over]
            del plain[:over]
            store.check()
            continue
        here = [block for block in named if block in plain]
        plain = [block for block in plain if block not in named]
        if action == "put":
            assert store.put([(key, start, start + length, 0.0)], 0) == length - len(here)
            plain += reversed(named)
        else:
            store.discard(key, start, start + length)
        assert store.used == len(plain)
        for k in KEYS:
            for at in range(16):
                end = at
                while (k, end) in plain:
                    end += 1
                assert store.covered_to(k, at) == end
                here = [block for block in range(at, 16) if (k, block) in plain]
                assert store.first_in(k, at, 16) == min(here, default=16)


@draws(80)
@given(st.booleans(), st.integers(1, 40), st.lists(st.tuples(st.integers(0, 12), st.integers(1, 8)), max_size=60))
def test_what_is_touched_is_the_most_recent_and_came_when_it_came(ranked: bool, width: int, touched) -> None:
    """With so many entries of no use that they are looked for again and again."""
    store = Store(1000, ranked)
    plain: list[tuple[int, int]] = []  # block, when it came
    for at, start in enumerate(range(0, 20, 3)):
        store.put([(3, start, min(start + 3, 20), 0.0)], at)
        plain += [(block, at) for block in reversed(range(start, min(start + 3, 20)))]
    for start, length in touched * (1 + width // 10):
        end = min(start + length, 20)
        young = store.touch([(3, start, end, 0.0)], False, 3)
        found = [one for one in plain if start <= one[0] < end]
        assert young == sum(1 for _, at in found if at > 3)
        plain = [one for one in plain if one not in found] + sorted(found, reverse=True)
        assert store.younger([(3, 0, 20, 0.0)], 3) == sum(1 for _, at in plain if at > 3)
        store.check()
    store.blocks = 0
    gone = [block for _, first, end, _ in store.overflow() for block in reversed(range(first, end))]
    assert gone == [block for block, _ in plain]


def test_what_is_touched_in_parts_has_its_turn_although_the_order_is_tidied_amid_them() -> None:
    for entries in range(1, 200):
        store = Store(16 + 1)
        store.put([(3, 8, 16, 0.0)], 1)
        store.put([(3, 0, 8, 0.0)], 2)
        for _ in range(entries):  # which are of no use but for the last
            store.put([(5, 0, 1, 0.0)], 3)
        store.touch([(3, 0, 12, 0.0)], False, 0)
        store.check()
        store.blocks = 0
        assert store.overflow() == [(3, 12, 16, 0.0), (5, 0, 1, 0.0), (3, 0, 12, 0.0)], entries
