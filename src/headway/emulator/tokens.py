"""Prompts as token ids, and answers made of words: the emulator's own tokenizer.

A token is four bytes of text. Each message of a chat is cut from its own beginning, between a mark that says whose it
is and one that ends it; and every word of an answer is one token. So an answer that comes back in the next turn's
prompt is the same tokens that were generated, and finds them cached.
"""

from __future__ import annotations

import sys
from array import array
from random import Random
from typing import Any, Final

import msgspec

from headway.hashing import stable

WIDTH: Final = 4  # bytes of a token
TOP: Final = 0xFFFFFF00  # marks begin here: no text has such bytes
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
    """Those of all messages; the mark that begins the answer stands at the end."""
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
    """What a message says; pictures, calls and whatever else it has by their JSON."""
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
    """A 64-bit number that looks drawn, of a seed and a place."""
    value = (seed + (number + 1) * GOLDEN) & MASK
    value = ((value ^ value >> 30) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ value >> 27) * 0x94D049BB133111EB) & MASK
    return value ^ value >> 31


def word(seed: int, number: int) -> int:
    """Which word comes at a place of an answer."""
    return mix(seed, number) % len(WORDS)


def logprob(seed: int, number: int, rank: int = 0) -> float:
    """Made up: below zero, and lower for each further candidate."""
    return -((mix(seed ^ 0x10, number) % 1000) / 2000.0) - 1.5 * rank


def vector(seed: int, size: int) -> list[float]:
    """An embedding, of length one."""
    values = [mix(seed, number) / (1 << 63) - 1.0 for number in range(size)]
    norm = 0.0
    for value in values:
        norm += value * value
    return [value / norm**0.5 for value in values]


def drawn_length(seed: int, mean: int) -> int:
    """How long an answer without a limit is: geometric, at most eight times the mean, the same for the same prompt."""
    return min(8 * mean, 1 + int(Random(stable("length", seed)).expovariate(1.0 / mean)))
