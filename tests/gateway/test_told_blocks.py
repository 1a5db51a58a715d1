"""What engines tell of their cache: the wire, the ledger of one engine, and the order of its batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_engine import (
    PACK,
    PlainSink,
    batch,
    clearing,
    decode,
    hasher,
    name_of,
    path_of,
    prompt_event,
    removal,
    root,
    stored_event,
)

from drawing import draws
from headway.gateway.signals.kv_batches import LONGEST, Cleared, Counts, Removed, Stored
from headway.gateway.signals.kv_ledger import EXACT, PARTIAL, Ledger
from headway.gateway.signals.kv_stream import HELD_BACK, PART, Stream

# --- the wire --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["map", "row"])
@pytest.mark.parametrize("outer", ["map", "row"])
def test_both_forms_of_events_and_batches_are_read(form, outer):
    counts = Counts()
    events = [prompt_event(range(8), form=form), removal(range(8), form=form), clearing(form)]
    stored, removed, cleared = decode(batch(*events, form=outer), counts)
    assert isinstance(stored, Stored) and isinstance(removed, Removed) and isinstance(cleared, Cleared)
    assert stored.hashes == [name_of(range(4)), name_of(range(8))] and stored.parent is None
    assert stored.tokens == list(range(8)) and stored.size == 4
    assert removed.hashes == [name_of(range(8))]
    assert counts == Counts(events=3)


def test_a_batch_as_vllm_wrote_it_is_read():
    """0.32.0, sha256_cbor, block size 32: the fields in its order, and one that nobody here knows."""
    event = {
        "type": "BlockStored",
        "block_hashes": [2**64 - 5],
        "parent_block_hash": None,
        "token_ids": list(range(32)),
        "block_size": 32,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [None],
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        "kv_cache_spec_sliding_window": None,
        "locality": "local",
    }
    (events,) = decode(PACK([1788.25, [event], 0]), Counts())
    assert events.hashes == [2**64 - 5] and events.size == 32 and events.group == 0


def test_hashes_may_be_bytes_or_negative():
    rows = [["BlockStored", [b"\x01" * 32, -7], b"\x02" * 32, [1, 2], 1, None], ["BlockRemoved", [b"\x01" * 32]]]
    stored, removed = decode(PACK([0.0, rows]), Counts())
    assert stored.hashes == [b"\x01" * 32, -7] and stored.parent == b"\x02" * 32
    assert removed.hashes == [b"\x01" * 32]


def test_kinds_that_nobody_knows_are_passed_over_and_counted():
    counts = Counts()
    events = decode(batch(["BlockMoved", 1], {"type": "BlockPinned", "x": [1]}, clearing()), counts)
    assert [type(event) for event in events] == [Cleared]
    assert counts == Counts(events=1, unknown=2)


@pytest.mark.parametrize(
    "event",
    [
        5,
        None,
        [],
        {},
        ["BlockStored"],
        ["BlockStored", [1], None, [1, 2, 3], 2, None],
        ["BlockStored", [1], None, [-1, 2], 2, None],
        ["BlockStored", [1], None, ["a", "b"], 2, None],
        ["BlockStored", [1], None, [1], 0, None],
        ["BlockStored", [b"x" * 65], None, [1], 1, None],
        {"type": "BlockStored", "block_hashes": 5},
        {"type": "BlockRemoved"},
        {"type": 7},
    ],
)
def test_an_event_that_cannot_be_read_is_counted_and_those_beside_it_are_read(event):
    counts = Counts()
    assert len(decode(batch(event, clearing()), counts)) == 1
    assert counts == Counts(events=1, malformed=1)


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", b"\x93\x01", PACK(5), PACK([1.0]), PACK([1.0, 7]), b"\x91" * 200_000]
)
def test_a_batch_that_cannot_be_read_is_counted(payload):
    counts = Counts()
    assert decode(payload, counts) == [] and counts == Counts(malformed=1)


def test_a_batch_that_is_too_large_is_not_looked_at():
    counts = Counts()
    assert decode(PACK([1.0, [], "x" * LONGEST]), counts) == [] and counts.malformed == 1


@pytest.mark.full
@draws(60)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers(-9, 9) | st.text(max_size=5), st.lists).map(PACK))
def test_no_bytes_make_it_raise(payload):
    sink = PlainSink()
    stream = Stream(Ledger(sink, hasher(), "m"))
    stream.on_batch(0, payload)
    while stream.step():
        pass
    assert stream.counts.batches == 1


# --- the ledger ------------------------------------------------------------------------------------------------------


def ledger(**more):
    sink = PlainSink()
    return sink, Ledger(sink, hasher(), "m", **more)


def events(*given):
    return decode(batch(*given), Counts())


def tell(book, *given):
    for event in events(*given):
        book.apply(event)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 16, 3, 6, 10, 24])
def test_own_keys_follow_from_the_tokens_whatever_the_engines_block_size_is(size):
    sink, book = ledger()
    text = list(range(48))
    tell(book, prompt_event(text[:24], size), prompt_event(text, size, first=24 // size))
    expected = path_of(text[: len(text) // size * size])
    assert list(sink.runs) == list(expected.keys)
    assert [run[2] for run in sink.runs.values()] == list(expected.ends)
    parents = [run[0] for run in sink.runs.values()]
    assert parents == [root("m"), *expected.keys][: len(parents)]


def test_an_own_block_goes_with_the_engines_block_it_ends_in():
    sink, book = ledger()
    path = path_of(range(12))
    tell(book, prompt_event(range(12), 6))
    assert list(sink.runs) == list(path.keys)
    tell(book, removal(range(12)))
    assert list(sink.runs) == list(path.keys[:1])


def test_a_block_that_two_requests_stored_is_gone_when_both_removed_it():
    sink, book = ledger()
    tell(book, prompt_event(range(4)), prompt_event(range(4)), removal(range(4)))
    assert list(sink.runs) == list(path_of(range(4)).keys)
    tell(book, removal(range(4)))
    assert not sink.runs and not book.blocks


def test_blocks_behind_one_that_is_gone_are_out_of_reach_until_it_is_back():
    sink, book = ledger()
    path = path_of(range(16))
    tell(book, prompt_event(range(16)), removal(range(8)))
    assert list(sink.runs) == list(path.keys[:1])
    tell(book, prompt_event(range(8), first=1))
    assert list(sink.runs) == list(path.keys)
    tell(book, *(removal(range(end)) for end in (4, 8, 12, 16)))
    assert not sink.runs and not book.blocks and not book.claims


def test_a_block_whose_parent_nobody_has_heard_of_is_passed_over():
    sink, book = ledger()
    tell(book, prompt_event(range(12), first=1), removal(range(8)))
    assert not sink.runs
    assert book.counts == Counts(orphans=2, strangers=1)


def offload(tokens, medium="CPU", **more):
    """As vLLM's offloading connector publishes it by default: names alone."""
    return {
        **prompt_event(tokens, **more),
        "medium": medium,
        "token_ids": [],
        "block_size": 0,
        "parent_block_hash": None,
    }


def elsewhere(tokens, medium="CPU"):
    return {**removal(tokens), "medium": medium}


@pytest.mark.parametrize("media", [("CPU", "STORAGE"), ("CPU_PINNED", "DISK"), ("cpu", "EXTERNAL")])
def test_a_block_is_as_near_as_its_fastest_copy_and_the_blocks_before_it(media):
    cpu, storage = media
    sink, book = ledger()
    first, second = path_of(range(8)).keys

    def levels():
        return sink.levels.get(first), sink.levels.get(second)

    tell(book, prompt_event(range(8)), offload(range(8), cpu), offload(range(4), storage))
    assert levels() == (0, 0)
    tell(book, removal(range(4)))
    assert levels() == (1, 1)  # the second is on the GPU, but a prompt needs the first too
    tell(book, elsewhere(range(4), cpu))
    assert levels() == (2, 2)
    tell(book, prompt_event(range(4)))
    assert levels() == (0, 0)
    tell(book, removal(range(8)), removal(range(4)))
    assert levels() == (2, 2)
    tell(book, elsewhere(range(4), storage))
    assert not sink.runs
    tell(book, prompt_event(range(4)))
    assert levels() == (0, 1)
    tell(book, removal(range(4)), elsewhere(range(8), cpu))
    assert not sink.runs and not book.blocks and not book.claims and book.counts == Counts()


def test_events_about_slower_tiers_may_have_tokens_and_may_name_unknown_blocks():
    sink, book = ledger()
    tell(book, {**prompt_event(range(8)), "medium": "CPU"})
    assert list(sink.levels.values()) == [1, 1]
    tell(book, offload(range(100, 104)), elsewhere(range(100, 104)), removal(range(8)), offload(range(8), "TAPE"))
    assert list(sink.levels.values()) == [1, 1]
    assert book.counts == Counts(orphans=1, strangers=2, elsewhere=1)


def test_blocks_of_an_adapter_have_its_root_as_requests_name_it_as_their_model():
    sink, book = ledger()
    tell(book, prompt_event(range(4), lora_id=3, lora_name="ad", extra_keys=[["ad"]]))
    assert list(sink.runs) == list(path_of(range(4), "ad").keys)
    tell(book, prompt_event(range(8), 8, lora_id=3))  # older: a number alone
    assert book.counts == Counts(adapters=1)


def test_blocks_that_depend_on_more_than_tokens_are_not_believed_nor_what_follows_them():
    sink, book = ledger()
    tell(book, prompt_event(range(12), extra_keys=[None, ["image"], ["image"]]))
    assert list(sink.runs) == list(path_of(range(4)).keys)
    tell(book, prompt_event(range(12), first=2))
    assert book.counts == Counts(salted=2, orphans=1)


def test_of_several_groups_of_layers_one_that_keeps_whole_prompts_is_followed():
    sink, book = ledger()
    windowed = {"group_idx": 0, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128}
    tell(book, prompt_event(range(8), **windowed), prompt_event(range(8), group_idx=1))
    assert len(sink.runs) == 2
    tell(book, {**removal(range(8)), "group_idx": 0})
    assert len(sink.runs) == 2
    tell(book, {**removal(range(8)), "group_idx": 1})
    assert len(sink.runs) == 1
    assert book.counts == Counts(groups=2)


@pytest.mark.parametrize("kind", ["mamba", "chunked_local_attention", "sliding_window_mla", "cross_attention"])
def test_layers_that_keep_a_part_of_a_prompt_are_not_followed(kind):
    sink, book = ledger()
    tell(book, prompt_event(range(8), group_idx=0, kv_cache_spec_kind=kind))
    assert not sink.runs
    tell(book, prompt_event(range(8), group_idx=1, kv_cache_spec_kind="mla_attention"))
    assert len(sink.runs) == 2


def test_a_name_that_stands_for_two_blocks_is_taken_for_the_first():
    """As with engines whose hashes do not commit to what is before."""
    sink, book = ledger()
    same = ["BlockStored", [7], None, [1, 2, 3, 4], 4, None]
    tell(book, same, ["BlockStored", [7], 7, [1, 2, 3, 4], 4, None])
    assert list(sink.runs) == list(path_of([1, 2, 3, 4]).keys)
    assert book.counts == Counts(conflicts=1)


def test_what_is_kept_of_an_engine_is_bounded():
    sink, book = ledger(most=10)
    for number in range(50):
        tell(book, prompt_event([number] * 8))
    assert len(book.blocks) == 10 and len(sink.runs) == 10
    assert book.counts.overflow == 90
    tell(book, *(removal([number] * end) for number in range(5) for end in (4, 8)))
    assert not sink.runs
    tell(book, prompt_event([9] * 8))
    assert len(sink.runs) == 2


# --- the order of batches --------------------------------------------------------------------------------------------


class Wire:
    """A stream with everything done at once, and an engine's replay buffer behind it."""

    def __init__(self, replay=None, keep=10**6):
        self.sink, self.book = ledger()
        self.asked, self.dropped, self.keep = [], [], keep
        self.sent = []
        self.stream = Stream(self.book, self.ask if replay else lambda rank, first: False, self.dropped.append)
        self.replay, self.number = replay, 0

    def ask(self, rank, first):
        self.asked.append(first)
        return True

    def send(self, *events, lose=False, payload=None):
        payload = batch(*events) if payload is None else payload
        self.sent.append((self.number, payload))
        if not lose:
            self.stream.on_batch(self.number, payload)
        self.number += 1
        self.done()

    def restart(self):
        self.sent, self.number = [], 0

    def answer(self):
        for number, payload in self.sent[-self.keep :]:
            if number >= self.asked[-1]:
                self.stream.on_replayed(0, number, payload)
        self.stream.end_replay(0)
        self.done()

    def done(self):
        while self.stream.step():
            pass


def keys_of(*texts):
    return sorted({key for text in texts for key in path_of(text).keys})


def test_from_the_first_batch_on_all_is_known():
    wire = Wire()
    wire.send(prompt_event(range(8)))
    assert wire.stream.trust == EXACT and sorted(wire.sink.runs) == keys_of(range(8))


def test_who_joins_late_knows_a_part():
    wire = Wire()
    wire.send(prompt_event(range(8)), lose=True)
    wire.send(prompt_event(range(16), first=2), prompt_event([5] * 4))
    assert wire.stream.trust == PARTIAL and sorted(wire.sink.runs) == keys_of([5] * 4)
    assert wire.stream.counts == Counts(batches=1, events=2, late=1, orphans=2)


def test_who_joins_late_and_can_ask_knows_all():
    wire = Wire(replay=True)
    wire.send(prompt_event(range(8)), lose=True)
    wire.send(prompt_event(range(16), first=2))
    assert wire.asked == [0] and not wire.sink.runs
    wire.answer()
    assert wire.stream.trust == EXACT and sorted(wire.sink.runs) == keys_of(range(16))


def test_a_gap_that_cannot_be_filled_purges_the_engine_until_it_clears():
    wire = Wire()
    wire.send(prompt_event(range(8)))
    wire.send(removal(range(8)), lose=True)
    wire.send(prompt_event([5] * 4))
    assert wire.stream.trust == PARTIAL and sorted(wire.sink.runs) == keys_of([5] * 4)
    assert wire.stream.counts.gaps == 1
    wire.send(clearing())
    assert wire.stream.trust == EXACT and not wire.sink.runs


def test_a_gap_that_is_filled_leaves_no_trace():
    wire = Wire(replay=True)
    wire.send(prompt_event(range(12)))
    wire.send(removal(range(12)), lose=True)
    wire.send(prompt_event([5] * 4))
    assert wire.asked == [1] and sorted(wire.sink.runs) == keys_of(range(12))  # held back
    wire.send(prompt_event([6] * 4))
    wire.answer()
    assert sorted(wire.sink.runs) == keys_of(range(8), [5] * 4, [6] * 4)
    assert wire.stream.trust == EXACT and wire.sink.clears == [EXACT]
    assert wire.stream.counts.gaps == 1 and wire.stream.counts.replayed == 3
    wire.send(removal([5] * 4))  # stored once, however often it came
    assert sorted(wire.sink.runs) == keys_of(range(8), [6] * 4)
    assert wire.asked == [1] and wire.stream.counts.gaps == 1


def test_a_gap_beyond_what_an_engine_keeps_purges():
    wire = Wire(replay=True, keep=2)
    wire.send(prompt_event(range(8)))
    for _ in range(3):
        wire.send(removal(range(8)), lose=True)
    wire.send(prompt_event([5] * 4))
    wire.answer()
    assert wire.stream.trust == PARTIAL and sorted(wire.sink.runs) == keys_of([5] * 4)


def test_an_engine_that_does_not_answer_is_waited_for_within_bounds():
    wire = Wire(replay=True)
    wire.send(prompt_event(range(8)))
    wire.send(lose=True)
    for _ in range(HELD_BACK + 1):
        wire.send(clearing())
    assert wire.dropped == [0] and wire.stream.trust == EXACT  # cleared
    assert wire.sink.clears[:2] == [EXACT, PARTIAL]


def test_an_engine_that_starts_anew_has_nothing():
    wire = Wire()
    wire.send(prompt_event(range(8)))
    wire.send(prompt_event([5] * 4))
    wire.restart()
    wire.send(prompt_event([6] * 4))
    assert wire.stream.trust == EXACT and sorted(wire.sink.runs) == keys_of([6] * 4)
    assert wire.stream.counts.restarts == 1 and wire.stream.counts.gaps == 0


def test_an_engine_that_started_anew_unheard_is_partly_known():
    wire = Wire()
    for _ in range(5):
        wire.send(prompt_event(range(8)))
    wire.restart()
    wire.send(prompt_event([4] * 4), lose=True)
    wire.send(prompt_event([6] * 4))
    assert wire.stream.trust == PARTIAL and sorted(wire.sink.runs) == keys_of([6] * 4)


def test_an_engine_that_starts_anew_while_it_is_asked_is_not_waited_for():
    wire = Wire(replay=True)
    wire.send(prompt_event(range(8)))
    wire.send(lose=True)
    wire.send(prompt_event([5] * 4))
    wire.restart()
    wire.send(prompt_event([6] * 4))
    assert wire.dropped == [0]
    assert wire.stream.trust == EXACT and sorted(wire.sink.runs) == keys_of([6] * 4)


def test_a_long_event_is_taken_a_few_blocks_at_a_time():
    wire = Wire()
    text = list(range(4 * 10 * PART))
    wire.stream.on_batch(0, batch(prompt_event(text)))
    most = 0
    while True:
        before = len(wire.sink.runs)
        if not wire.stream.step():
            break
        most = max(most, len(wire.sink.runs) - before)
    assert sorted(wire.sink.runs) == keys_of(text) and most == PART
    everything = [name_of(text[:end]) for end in range(4, len(text) + 1, 4)]
    wire.number = 1
    wire.send({"type": "BlockRemoved", "block_hashes": everything[::-1]})
    assert not wire.sink.runs and not wire.book.blocks


def test_silence_is_no_loss():
    wire = Wire()
    wire.send(prompt_event(range(8)))
    wire.done()
    assert sorted(wire.sink.runs) == keys_of(range(8))


def test_what_cannot_be_read_may_have_been_a_removal():
    wire = Wire()
    wire.send(prompt_event(range(8)))
    wire.send(["BlockRemoved", "?"])
    assert wire.stream.trust == PARTIAL and not wire.sink.runs
    wire.send(prompt_event(range(8)))
    wire.send(payload=b"\xc1")
    assert not wire.sink.runs and wire.stream.counts.malformed == 2


def test_an_engine_that_is_never_understood_is_not_purged_again_and_again():
    wire = Wire()
    for _ in range(9):
        wire.send(["BlockStored", "of another version"])
    assert wire.sink.clears == [EXACT, PARTIAL]


def test_ranks_have_numbers_of_their_own():
    wire = Wire()
    for number in range(3):
        for rank in (0, 1):
            wire.stream.on_batch(number, batch(prompt_event([10 * rank + number] * 4), rank=rank))
            wire.done()
    assert wire.stream.counts.gaps == 0 and wire.stream.counts.restarts == 0
    assert sorted(wire.sink.runs) == keys_of(*([10 * rank + n] * 4 for rank in (0, 1) for n in range(3)))


class Truth:
    """An engine: a set of blocks that it holds, by all their tokens."""

    def __init__(self):
        self.held = {}

    def reachable(self):
        return keys_of(*(text for text in self.held if all(text[:end] in self.held for end in range(4, len(text), 4))))


texts = st.lists(st.integers(0, 1), min_size=0, max_size=14)
moves = st.tuples(
    st.sampled_from(["store", "remove", "clear", "restart"]), texts, st.sampled_from([False, False, False, True])
)


@draws(60)
@given(st.lists(moves, max_size=40), st.booleans(), st.integers(1, 8), st.integers(0, 3))
def test_whatever_is_lost_nothing_is_believed_that_is_not_there(history, replay, keep, slow):
    wire, truth = Wire(replay=replay, keep=keep), Truth()
    delay, anew = 0, False
    for what, text, lose in history:
        sent = []
        if what == "store":
            for end in range(4, len(text) + 1, 4):
                if tuple(text[:end]) not in truth.held:
                    sent.append(prompt_event(text[:end], first=end // 4 - 1))
                    truth.held[tuple(text[:end])] = None
        elif what == "remove" and tuple(text) in truth.held:
            del truth.held[tuple(text)]
            sent.append(removal(text))
        elif what == "clear":
            truth.held.clear()
            sent.append(clearing())
        elif what == "restart":
            truth.held.clear()
            wire.restart()
            anew = True
        if anew and not lose:
            rank, anew = wire.stream._ranks.get(0), False
            if rank is not None and wire.number > rank.last:
                return  # all was lost up to where the engine was before: nobody can tell
        wire.send(*sent, lose=lose)
        waits = any(rank.waiting is not None for rank in wire.stream._ranks.values())
        delay = delay + 1 if waits else 0
        if waits and delay > slow:
            wire.answer()
            waits = False
        if not lose and not waits:
            assert set(wire.sink.runs) <= set(truth.reachable())
            if wire.stream.trust == EXACT:
                assert sorted(wire.sink.runs) == truth.reachable()


def test_a_stored_event_helper_agrees_with_the_wire():
    (event,) = events(prompt_event(range(8), first=1))
    made = stored_event([tuple(range(8))], 4)
    assert (made.hashes, made.parent, made.tokens) == (event.hashes, event.parent, event.tokens)
