"""The KV events of an emulated engine as the gateway reads them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from emulated import Emulated

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed")

MODEL = "llama-3.1-8b"
END = -1


class Heard:
    """A subscriber, as in the tests of the real engine."""

    def __init__(self, one: Emulated, replica: int = 0) -> None:
        publisher = one.host.replicas[replica].publisher
        assert publisher is not None
        self.one, self.publisher, self.replica = one, publisher, replica
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.linger = 0
        self.socket.connect(publisher.endpoint)
        self.socket.subscribe(b"")
        self.batches: list[tuple[bytes, int, Any]] = []

    def take(self, least: int, seconds: float = 120.0) -> list[dict[str, Any]]:
        """Wait for a number of batches, and return all events so far."""
        end = time.monotonic() + seconds
        while len(self.batches) < least:
            assert time.monotonic() < end, f"{len(self.batches)} of {least} batches"
            if self.socket.poll(50):
                topic, number, payload = self.socket.recv_multipart()
                self.batches.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))
        return [event for _, _, (_, events, _) in self.batches for event in events]

    def everything(self) -> list[dict[str, Any]]:
        """Wait for every published batch, and return all events."""
        sent = self.one.do(lambda: self.publisher.number)
        while not self.batches or self.batches[-1][1] < sent - 1:
            self.take(len(self.batches) + 1)
        return self.take(0)

    def replayed(self, first: int) -> list[tuple[bytes, int, Any]]:
        with zmq.Context.instance().socket(zmq.DEALER) as asking:
            asking.linger, asking.rcvtimeo = 0, 20_000
            asking.connect(self.publisher.replay)
            asking.send_multipart([b"", first.to_bytes(8, "big")])
            result = []
            while True:
                _, topic, number, payload = asking.recv_multipart()
                if int.from_bytes(number, "big", signed=True) == END:
                    return result
                result.append((topic, int.from_bytes(number, "big"), msgspec.msgpack.decode(payload)))


@pytest.fixture
def telling() -> Iterator[Callable[..., tuple[Emulated, Heard]]]:
    made: list[tuple[Emulated, Heard]] = []

    def start(**cluster: Any) -> tuple[Emulated, Heard]:
        one = Emulated(cluster, speed=20.0, events="tcp://127.0.0.1", events_port=0)
        heard = Heard(one)
        warm_up(one, heard)
        made.append((one, heard))
        return made[-1]

    yield start
    for one, heard in made:
        heard.socket.close()
        one.stop()


def warm_up(one: Emulated, heard: Heard) -> None:
    """Publish until the subscriber receives events; it does not ask for earlier ones."""
    for number in range(100):
        ask(one, [number + 1] * 16, replica=heard.replica)
        if heard.socket.poll(100):
            break
    one.post("/reset_prefix_cache", {}, heard.replica)
    while heard.take(len(heard.batches) + 1)[-1]["type"] != "AllBlocksCleared":
        pass
    heard.batches.clear()


def ask(one: Emulated, ids: list[int], tokens: int = 1, replica: int = 0, **more: Any) -> Any:
    return one.post("/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": tokens, **more}, replica)


def test_blocks_are_told_with_their_tokens_and_their_parent(telling: Any) -> None:
    one, heard = telling()
    ids = list(range(1000, 1100))
    ask(one, ids)
    (event,) = heard.take(1)
    assert event["type"] == "BlockStored" and event["block_size"] == 16 and event["medium"] == "GPU"
    assert event["token_ids"] == ids[:96] and event["parent_block_hash"] is None and len(event["block_hashes"]) == 6
    ask(one, ids + list(range(50)))
    more = heard.take(2)[1]
    assert more["parent_block_hash"] == event["block_hashes"][-1]
    assert more["token_ids"] == (ids + list(range(50)))[96:144]


def test_what_was_generated_is_told_when_the_request_ends(telling: Any) -> None:
    one, heard = telling()
    ids = list(range(1000, 1040))
    answer = ask(one, ids, 41)
    first, second = heard.take(2)
    assert second["parent_block_hash"] == first["block_hashes"][-1] and len(second["block_hashes"]) == 3
    words = [int.from_bytes(f"{word} ".encode(), "little") for word in answer["choices"][0]["text"].split()]
    assert first["token_ids"] + second["token_ids"] == (ids + words)[:80]


def test_batches_are_numbered_and_can_be_asked_for_again(telling: Any) -> None:
    one, heard = telling()
    for start in range(3):
        ask(one, [start + 7] * 32)
    heard.take(3)
    numbers = [number for _, number, _ in heard.batches]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert {topic for topic, _, _ in heard.batches} == {b"kv@instance-0"}
    assert heard.replayed(numbers[0] + 1) == heard.batches[1:]


def test_blocks_that_make_room_are_told(telling: Any) -> None:
    one, heard = telling(kv={"gpu_blocks": 40})
    for start in range(8):
        ask(one, [start + 7] * 160)
    events = heard.everything()
    stored = [key for event in events if event["type"] == "BlockStored" for key in event["block_hashes"]]
    removed = [key for event in events if event["type"] == "BlockRemoved" for key in event["block_hashes"]]
    assert len(set(stored)) == len(stored) == 80 and set(removed) <= set(stored) and removed
    held = one.do(lambda: one.host.room.instances[0].cache.idle)
    assert held == len(stored) - len(removed)


def test_the_gateways_ledger_holds_what_the_engine_has(telling: Any) -> None:
    from kv_engine import PlainSink, decode, hasher, path_of

    from headway.gateway.signals.kv_batches import Counts
    from headway.gateway.signals.kv_ledger import Ledger

    one, heard = telling(kv={"gpu_blocks": 60})
    counts, sink = Counts(), PlainSink()
    ledger = Ledger(sink, hasher(16), "m", counts=counts)
    prompts = [[number % 4] * 64 + [number + 9] * 64 for number in range(12)]
    for prompt in prompts:
        ask(one, prompt, 20)
    heard.everything()
    for _, _, batch in heard.batches:
        for event in decode(msgspec.msgpack.encode(batch), counts):
            ledger.apply(event)
    assert (counts.orphans, counts.strangers, counts.conflicts, counts.malformed) == (0, 0, 0, 0)
    for prompt in (prompts[-1], prompts[0]):
        known = 0
        for key in path_of(prompt, "m", 16).keys:
            known += key in sink.runs
        answer = ask(one, prompt)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == min(known, 7) * 16


def test_paths_have_tokens_that_are_made_up_and_always_the_same(telling: Any) -> None:
    one, heard = telling()
    for tail in (1, 2):
        truth = {"prompt_tokens": 96, "path": {"keys": [77, 100 + tail], "ends": [64, 96]}}
        ask(one, [1], headway=truth)
    first, second = heard.take(2)
    assert len(first["block_hashes"]) == 6 and len(second["block_hashes"]) == 2
    assert second["parent_block_hash"] == first["block_hashes"][3]
    assert first["token_ids"][64:] != second["token_ids"]
