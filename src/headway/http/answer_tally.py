"""Counts the tokens of an answer while the gateway passes it on, and detects its first content."""

import re
from typing import Final

EVENT: Final = b"data: {"
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|arguments)": ?"[^"]')
USAGE: Final = re.compile(rb'"completion_tokens": ?(\d{1,9})')  # bounded: engines may write anything
CACHED: Final = re.compile(rb'"cached_tokens": ?(\d{1,9})')
PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d{1,9})')
USAGE_FIELD: Final = b'"usage"'
LONGEST_USAGE: Final = 512  # bytes
TOKEN_COUNT: Final = b'"completion_tokens"'
TAIL: Final = 4096  # bytes at the end of an answer that contain its usage


class AnswerTally:
    __slots__ = ("_read", "_tokens", "events", "first", "stream", "tail")

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.first = False  # content has arrived
        self.events = 0
        self.tail = b""
        self._read: bytes | None = None  # the tail that `_tokens` was read from
        self._tokens = 0

    def count(self, data: bytes) -> bool:
        """Count a piece of the answer. Return True if it has the first content of a stream; an answer that is not
        streamed has no visible first token."""
        if self.stream:
            self.events += data.count(EVENT)
            # Not only in the last piece. `in` is slower here: it first tries the text as a number, and raises.
            if data.find(TOKEN_COUNT) >= 0:
                self.tail = data
            if self.first or CONTENT.search(data) is None:
                return False
            self.first = True
            return True
        self.tail = (self.tail + data)[-TAIL:] if self.tail else data[-TAIL:]
        return False

    @property
    def usage(self) -> bytes:
        """Return the token counts as the engine wrote them; empty if it wrote none."""
        at = self.tail.rfind(USAGE_FIELD)
        return b"" if at < 0 else self.tail[at : at + LONGEST_USAGE]

    @property
    def tokens(self) -> int:
        """Return the tokens that the engine reports, or else the number of events: each has one token."""
        if self._read is not self.tail:
            usage = USAGE.search(self.tail)
            self._read, self._tokens = self.tail, int(usage[1]) if usage else self.events
        return self._tokens
