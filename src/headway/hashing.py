"""Names for token content: integer keys, each of which commits to everything before it.

In simulation a key is given, not computed: `key(kind, number)` keeps the kinds of content apart.
"""

from hashlib import blake2b
from typing import Final

TRACE, PROMPT, OUTPUT, GROUP = range(4)
ROOT: Final = 0


def key(kind: int, number: int) -> int:
    """The key of content `number` of a kind: a trace's block, a request's own prompt, its output, a group's prefix."""
    return number * 4 + kind


def stable(*parts: str | int) -> int:
    """A 64-bit hash of plain values that is the same in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
