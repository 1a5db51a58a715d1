"""Counts the tokens of an answer while it passes, and finds its first content."""

import re
from typing import Final

EVENT: Final = b"data: {"
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|arguments)": ?"[^"]')
USAGE: Final = re.compile(rb'"completion_tokens": ?(\d{1,9})')  # bounded: engines may write anything
CACHED: Final = re.compile(rb'"cached_tokens": ?(\d{1,9})')
PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d{1,9})')
SAID: Final = b'"usage"'
LONGEST_USAGE: Final = 512  # bytes
TOLD: Final = b'"completion_tokens"'
TAIL: Final = 4096  # bytes at the end of an answer in which its usage stands


class AnswerTally:
    __slots__ = ("_read", "_tokens", "events", "first", "stream", "tail")

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.first = False  # content has arrived
        self.events = 0
        self.tail = b""
        self._read: bytes | None = None  # the tail that `_tokens` was counted from
        self._tokens = 0

    def count(self, data: bytes) -> bool:
        """Count a piece of the answer; return True if it has the first content of a stream. An answer in one piece has
        no visible first token."""
        if self.stream:
            self.events += data.count(EVENT)
            if data.find(TOLD) >= 0:  # which need not be the last piece; `in` would first try it as a number, and raise
                self.tail = data
            if self.first or CONTENT.search(data) is None:
                return False
            self.first = True
            return True
        self.tail = (self.tail + data)[-TAIL:] if self.tail else data[-TAIL:]
        return False

    @property
    def usage(self) -> bytes:
        """The engine's own account of tokens, as it wrote it; empty if there is none."""
        at = self.tail.rfind(SAID)
        return b"" if at < 0 else self.tail[at : at + LONGEST_USAGE]

    @property
    def tokens(self) -> int:
        """Tokens as the engine reports them, or else the events of the stream: each has one token."""
        if self._read is not self.tail:
            usage = USAGE.search(self.tail)
            self._read, self._tokens = self.tail, int(usage[1]) if usage else self.events
        return self._tokens
