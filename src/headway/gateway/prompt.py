"""What a router reads of a request's body; the body itself goes on untouched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from headway.types import Path

FIRST: Final = 256  # bytes of a block at the beginning of a prompt
NEAR: Final = 64 * FIRST  # up to where blocks are that short; then each next one is longer by a sixteenth of its place
LEAST: Final = 64  # a shorter prompt has no block


class Body(Struct):
    """Of a completion, a chat or an embedding; all else is passed on."""

    model: str = ""
    stream: bool = False
    messages: Raw = Raw()
    prompt: Raw = Raw()
    input: Raw = Raw()
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    user: str | None = None

    @property
    def text(self) -> bytes:
        """What a prompt is told apart by: the bytes as the client wrote them, so that a longer conversation begins as
        the shorter one did."""
        text = bytes(self.messages) or bytes(self.prompt) or bytes(self.input)
        return text[:-1] if text[-1:] in b']"' else text  # its end is not the end of what follows


_decode: Callable[[bytes], Body] = msgspec.json.Decoder(Body).decode


def read_body(data: bytes) -> Body:
    """Raises msgspec.MsgspecError where it is no JSON object of such fields."""
    return _decode(data)


def boundaries(size: int) -> list[int]:
    """Where the blocks of a prompt end, by their place alone, so that equal beginnings have equal blocks. Those far
    from the beginning are longer: a prompt of 400 kB has 230 blocks, not 1,600."""
    found: list[int] = []
    at = 0
    while True:
        at += FIRST if at < NEAR else max(FIRST, at // 16 // FIRST * FIRST)
        if at > size:
            return found
        found.append(at)


_ENDS: list[int] = boundaries(1 << 22)


def path_of(text: bytes, salt: int, digest: Callable[[memoryview, int], int], bytes_per_token: int = 4) -> Path:
    """The prompt as a chain of block keys, each of which commits to all before it."""
    size = len(text)
    view = memoryview(text)
    keys, ends = [], []
    key, start = salt, 0
    for end in _ENDS:
        if end > size:
            break
        key = digest(view[start:end], key)
        keys.append(key)
        ends.append(end // bytes_per_token)
        start = end
    if not keys and size >= LEAST:  # a short one is still told apart
        keys.append(digest(view, salt))
        ends.append(size // bytes_per_token)
    return Path(tuple(keys), tuple(ends))
