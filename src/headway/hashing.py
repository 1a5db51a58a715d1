"""Names for token content: the block-hash chain, and the integer keys that stand for it in simulation.

A key commits to everything before it. In simulation a key is given, not computed: `key(kind, number)` keeps the
kinds of content apart. Live prompts are hashed block by block with `chain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

TRACE, PROMPT, OUTPUT, GROUP = range(4)
ROOT: Final = 0


def key(kind: int, number: int) -> int:
    """The key of content `number` of a kind: a trace's block, a request's own prompt, its output, a group's prefix."""
    return number * 4 + kind


def chain(parent: int, tokens: Sequence[int]) -> int:
    """64-bit hash of one block of token ids after the blocks that `parent` stands for."""
    digest = blake2b(parent.to_bytes(8, "little"), digest_size=8)
    digest.update(b"".join(token.to_bytes(4, "little") for token in tokens))
    return int.from_bytes(digest.digest(), "little")


def stable(*parts: str | int) -> int:
    """A 64-bit hash of plain values that is the same in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
