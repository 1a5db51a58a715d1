"""How long the indexes believe what they believe, against plain models of it."""

from __future__ import annotations

from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_engine import OWN, hasher, path_of, root, stored_event

from drawing import draws
from headway.gateway.signals.beliefs import MOST_UNCONFIRMED, Beliefs
from headway.gateway.signals.kv_batches import Removed, Stored
from headway.gateway.signals.kv_ledger import EXACT, GUESSED, PARTIAL, Ledger
from headway.policies.prefix_index import PrefixIndex
from headway.policies.prefix_tiers import TIERS
from headway.types import Path


def made(ttl=100, speculative=10, size=OWN, capacity=1000, instances=1):
    index = PrefixIndex(instances, capacity, size)
    return index, Beliefs(instances, [index], ttl, speculative)


def sent(index, beliefs, now, path, instance=0):
    index.touch(instance, path)
    beliefs.touch(now, instance, path)


def runs_of(path):
    """A prompt's own blocks, as an engine's ledger tells them."""
    keys = (root("m"), *path.keys)
    return [(keys[at], keys[at + 1], at * OWN, (at + 1) * OWN) for at in range(len(path.keys))]


# --- without events ----------------------------------------------------------------------------------------------


class Plain:
    """Per block: the capacity most recently sent, and none that was last sent `ttl` ago."""

    def __init__(self, capacity, size, ttl):
        self.capacity, self.size, self.ttl = capacity, size, ttl
        self.held = OrderedDict()

    def blocks(self, path):
        runs, at = path.blocks(self.size), 0
        found = []
        for key, end in runs:
            found += [(key, number) for number in range(at, end)]
            at = end
        return found

    def touch(self, now, path):
        for block in reversed(self.blocks(path)):
            self.held[block] = now
            self.held.move_to_end(block)
            if len(self.held) > self.capacity:
                self.held.popitem(last=False)

    def expire(self, now):
        self.held = OrderedDict((block, at) for block, at in self.held.items() if at > now - self.ttl)

    def match(self, path):
        matched = 0
        for block in self.blocks(path):
            if block not in self.held:
                break
            matched += 1
        return matched


texts = st.lists(st.integers(0, 1), min_size=0, max_size=26)


@draws(60)
@given(
    st.lists(st.tuples(st.integers(0, 40), texts | st.none()), min_size=1, max_size=40),
    st.sampled_from([2, 4, 6, 8]),
    st.integers(1, 12),
)
def test_without_events_a_block_is_believed_for_a_while_after_it_was_last_sent(history, size, capacity):
    index, beliefs = made(ttl=60, size=size, capacity=capacity)
    plain = Plain(capacity, size, 60)
    paths, now = [], 0
    for later, text in history:
        now += later
        if text is None:
            assert not beliefs.expire(now)
            plain.expire(now)
        else:
            paths.append(path := path_of(text))
            sent(index, beliefs, now, path)
            plain.touch(now, path)
        assert index.size(0) == len(plain.held)
        for path in paths:
            assert index.matches(path) == [plain.match(path)]
    assert len(beliefs._dates[0][0].ends) <= capacity
    assert not index._holes


def test_what_is_sent_again_in_time_stays_and_its_tail_goes():
    index, beliefs = made(ttl=100)
    long, short = path_of(range(12)), path_of(range(4))
    sent(index, beliefs, 0, long)
    sent(index, beliefs, 60, short)
    assert not beliefs.expire(99) and index.matches(long) == [3]
    assert not beliefs.expire(100) and index.matches(long) == [1]
    assert not beliefs.expire(160) and index.matches(long) == [0]
    assert index.size(0) == 0


def test_what_is_left_of_a_prompt_keeps_its_date_when_an_older_one_was_continued():
    index, beliefs = made(ttl=100, capacity=6)
    other = path_of([9] * 12)
    sent(index, beliefs, 0, path_of(range(4)))
    sent(index, beliefs, 50, other)
    sent(index, beliefs, 60, path_of(range(8)))
    sent(index, beliefs, 70, path_of([7] * 8))  # for which the end of the second has to go
    assert not beliefs.expire(149) and index.matches(other) == [2]
    assert not beliefs.expire(150) and index.matches(other) == [0]
    assert index.size(0) == 4


def test_much_that_is_too_old_goes_in_slices():
    index, beliefs = made(ttl=10)
    for number in range(20):
        sent(index, beliefs, 0, path_of([number] * 8))
    calls = 1
    while beliefs.expire(10, most=8):
        calls += 1
    assert calls == 6 and index.size(0) == 0  # the last finds nothing more


def test_instances_age_apart():
    index, beliefs = made(ttl=10, instances=2)
    path = path_of(range(8))
    sent(index, beliefs, 0, path, 0)
    sent(index, beliefs, 5, path, 1)
    beliefs.expire(12)
    assert index.matches(path) == [0, 2]


# --- with events ---------------------------------------------------------------------------------------------------


def test_what_an_engine_does_not_confirm_goes_soon_and_what_it_does_stays():
    index, beliefs = made(ttl=100, speculative=10)
    beliefs.cleared(0, 0, EXACT)
    path = path_of(range(12))
    sent(index, beliefs, 0, path)
    assert index.matches(path) == [3]
    beliefs.stored(1, 0, runs_of(path)[:2])
    beliefs.expire(9)
    assert index.matches(path) == [3]
    beliefs.expire(10)
    assert index.matches(path) == [2]
    beliefs.expire(10_000)
    assert index.matches(path) == [2]
    beliefs.removed(10_001, 0, [path.keys[1]])
    assert index.matches(path) == [1]


def test_of_an_engine_that_is_partly_known_what_was_sent_is_believed_as_long_as_without_events():
    index, beliefs = made(ttl=100, speculative=10)
    beliefs.cleared(0, 0, PARTIAL)
    path = path_of(range(12))
    sent(index, beliefs, 0, path)
    beliefs.expire(99)
    assert index.matches(path) == [3]
    beliefs.expire(100)
    assert index.matches(path) == [0]


def test_what_was_sent_as_the_continuation_of_what_goes_goes_with_it():
    index, beliefs = made()
    beliefs.cleared(0, 0, EXACT)
    path, other = path_of(range(16)), path_of([*range(8), 77, 78, 79, 80])
    beliefs.stored(0, 0, runs_of(path)[:2])
    sent(index, beliefs, 1, path)
    sent(index, beliefs, 2, other)
    assert index.matches(path) == [4] and index.matches(other) == [3]
    beliefs.removed(3, 0, [path.keys[1]])
    assert index.matches(path) == [1] and index.matches(other) == [1]
    assert index.size(0) == 1 and not beliefs.publishers[0].pending and not beliefs.publishers[0].watched
    assert not index._holes


def test_what_an_engine_tells_of_others_traffic_is_believed_at_once():
    index, beliefs = made()
    path = path_of(range(12))
    beliefs.cleared(0, 0, EXACT)
    beliefs.stored(0, 0, runs_of(path))
    assert index.matches(path) == [3]


def test_what_is_told_of_an_engine_that_was_not_said_to_tell_is_passed_over():
    index, beliefs = made()
    beliefs.stored(0, 0, runs_of(path_of(range(12))))
    beliefs.removed(0, 0, [1])
    assert index.size(0) == 0 and beliefs.trust(0) == GUESSED


def test_a_told_block_without_room_is_not_believed_and_nothing_behind_it():
    index, beliefs = made(capacity=2)
    beliefs.cleared(0, 0, EXACT)
    path = path_of(range(16))
    beliefs.stored(0, 0, runs_of(path))
    assert index.matches(path) == [2]
    beliefs.removed(0, 0, [path.keys[3], path.keys[2]])
    assert index.matches(path) == [2]


def test_nothing_is_believed_behind_what_the_index_had_no_room_for():
    index, beliefs = made(capacity=3, speculative=10)
    beliefs.cleared(0, 0, EXACT)
    path, other = path_of(range(12)), path_of([9] * 12)
    beliefs.stored(0, 0, runs_of(path)[:2])
    sent(index, beliefs, 1, other)  # pushes both out
    beliefs.expire(11)
    beliefs.stored(12, 0, runs_of(path)[2:])
    assert index.size(0) == 0 and index.matches(path) == [0]


def test_what_a_later_prompt_was_sent_with_too_is_believed_as_long_as_that():
    index, beliefs = made(speculative=10)
    beliefs.cleared(0, 0, EXACT)
    first, second = path_of(range(12)), path_of([*range(8), 50, 51, 52, 53])
    sent(index, beliefs, 0, first)
    sent(index, beliefs, 5, second)
    beliefs.expire(10)
    assert index.matches(first) == [2] and index.matches(second) == [3]
    beliefs.expire(15)
    assert index.size(0) == 0


def test_an_index_made_later_learns_what_was_told():
    index, beliefs = made()
    path = path_of(range(12))
    beliefs.cleared(0, 0, EXACT)
    beliefs.stored(0, 0, runs_of(path))
    other = PrefixIndex(1, 100, 6)
    beliefs.bind([other, index])
    assert other.matches(path) == [2] and index.matches(path) == [3]
    beliefs.removed(0, 0, [path.keys[2]])
    assert other.matches(path) == [1] and index.matches(path) == [2]


def test_prompts_that_nobody_confirms_are_given_up_beyond_a_bound():
    index, beliefs = made(capacity=10**6)
    beliefs.cleared(0, 0, EXACT)
    length = 4096
    for number in range(MOST_UNCONFIRMED // length + 5):
        keys = tuple(range(number * length, (number + 1) * length))
        path = Path(keys, tuple(range(OWN, OWN * (length + 1), OWN)))
        sent(index, beliefs, 0, path)
    assert (
        beliefs.publishers[0].unconfirmed <= MOST_UNCONFIRMED and len(beliefs.publishers[0].watched) <= MOST_UNCONFIRMED
    )
    assert index.size(0) <= MOST_UNCONFIRMED


# --- everything at once ----------------------------------------------------------------------------------------------


class Adapter:
    """A ledger's sink that tells the beliefs."""

    def __init__(self, beliefs):
        self.beliefs, self.now = beliefs, 0

    def stored(self, runs):
        self.beliefs.stored(self.now, 0, [list(run) for run in runs])  # as a journal gives them back

    def moved(self, keys, level):
        self.beliefs.moved(self.now, 0, keys, level)

    def removed(self, keys):
        self.beliefs.removed(self.now, 0, keys)

    def cleared(self, trust):
        self.beliefs.cleared(self.now, 0, trust)


class Model:
    """The engine as it is, block by block."""

    def __init__(self, engine_size, size):
        self.engine_size, self.size = engine_size, size
        self.held = set()  # its blocks, by all their tokens

    def match(self, text):
        """Leading blocks of the index's size, of whole own blocks of what the engine can match. A prompt that leaves
        off inside one of the engine's blocks counts as far as its own blocks go."""
        most = 0
        for block in self.held:
            whole = all(block[:end] in self.held for end in range(self.engine_size, len(block), self.engine_size))
            own = 0
            while whole and own + OWN <= min(len(block), len(text)) and block[: own + OWN] == tuple(text[: own + OWN]):
                own += OWN
            most = max(most, own)
        return most // self.size


operations = st.one_of(
    st.tuples(st.just("store"), texts, st.integers(0, 3)),
    st.tuples(st.just("remove"), texts, st.integers(0, 12)),
    st.tuples(st.just("clear"), st.sampled_from([EXACT, PARTIAL]), st.none()),
    st.tuples(st.just("wait"), st.integers(1, 20), st.none()),
)


@draws(60)
@given(
    st.lists(operations, min_size=1, max_size=40),
    st.sampled_from([2, 4, 8, 6]),
    st.sampled_from([4, 2, 8, 12, 6]),
)
def test_after_anything_that_is_told_the_answer_is_that_of_the_engine_itself(history, engine_size, size):
    index, beliefs = made(size=size)
    adapter = Adapter(beliefs)
    ledger = Ledger(adapter, hasher(), "m")
    ledger.clear(EXACT)
    model = Model(engine_size, size)
    texts_seen = []
    for what, text, number in history:
        if what == "store":
            texts_seen.append(tuple(text))
            blocks = [tuple(text[:end]) for end in range(engine_size, len(text) + 1, engine_size)][number:]
            # an engine stores what it lacks; of a parent that was never told nothing can be said
            for block in blocks:
                parent = block[:-engine_size]
                if block not in model.held and (not parent or parent in model.held):
                    ledger.apply(stored_event([block], engine_size))
                    model.held.add(block)
        elif what == "remove":
            block = tuple(text[: number * engine_size])
            if block in model.held:
                ledger.apply(stored_event([block], engine_size, removed=True))
                model.held.discard(block)
        elif what == "clear":
            ledger.clear(text)
            model.held.clear()
        for one in texts_seen:
            assert index.matches(path_of(one)) == [model.match(one)]
    assert not index._holes


@draws(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["store", "offload", "remove"]), texts, st.integers(1, 12), st.sampled_from([0, 1, 2])
        ),
        min_size=1,
        max_size=40,
    ),
    st.sampled_from([2, 4, 8, 6]),
    st.sampled_from([4, 2, 8, 12]),
)
def test_in_every_tier_the_answer_is_that_of_the_engine_itself(history, engine_size, size):
    index, beliefs = made(size=size)
    ledger = Ledger(Adapter(beliefs), hasher(), "m")
    ledger.clear(EXACT)
    media, copies, texts_seen = ("GPU", "CPU", "STORAGE"), {}, []
    for what, text, number, tier in history:
        block = tuple(text[: number * engine_size])
        if what == "store":
            texts_seen.append(tuple(text))
            for end in range(engine_size, len(text) + 1, engine_size):
                block = tuple(text[:end])
                held = copies.setdefault(block, set())
                if tier not in held and (end == engine_size or copies.get(block[:-engine_size])):
                    event = stored_event([block], engine_size)
                    ledger.apply(Stored(event.hashes, event.parent, event.tokens, event.size, medium=media[tier]))
                    held.add(tier)
        elif what == "offload" and tier and copies.get(block) and tier not in copies[block]:
            ledger.apply(Stored(stored_event([block], engine_size).hashes, None, [], 0, medium=media[tier]))
            copies[block].add(tier)
        elif what == "remove" and tier in copies.get(block, ()):
            names = stored_event([block], engine_size, removed=True).hashes
            ledger.apply(Removed(names, media[tier]))
            copies[block].discard(tier)
        for level, name in enumerate(TIERS):
            model = Model(engine_size, size)
            model.held = {block for block, held in copies.items() if held and min(held) <= level}
            for one in texts_seen:
                assert index.matches_within(path_of(one), name) == [model.match(one)]
    assert not ledger.counts.orphans and not ledger.counts.strangers


def test_blocks_in_slower_tiers_make_room_in_a_bounded_index():
    index, beliefs = made(capacity=2)
    beliefs.cleared(0, 0, EXACT)
    first, second = path_of([0] * 8), path_of([1] * 8)
    beliefs.stored(1, 0, runs_of(first))
    beliefs.moved(2, 0, list(first.keys), 1)
    beliefs.stored(3, 0, runs_of(second))
    assert (index.matches_within(second, "gpu"), index.size(0)) == ([2], 2)
    beliefs.removed(4, 0, list(reversed(first.keys)))
    assert (index.matches_within(second, "gpu"), index.size(0)) == ([2], 2)


def test_a_sent_prompt_is_believed_on_the_gpu_until_the_next_report():
    index, beliefs = made()
    beliefs.cleared(0, 0, EXACT)
    path = path_of([0] * 8)
    beliefs.stored(1, 0, runs_of(path))
    beliefs.moved(2, 0, list(path.keys), 2)
    assert [index.matches_within(path, name) for name in TIERS] == [[0], [0], [2]]
    sent(index, beliefs, 3, path)
    assert index.matches_within(path, "gpu") == [2]
    beliefs.moved(4, 0, [path.keys[1]], 1)
    assert [index.matches_within(path, name) for name in TIERS] == [[1], [2], [2]]
    late = PrefixIndex(1, 1000, OWN)
    beliefs.bind([late])
    assert [late.matches_within(path, name) for name in TIERS] == [[0], [0], [2]]


@draws(60)
@given(
    st.lists(
        operations | st.tuples(st.just("send"), texts, st.none()),
        min_size=1,
        max_size=50,
    ),
    st.sampled_from([2, 4, 8, 6]),
    st.sampled_from([4, 2, 8, 12, 6]),
    st.sampled_from([3, 7, 1000]),
)
def test_whatever_is_sent_and_told_the_belief_is_closed_and_no_less_than_what_was_told(
    history, engine_size, size, capacity
):
    index, beliefs = made(size=size, capacity=capacity)
    adapter = Adapter(beliefs)
    ledger = Ledger(adapter, hasher(), "m")
    ledger.clear(EXACT)
    model = Model(engine_size, size)
    probes = []
    for what, text, number in history:
        if what == "send":
            sent(index, beliefs, adapter.now, path_of(text))
            probes.append(tuple(text))
        elif what == "store":
            probes.append(tuple(text))
            for end in range(engine_size, len(text) + 1, engine_size)[number:]:
                block = tuple(text[:end])
                if block[:-engine_size] in model.held or end == engine_size:
                    ledger.apply(stored_event([block], engine_size))
                    if block in model.held:  # stored by two requests, removed by one
                        ledger.apply(stored_event([block], engine_size, removed=True))
                    model.held.add(block)
        elif what == "remove":
            block = tuple(text[: number * engine_size])
            if block in model.held:
                ledger.apply(stored_event([block], engine_size, removed=True))
                model.held.discard(block)
        elif what == "clear":
            ledger.clear(text)
            model.held.clear()
        else:
            adapter.now += text
            beliefs.expire(adapter.now)
        held = {key for key, _, _ in index.eviction_order(0)}
        for probe in probes:
            path = path_of(probe)
            runs = path.blocks(size)
            flags = [key in held for key, _ in runs]
            assert flags == sorted(flags, reverse=True)  # closed under prefixes
            matched = index.matches(path)[0]
            if capacity == 1000:
                assert matched >= model.match(probe)
        assert index.size(0) <= capacity
    adapter.now += 1000
    beliefs.expire(adapter.now)
    publisher = beliefs.publishers[0]
    assert not publisher.pending and not publisher.watched and not publisher.unconfirmed
    assert not index._holes
    if capacity == 1000:
        for probe in probes:
            assert index.matches(path_of(probe)) == [model.match(probe)]


@pytest.mark.parametrize("size", [4, 8])
def test_the_same_inputs_give_the_same_beliefs(size):
    def told():
        index, beliefs = made(size=size, capacity=20)
        beliefs.cleared(0, 0, PARTIAL)
        for number in range(60):
            path = path_of([number % 7, *range(number % 11 * 2)])
            sent(index, beliefs, number, path)
            if number % 3 == 0:
                beliefs.stored(number, 0, runs_of(path))
            if number % 5 == 4 and path.keys and path.keys[-1] in beliefs.publishers[0].blocks:
                beliefs.removed(number, 0, [path.keys[-1]])
            beliefs.expire(number)
        return list(index.eviction_order(0))

    assert told() == told()
