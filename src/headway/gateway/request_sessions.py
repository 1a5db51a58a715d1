"""The session of a request. A header names the session. Without the header, the session is the body's `user`. If both
are missing, the session is a hash of the messages up to and including the first user message, because all turns of a
conversation share these messages. Conversations that begin with the same messages count as one session; they also share
their cached prefix. A prompt without messages has no session.

The code finds the first messages without decoding the JSON. JSON escapes quotes within strings, so `"user"` with its
quotes is always a whole string. From this string on, the search looks only at quotes and brackets until it finds the
end of the message.
"""

import re
from functools import lru_cache
from typing import Annotated, Any, Final

import xxhash
from msgspec import Struct

from headway.config.keys import Form, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.settings import read_text
from headway.hashing import stable

HEADER: Final = "x-headway-session"
LONGEST: Final = 200  # maximum length of a session's name, in characters
HASHED: Final = "~"  # the first character of a session that is a hash of messages
USER: Final = b'"user"'
ROLE: Final = b'"role"'
CONTENT: Final = re.compile(rb'\s*,\s*"content"\s*:\s*"')
OPENING: Final = re.compile(rb'\s*\[\s*\{\s*"role"\s*:\s*"user"' + CONTENT.pattern)
SIGN: Final = re.compile(rb'[]["{}]')
OPEN: Final = (b"{", b"[")
BACKSLASH: Final = ord("\\")
STEPS: Final = 64  # the search for a message's end stops after this many quotes; the hash then covers the text so far
BETWEEN: Final = 1024  # the search also stops if this many bytes have neither a quote nor a bracket
NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def _read_header(value: Any, where: str) -> bytes:
    name = read_text(value, where).lower()
    if not NAME.fullmatch(name):
        raise HeadwayError(f"{where}: expected a header name such as {HEADER}, got {shown(value)}.")
    return name.encode()


class SessionSettings(Struct, frozen=True):
    """The section `sessions:` of a gateway's file."""

    header: Annotated[
        bytes, Unit("text", _read_header, bytes.decode, form=Form.of(str)), "header with the session id"
    ] = HEADER.encode()
    user: Annotated[bool, "without header and hint, use the field `user` of the request"] = True
    prefix: Annotated[bool, "without header, hint and `user`, use a hash of the first messages"] = True
    hints: Annotated[
        bool,
        "without the header, use what the client says for caches: `previous_response_id`, `conversation`, "
        "`prompt_cache_key`, or `user_id` of `metadata`",
    ] = True

    def session(
        self, header: bytes | None, user: str | None, opening: bytes, tenant: str = "", hint: str | None = None
    ) -> str | None:
        """Return the session id, or None. `opening` has the first messages of the body, or is empty. `hint` is what the
        client says for caches."""
        if header:
            return header.decode("latin-1")[:LONGEST]
        if hint and self.hints:
            return hint[:LONGEST]
        if user and self.user:
            return user[:LONGEST]
        return of_messages(opening, tenant) if self.prefix else None


def of_messages(messages: bytes, tenant: str = "") -> str | None:
    """Return `~` and a hash of the messages up to the end of the first user message; None if there is no user
    message."""
    opening = OPENING.match(messages)
    end = -1 if opening is None else _end_of_plain(messages, opening.end())
    if end < 0:
        at = _user(messages)
        if at < 0:
            return None
        end = _end(messages, at)
    return HASHED + xxhash.xxh3_64_hexdigest(memoryview(messages)[:end], _seed(tenant))


@lru_cache(maxsize=4096)
def _seed(tenant: str) -> int:
    return stable("session", tenant)


def _user(messages: bytes) -> int:
    """Return the offset after the first `"role": "user"`. Look only at the first 64 occurrences of `"user"`. If none of
    them is a role, return -1."""
    at = messages.find(USER)
    for _ in range(STEPS):
        if at < 0:
            break
        before = messages[max(0, at - 40) : at].rstrip()
        if before[-1:] == b":" and before[:-1].rstrip().endswith(ROLE):
            return at + len(USER)
        at = messages.find(USER, at + 1)
    return -1


def _end_of_plain(messages: bytes, start: int) -> int:
    """Find the end of the string that begins at `start`. If the message ends immediately after this string, return the
    offset after the message; otherwise return -1."""
    quote = messages.find(b'"', start)
    if quote > 0 and messages[quote - 1] != BACKSLASH and messages[quote + 1 : quote + 2] == b"}":
        return quote + 2
    return -1


def _end(messages: bytes, at: int) -> int:
    """Return the offset after the message that contains the offset `at`. Find the end by counting brackets outside
    strings. The search stops early after STEPS quotes, or if the next BETWEEN bytes have neither a quote nor a bracket.
    If the search stops early, return the offset that it has reached."""
    plain = CONTENT.match(messages, at)
    end = -1 if plain is None else _end_of_plain(messages, plain.end())
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
    """Find the end of the string that begins at `at`. Return the sum of `quotes` and the number of quotes in this
    string, and the offset after the string."""
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
