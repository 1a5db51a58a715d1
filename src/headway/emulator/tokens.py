"""The emulator's tokenizer.

A token is four bytes of text, and every word of an answer is one token. Each message of a chat has a token for its role
before it and an end token after it, so its text begins at a token boundary. Therefore, an answer in the prompt of the
next turn has the same tokens as when it was generated, and the prompt finds them cached.
"""

from __future__ import annotations

import sys
from array import array
from random import Random
from typing import Any, Final

import msgspec

from headway.hashing import stable

WIDTH: Final = 4  # number of bytes in a token
TOP: Final = 0xFFFFFF00  # lowest id of a special token; no text contains the bytes of such an id
END: Final = TOP
ROLES: Final = {role: TOP + 1 + number for number, role in enumerate(("system", "user", "assistant", "tool"))}
OTHER_ROLE: Final = TOP + 16
TOOLS: Final = TOP + 17
WORDS: Final = [f"{a}{b}{c} " for a in "bdfghklmnprstvwz" for b in "aeiou" for c in "bdfgklmnprstvxyz"]
WORD_IDS: Final = [int.from_bytes(word.encode(), "little") for word in WORDS]
GOLDEN: Final = 0x9E3779B97F4A7C15
MASK: Final = (1 << 64) - 1


def ids_of_text(text: str | bytes) -> array[int]:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if rest := len(data) % WIDTH:
        data += bytes(WIDTH - rest)
    ids = array("I")
    ids.frombytes(data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids


def ids_of_chat(messages: list[dict[str, Any]], tools: Any) -> array[int]:
    """Return the tokens of all messages, followed by the role token of the answer."""
    ids = array("I")
    if tools:
        ids.append(TOOLS)
        ids.extend(ids_of_text(msgspec.json.encode(tools)))
        ids.append(END)
    for message in messages:
        ids.append(ROLES.get(str(message.get("role")), OTHER_ROLE))
        ids.extend(ids_of_text(_content_of(message)))
        ids.append(END)
    ids.append(ROLES["assistant"])
    return ids


def _content_of(message: dict[str, Any]) -> bytes:
    """Return the content of a message as bytes: text as UTF-8; images, tool calls and other parts as JSON."""
    content = message.get("content")
    parts: list[bytes] = []
    if isinstance(content, str):
        parts.append(content.encode("utf-8", "surrogatepass"))
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            plain = isinstance(text, str) and (not isinstance(part, dict) or part.get("type") == "text")
            parts.append(str(text).encode("utf-8", "surrogatepass") if plain else msgspec.json.encode(part))
    if message.get("tool_calls"):
        parts.append(msgspec.json.encode(message["tool_calls"]))
    return b"".join(parts)


def mix(seed: int, number: int) -> int:
    """Return a pseudo-random 64-bit number for a seed and an index."""
    value = (seed + (number + 1) * GOLDEN) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def word(seed: int, number: int) -> int:
    """Return the word at position `number` of an answer, as an index into WORDS."""
    return mix(seed, number) % len(WORDS)


def logprob(seed: int, number: int, rank: int = 0) -> float:
    """Return a made-up log-probability: at most zero, and lower for each further candidate."""
    return -((mix(seed ^ 0x10, number) % 1000) / 2000.0) - 1.5 * rank


def vector(seed: int, size: int) -> list[float]:
    """Return a made-up embedding of length one."""
    values = [mix(seed, number) / (1 << 63) - 1.0 for number in range(size)]
    norm = 0.0
    for value in values:
        norm += value * value
    return [value / norm**0.5 for value in values]


def drawn_length(seed: int, mean: int) -> int:
    """Return a random length for an answer without a limit: exponential, at most 8 times the mean, fixed by `seed`."""
    return min(8 * mean, 1 + int(Random(stable("length", seed)).expovariate(1.0 / mean)))
