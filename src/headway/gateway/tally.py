"""What can be told of an answer while it passes: when its first content came, and how many tokens it has."""

from __future__ import annotations

import re
from typing import Final

EVENT: Final = b"data: {"
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|arguments)": ?"[^"]')
USAGE: Final = re.compile(rb'"completion_tokens": ?(\d+)')
TAIL: Final = 4096  # bytes at the end of an answer in which its usage stands


class Tally:
    __slots__ = ("events", "first", "stream", "tail")

    def __init__(self, stream: bool) -> None:
        self.stream = stream
        self.first = False  # whether there was content
        self.events = 0
        self.tail = b""

    def seen(self, data: bytes) -> bool:
        """Count a piece of the answer; True where it has the first content."""
        if self.stream:
            self.events += data.count(EVENT)
            self.tail = data
            if self.first or CONTENT.search(data) is None:
                return False
            self.first = True
            return True
        self.tail = (self.tail + data)[-TAIL:] if self.tail else data[-TAIL:]
        found = not self.first
        self.first = True
        return found

    @property
    def tokens(self) -> int:
        """As the engine tells, or else the events of the stream, each of which has one token."""
        found = USAGE.search(self.tail)
        return int(found[1]) if found else self.events
