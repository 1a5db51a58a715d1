"""Counts the tokens of an answer while the gateway forwards it, and detects its first content."""

import re
from typing import Final

EVENT: Final = b"data: {"
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|arguments)": ?"[^"]')
USAGE: Final = re.compile(rb'"completion_tokens": ?(\d{1,9})')  # at most 9 digits: an invalid count may be very long
CACHED: Final = re.compile(rb'"cached_tokens": ?(\d{1,9})')
PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d{1,9})')
USAGE_FIELD: Final = b'"usage"'
LONGEST_USAGE: Final = 512  # maximum size of the usage field, in bytes
TOKEN_COUNT: Final = b'"completion_tokens"'
HEAD: Final = 512  # number of bytes to keep from the beginning of an answer, which contains its id and its model
TAIL: Final = 4096  # number of bytes to keep from the end of an answer, which contains the usage field


class AnswerTally:
    __slots__ = ("_read", "_tokens", "events", "first", "head", "stream", "tail")

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.first = False  # whether content of the stream has arrived
        self.events = 0
        self.head = self.tail = b""
        self._read: bytes | None = None  # value of `tail` when `_tokens` was computed; None: not computed yet
        self._tokens = 0

    def count(self, data: bytes) -> bool:
        """Count a piece of the answer. Return True if the piece has the first content of a stream. If the answer is not
        streamed, always return False, because its first token is not visible."""
        if self.stream:
            self.events += data.count(EVENT)
            # Any piece may have the token count. `find` is faster than `in`, which first tries to read an integer.
            if data.find(TOKEN_COUNT) >= 0:
                self.tail = data
            if self.first or CONTENT.search(data) is None:
                return False
            self.first, self.head = True, data[:HEAD]
            return True
        if self.tail:
            self.tail = (self.tail + data)[-TAIL:]
        else:
            self.head, self.tail = data[:HEAD], data[-TAIL:]
        return False

    @property
    def usage(self) -> bytes:
        """Return the part of the engine's JSON that has the token counts; empty bytes if the engine has sent no
        counts."""
        at = self.tail.rfind(USAGE_FIELD)
        return b"" if at < 0 else self.tail[at : at + LONGEST_USAGE]

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the engine reports. Without a report, count each event as one token."""
        if self._read is not self.tail:
            usage = USAGE.search(self.tail)
            self._read, self._tokens = self.tail, int(usage[1]) if usage else self.events
        return self._tokens
