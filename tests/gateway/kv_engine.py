"""An engine's side of KV events, for tests: its hashes, its events in both forms, and publishers over ZMQ."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec

from headway.gateway.signals.kv_batches import Counts, Event, Removed, Stored, read_batch, read_event
from headway.hashing import stable
from headway.types import Path

OWN = 4  # tokens of an own block
PACK = msgspec.msgpack.Encoder().encode
END = (-1).to_bytes(8, "big", signed=True)


def decode(payload: bytes, counts: Counts) -> list[Event]:
    """All events of a batch that can be read."""
    batch = read_batch(payload)
    if batch is None:
        counts.malformed += 1
        return []
    return [event for raw in batch.events if (event := read_event(raw, counts)) is not None]


def root(model: str) -> int:
    return stable("root", model)


def chain(parent: int, tokens: Sequence[int]) -> int:
    return stable(parent, *tokens)


def hasher(block_tokens: int = OWN) -> Any:
    return SimpleNamespace(chain=chain, root=root, block_tokens=block_tokens)


def path_of(tokens: Sequence[int], model: str = "m", size: int = OWN) -> Path:
    """As the gateway makes it of a prompt."""
    tokens = list(tokens)
    key, keys = root(model), []
    for at in range(0, len(tokens) // size * size, size):
        key = chain(key, tokens[at : at + size])
        keys.append(key)
    return Path(tuple(keys), tuple(range(size, size * len(keys) + 1, size)))


def name_of(tokens: Sequence[int]) -> int | None:
    """The engine's own hash of the block that ends a prompt; none before the first."""
    return stable("engine", *tokens) if tokens else None


def stored_event(blocks: list[tuple[int, ...]], size: int, removed: bool = False) -> Stored | Removed:
    """Of blocks given by all tokens up to their ends."""
    names = [name_of(block) for block in blocks]
    if removed:
        return Removed(names)
    tokens = [token for block in blocks for token in block[-size:]]
    return Stored(names, name_of(blocks[0][:-size]), tokens, size)


def prompt_event(tokens: Sequence[int], size: int = OWN, first: int = 0, form: str = "map", **more: object) -> object:
    """A whole prompt's blocks from the block `first` on, as the wire has it."""
    tokens = list(tokens)
    ends = range((first + 1) * size, len(tokens) + 1, size)
    names = [name_of(tokens[:end]) for end in ends]
    values = {
        "block_hashes": names,
        "parent_block_hash": name_of(tokens[: first * size]),
        "token_ids": tokens[first * size : len(tokens) // size * size],
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        **more,
    }
    if form == "row":  # as SGLang and older versions of vLLM
        return ["BlockStored", *list(values.values())[:5]]
    return {"type": "BlockStored", **values, "lora_name": more.get("lora_name")}


def removal(tokens: Sequence[int], form: str = "map") -> object:
    names = [name_of(list(tokens))]
    return (
        ["BlockRemoved", names] if form == "row" else {"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"}
    )


def clearing(form: str = "map") -> object:
    return ["AllBlocksCleared"] if form == "row" else {"type": "AllBlocksCleared"}


def batch(*events: object, rank: int | None = 0, form: str = "row") -> bytes:
    return PACK({"ts": 1.5, "events": events} if form == "map" else [1.5, list(events), rank])


class PlainSink:
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.runs: dict[int, tuple[int, int, int]] = {}
        self.levels: dict[int, int] = {}
        self.trust = ""
        self.clears: list[str] = []

    def stored(self, runs: list[tuple[int, int, int, int]]) -> None:
        for parent, key, start, end in runs:
            assert key not in self.runs, "told twice"
            assert start == 0 or parent in self.runs, "told before its parent"
            self.runs[key], self.levels[key] = (parent, start, end), 0

    def moved(self, keys: list[int], level: int) -> None:
        for key in keys:
            assert key in self.runs and self.levels[key] != level, "told of no change"
            self.levels[key] = level

    def removed(self, keys: list[int]) -> None:
        for key in keys:
            del self.runs[key], self.levels[key]
            assert all(parent != key for parent, _, _ in self.runs.values()), "gone before what follows it"

    def cleared(self, trust: str) -> None:
        self.runs.clear()
        self.trust = trust
        self.clears.append(trust)


class Publisher:
    """What vLLM has: a PUB socket that binds or connects, numbers, and a ROUTER that gives old batches again. It lives
    in a thread of its own; `lose` makes a number that nobody hears."""

    def __init__(self, endpoint: str, topic: str = "", replay: bool = False, keep: int = 10_000) -> None:
        import zmq

        self.zmq = zmq
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.XPUB)
        self.pub.set_hwm(200_000)
        self.pub.linger = 0
        self.endpoint = endpoint
        if "*" in endpoint:
            self.pub.bind(endpoint)
            self.endpoint = self.pub.getsockopt_string(zmq.LAST_ENDPOINT).replace("0.0.0.0", "127.0.0.1")
        else:
            self.pub.connect(endpoint)
        self.topic = topic.encode()
        self.number = 0
        self.kept: list[tuple[int, bytes]] = []
        self.keep = keep
        self.asked: list[int] = []
        self.answers = True
        self.replay_endpoint = None
        self.closing = False
        self.thread = None
        if replay:
            self.router = self.context.socket(zmq.ROUTER)
            self.router.linger = 0
            port = self.router.bind_to_random_port("tcp://127.0.0.1")
            self.replay_endpoint = f"tcp://127.0.0.1:{port}"
            self.thread = threading.Thread(target=self._serve, daemon=True)
            self.thread.start()

    def joined(self, seconds: float = 120.0) -> None:
        """Wait for a subscriber."""
        assert self.pub.poll(int(seconds * 1000)), "nobody subscribed"
        assert self.pub.recv()[:1] == b"\x01"

    def parted(self, seconds: float = 120.0) -> None:
        """Wait until the last subscriber has gone."""
        assert self.pub.poll(int(seconds * 1000)), "nobody went"
        assert self.pub.recv()[:1] == b"\x00"

    def send(self, *events: object, lose: bool = False, payload: bytes | None = None, rank: int | None = 0) -> None:
        payload = batch(*events, rank=rank) if payload is None else payload
        if not lose:
            self.pub.send_multipart((self.topic, self.number.to_bytes(8, "big"), payload))
        self.kept.append((self.number, payload))
        del self.kept[: -self.keep]
        self.number += 1

    def _serve(self) -> None:
        while not self.closing:
            if not self.router.poll(20):
                continue
            who, empty, first = self.router.recv_multipart()
            assert empty == b""
            self.asked.append(int.from_bytes(first, "big"))
            if not self.answers:
                continue
            for number, payload in list(self.kept):
                if number >= self.asked[-1]:
                    self.router.send_multipart((who, b"", number.to_bytes(8, "big"), payload))
            self.router.send_multipart((who, b"", END, b""))
        self.router.close()

    def close(self) -> None:
        self.closing = True
        if self.thread is not None:
            self.thread.join(10)
        self.pub.close()
        self.context.term()
