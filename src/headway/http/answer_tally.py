"""Counts the tokens of an answer while the gateway forwards it, and detects its first content."""

import re
from typing import ClassVar, Final

EVENT: Final = b"data: {"
CONTENT: Final = re.compile(rb'"(?:content|text|reasoning_content|arguments)": ?"[^"]')
USAGE: Final = re.compile(rb'"completion_tokens": ?(\d{1,9})')  # at most 9 digits: an invalid count may be very long
CACHED: Final = re.compile(rb'"cached_tokens": ?(\d{1,9})')
PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d{1,9})')
OUTPUT_FIELD: Final = b'"output_tokens"'
OUTPUT: Final = re.compile(rb'"output_tokens": ?(\d{1,9})')
RESPONSE_ID: Final = re.compile(rb'"id": ?"(resp_[0-9A-Za-z_-]{1,150})"')
INPUT: Final = re.compile(rb'"input_tokens": ?(\d{1,9})')
CACHE_READ: Final = re.compile(rb'"cache_read_input_tokens": ?(\d{1,9})')
CACHE_MADE: Final = re.compile(rb'"cache_creation_input_tokens": ?(\d{1,9})')
USAGE_FIELD: Final = b'"usage"'
LONGEST_USAGE: Final = 512  # maximum size of the usage field, in bytes
TOKEN_COUNT: Final = b'"completion_tokens"'
HEAD: Final = 512  # number of bytes to keep from the beginning of an answer, which contains its id and its model
TAIL: Final = 4096  # number of bytes to keep from the end of an answer, which contains the usage field


class AnswerTally:
    __slots__ = ("_read", "_tokens", "events", "first", "head", "stream", "tail")
    inlined: ClassVar[bool] = True  # whether connections may count the rest of a stream themselves

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


class EventTally(AnswerTally):
    """Counts the tokens of an answer whose events have names."""

    __slots__ = ()
    inlined = False
    delta: ClassVar[bytes]  # what an event with a token begins with

    def count(self, data: bytes) -> bool:
        if not self.stream:
            return super().count(data)
        if not self.head:
            self.head = data[:HEAD]
        deltas = data.count(self.delta)
        self.events += deltas
        if data.find(OUTPUT_FIELD) >= 0:
            self.tail = data
        if self.first or not deltas:
            return False
        self.first = True
        return True

    @property
    def usage(self) -> bytes:
        """Return the token counts in the form of OpenAI's chat API; empty bytes if the engine has sent no counts."""
        output = OUTPUT.findall(self.tail)
        if not output:
            return b""
        prompt, read, made = (_last(pattern, self.tail) for pattern in (INPUT, CACHE_READ, CACHE_MADE))
        cached = _last(CACHED, self.tail) + read
        counts = (prompt + read + made, int(output[-1]), cached)
        return b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d}' % counts

    @property
    def tokens(self) -> int:
        output = OUTPUT.findall(self.tail)
        return max(int(output[-1]), self.events) if output else self.events


class ResponsesTally(EventTally):
    """Counts the tokens of an answer of OpenAI's Responses API, and finds its id."""

    __slots__ = ("response_id",)
    delta = b".delta\ndata:"

    def __init__(self, stream: bool) -> None:
        super().__init__(stream)
        self.response_id = b""

    def count(self, data: bytes) -> bool:
        if not self.response_id:
            found = RESPONSE_ID.search(data)
            self.response_id = b"" if found is None else found[1]
        return super().count(data)


class MessagesTally(EventTally):
    """Counts the tokens of an answer of Anthropic's Messages API."""

    __slots__ = ()
    delta = b"event: content_block_delta"


def _last(pattern: re.Pattern[bytes], data: bytes) -> int:
    found = pattern.findall(data)
    return int(found[-1]) if found else 0
