"""Which conversation a request belongs to, where its client does not say so.

A client may name it in a header; else the body's `user` stands for it; else the conversation does so itself: all its
turns begin with the same messages, up to and including the first of the user. What comes later differs from turn to
turn, and what comes before, the system's message, is that of an application and not of a conversation. Two
conversations that begin alike are one by this rule; they share their cached beginning too, so to send them to the same
engine is what a session is for. A prompt without messages has no such place, and no session.

It is found in the bytes as they were sent, without reading the JSON: a quote within a JSON string is escaped, so a
bare "user" is a whole string, and only strings and brackets from there on have to be told apart.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Final

import xxhash
from msgspec import Struct

from headway.config.keys import Unit
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import read_text
from headway.hashing import stable

HEADER: Final = "x-headway-session"
LONGEST: Final = 200  # characters of a session's name
USER: Final = b'"user"'
ROLE: Final = b'"role"'
CONTENT: Final = re.compile(rb'\s*,\s*"content"\s*:\s*"')
OPENING: Final = re.compile(rb'\s*\[\s*\{\s*"role"\s*:\s*"user"' + CONTENT.pattern)
SIGN: Final = re.compile(rb'[]["{}]')
OPEN: Final = (b"{", b"[")
BACKSLASH: Final = ord("\\")
STEPS: Final = 64  # quotes that are looked at in the first message; one with more is told apart by its beginning
BETWEEN: Final = 1024  # bytes between two strings; more are none of a message's
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def _read_header(value: Any, where: str) -> bytes:
    name = read_text(value, where).lower()
    if not NAME.fullmatch(name):
        raise HeadwayError(f"{where}: expected the name of a header, got {shown(value)}.")
    return name.encode()


class SessionSettings(Struct, frozen=True):
    """The section `sessions:` of a gateway's file: what may say which conversation a request belongs to."""

    header: Annotated[bytes, Unit("text", _read_header, bytes.decode), "a header that names it"] = HEADER.encode()
    user: Annotated[bool, "whether the field `user` of a request names it, where there is no header"] = True
    prefix: Annotated[bool, "whether the first messages of a request do, where there is neither"] = True

    def session(self, header: bytes | None, user: str | None, messages: Any, tenant: str = "") -> str | None:
        """`messages`: the body's, as they were sent; anything with a buffer, empty where there are none."""
        if header:
            return header.decode("latin-1")[:LONGEST]
        if user and self.user:
            return user[:LONGEST]
        return of_messages(bytes(messages), tenant) if self.prefix else None


def of_messages(messages: bytes, tenant: str = "") -> str | None:
    """Named by a tilde and a hash of the messages up to the end of the first of the user; None where there is none."""
    opening = OPENING.match(messages)
    end = -1 if opening is None else _closed(messages, opening.end())
    if end < 0:
        at = _user(messages)
        if at < 0:
            return None
        end = _end(messages, at)
    return "~" + xxhash.xxh3_64_hexdigest(memoryview(messages)[:end], _seed(tenant))


@lru_cache(maxsize=4096)
def _seed(tenant: str) -> int:
    return stable("session", tenant)


def _user(messages: bytes) -> int:
    """Where the first "role": "user" ends; -1 where it is not found soon."""
    at = messages.find(USER)
    for _ in range(STEPS):
        if at < 0:
            break
        before = messages[max(0, at - 40) : at].rstrip()
        if before[-1:] == b":" and before[:-1].rstrip().endswith(ROLE):
            return at + len(USER)
        at = messages.find(USER, at + 1)
    return -1


def _closed(messages: bytes, start: int) -> int:
    """Where a message ends that is as nearly all are: from `start` on the rest of its string, and nothing after it; -1
    where it is not."""
    quote = messages.find(b'"', start)
    if quote > 0 and messages[quote - 1] != BACKSLASH and messages[quote + 1 : quote + 2] == b"}":
        return quote + 2
    return -1


def _end(messages: bytes, at: int) -> int:
    """Where the message that `at` stands in ends, by its brackets outside of strings; or where the steps do."""
    plain = CONTENT.match(messages, at)
    end = -1 if plain is None else _closed(messages, plain.end())
    if end >= 0:
        return end
    depth, quotes = 1, 0
    while quotes < STEPS:
        sign = SIGN.search(messages, at, at + BETWEEN)
        if sign is None:
            return min(at + BETWEEN, len(messages))
        at = sign.end()
        if sign[0] == b'"':
            quotes, at = _string(messages, quotes + 1, at)
        elif sign[0] in OPEN:
            depth += 1
        else:
            depth -= 1
            if not depth:
                return at
    return at


def _string(messages: bytes, quotes: int, at: int) -> tuple[int, int]:
    """How many quotes there were, and where the string that begins at `at` ends: by a quote that is not escaped."""
    while quotes < STEPS:
        quote = messages.find(b'"', at)
        if quote < 0:
            return STEPS, len(messages)
        quotes += 1
        back = quote
        while back > at and messages[back - 1] == BACKSLASH:
            back -= 1
        at = quote + 1
        if (quote - back) % 2 == 0:
            break
    return quotes, at
