"""Integer keys that name token content, and a stable hash.

A key names a run of consecutive tokens together with all tokens before it. The simulator assigns keys instead of
hashing tokens; `key(kind, number)` gives different kinds of content different keys.
"""

from hashlib import blake2b
from typing import Final

TRACE, PROMPT, OUTPUT, GROUP = range(4)
ROOT: Final = 0


def key(kind: int, number: int) -> int:
    """Return the key of the content with this kind and number. Content is numbered separately for each kind: blocks of
    a trace, prompts, outputs, and prefixes that groups share."""
    return number * 4 + kind


def stable(*parts: str | int) -> int:
    """Return a 64-bit hash of plain values that is the same in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest(), "little")
