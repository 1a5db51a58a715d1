"""Frames as they are on the wire, and bytes that are none."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("xxhash", reason="the extra `kvd` is not installed")

from kvd_nodes import run

from drawing import draws
from headway.gateway.kvd import frames
from headway.gateway.kvd.session import Budget

KEYS = st.lists(st.binary(min_size=1, max_size=64), max_size=20)
LIMIT = 2**20


def test_a_frame_is_what_the_documents_say() -> None:
    frame = frames.frame(frames.Put([b"k"], [3], 5), 3)
    head = msgspec.msgpack.encode([1, [b"k"], [3], 5])
    assert frame == b"HK\x01\x00" + len(head).to_bytes(4, "big") + (3).to_bytes(4, "big") + head


@given(KEYS)
def test_what_is_written_is_read(keys: list[bytes]) -> None:
    sizes = [len(key) for key in keys]
    for request in (
        frames.Put(keys, sizes, 7),
        frames.Get(keys),
        frames.Lookup(keys),
        frames.Fetch(keys, "quic://a:1"),
    ):
        body = sum(sizes) if isinstance(request, frames.Put) else 0
        written = frames.frame(request, body)
        head, lengths = frames.lengths(written[: frames.PREFIX.size], LIMIT)
        assert (head, lengths) == (len(written) - frames.PREFIX.size, body)
        assert frames.request(written[frames.PREFIX.size :], body) == request


@draws(60)
@given(st.binary(min_size=12, max_size=12), st.binary(max_size=200), st.integers(0, 300))
def test_bytes_at_random_are_read_or_refused_and_nothing_else(prefix: bytes, head: bytes, body: int) -> None:
    for read in (
        lambda: frames.lengths(prefix, LIMIT),
        lambda: frames.request(head, body),
        lambda: frames.reply(head, body),
    ):
        with suppress(frames.Malformed):
            read()


@pytest.mark.parametrize(
    ("head", "body", "message"),
    [
        ([1, [b"k"], []], 0, "a put needs one block"),
        ([1, [b"k"], [0]], 0, "at least one byte"),
        ([1, [b"k"], [4]], 3, "announces 4 bytes of blocks, but the frame has 3"),
        ([2, [b""]], 0, "cannot be read"),
        ([2, [b"k" * 65]], 0, "cannot be read"),
        ([2, [b"k"] * (frames.MOST_KEYS + 1)], 0, "cannot be read"),
        ([2, [b"k"]], 1, "announces 0 bytes of blocks, but the frame has 1"),
        ([99], 0, "cannot be read"),
        ([1, [b"k"], [1], -1], 1, "cannot be read"),
    ],
)
def test_a_wrong_request_is_told(head: Any, body: int, message: str) -> None:
    with pytest.raises(frames.Malformed, match=message):
        frames.request(msgspec.msgpack.encode(head), body)


def test_a_head_nested_without_end_is_refused() -> None:
    with pytest.raises(frames.Malformed):
        frames.request(b"\x91" * 100_000, 0)


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        (b"GET / HTTP/1", "must begin with HK"),
        (b"HK\x02\x00\x00\x00\x00\x01\x00\x00\x00\x00", "version 1"),
        (b"HK\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", "the head has 0 bytes"),
        (b"HK\x01\x00\xff\xff\xff\xff\x00\x00\x00\x00", "the head has 4,294,967,295 bytes"),
        (b"HK\x01\x00\x00\x00\x00\x01\x00\x10\x00\x01", "have 1,048,577 bytes; the limit is 1,048,576"),
    ],
)
def test_a_wrong_prefix_is_told(prefix: bytes, message: str) -> None:
    with pytest.raises(frames.Malformed, match=message):
        frames.lengths(prefix, LIMIT)


def test_a_budget_gives_turns_in_order_and_loses_none() -> None:
    async def main() -> None:
        budget = Budget(10)
        order: list[str] = []

        async def use(name: str, size: int) -> None:
            await budget.take(size)
            order.append(name)
            await asyncio.sleep(0)
            budget.give(size)

        await budget.take(8)
        tasks = {name: asyncio.create_task(use(name, size)) for name, size in (("a", 9), ("b", 1), ("c", 10))}
        await asyncio.sleep(0)
        assert order == [], "a small one does not pass a large one, which would never have its turn"
        tasks["a"].cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert order == ["b"], "one that goes away lets the next through"
        budget.give(8)
        tasks["c"].cancel()  # granted in this moment, and gone in the next
        await asyncio.wait(tasks.values())
        assert budget.used == 0
        await budget.take(10)

    run(main())
