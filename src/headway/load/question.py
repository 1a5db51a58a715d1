"""One request in flight. It sends the request at the planned time, and measures the times of the answer."""

from __future__ import annotations

import re
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.load.line import Line
from headway.workload.traffic import Planned

if TYPE_CHECKING:
    from headway.load.driver import Driver

NOT_YET: Final = -1
REJECTED: Final = (429, 503)  # HTTP statuses with which an overloaded endpoint rejects a request
OUTPUT: Final = re.compile(rb'"completion_tokens": ?(\d{1,9})(?!\d)')
PROMPT: Final = re.compile(rb'"prompt_tokens": ?(\d{1,9})(?!\d)')
CACHED: Final = re.compile(rb'"cached_tokens": ?(\d{1,9})(?!\d)')
TEXT: Final = re.compile(rb'"(?:content|text)": ?"((?:[^"\\]|\\.)+)"')
MESSAGE: Final = re.compile(rb'"message": ?"((?:[^"\\]|\\.)*)"')
LONGEST: Final = 160  # maximum number of characters in the recorded reason of a failure


class Question:
    def __init__(self, driver: Driver, planned: Planned, row: int, due_ns: int, data: bytes) -> None:
        self.driver, self.planned, self.row, self.data = driver, planned, row, data
        self.due_ns = due_ns  # time at which the request should be sent
        self.line: Line | None = None
        self.sent_ns = self.first_ns = self.last_ns = NOT_YET
        self.count = 0  # number of events with content, about one for each token
        self.gaps_ns: list[int] = []  # durations between successive events with content
        self.pieces: list[bytes] | None = None  # pieces of the answer's text, JSON-escaped; None: text not needed
        self.over = False
        self.alarm: Any = None  # timer of the request's deadline

    def begin(self) -> None:
        line = self.driver.endpoint.take_free()
        if line is not None:
            self._send(line)
        else:
            self.driver.spawn(self._connect())

    async def _connect(self) -> None:
        try:
            line = await self.driver.endpoint.new()
        except Exception as error:  # catch every exception, so that the request ends
            why = getattr(error, "strerror", None) or error
            self._end("failed", f"no connection: {why}", monotonic_ns())
            return
        if self.over:
            self.driver.endpoint.free.append(line)
        else:
            self._send(line)

    def _send(self, line: Line) -> None:
        self.line = line
        now = monotonic_ns()
        if self.sent_ns == NOT_YET:
            self.sent_ns = now
        line.send(self, self.data)

    def content(self, count: int, events: bytes, at_ns: int) -> None:
        if self.first_ns == NOT_YET:
            self.first_ns = at_ns
        else:
            self.gaps_ns.append(at_ns - self.last_ns)
        if count > 1:  # several events arrived together, so there is no gap between them
            self.gaps_ns += [0] * (count - 1)
        self.count += count
        self.last_ns = at_ns
        if self.pieces is not None:
            self.pieces += TEXT.findall(events)

    def on_answer(self, line: Line, at_ns: int) -> None:
        if line.status >= 300:
            outcome = "rejected" if line.status in REJECTED else "failed"
            self._end(outcome, f"status {line.status}: {_message(line.error_text)}".rstrip(": "), at_ns)
        elif line.error_text:
            self._end("failed", _message(line.error_text), at_ns)
        elif line.streams and not line.whole:
            self._end("failed", "the stream ended without [DONE]", at_ns)
        elif not line.streams and not self.count and not line.usage:
            self._end("failed", "the answer has no tokens", at_ns)
        else:
            self._end("completed", "", at_ns)

    def on_loss(self, line: Line, at_ns: int) -> None:
        if line.uses > 1 and not line.has_data:  # the endpoint closed a reused, idle connection: send the request again
            self.begin()
            return
        self._end("failed", "the connection was lost", at_ns)

    def expire(self) -> None:
        if self.line is not None:
            self.line.drop()
        self._end("timed_out", "the client's timeout has passed", monotonic_ns())

    def drop(self) -> None:
        """Abandon the request at the end of the run."""
        self.over = True
        if self.alarm is not None:
            self.alarm.cancel()
        if self.line is not None:
            self.line.drop()

    def _end(self, outcome: str, why: str, at_ns: int) -> None:
        if self.over:
            return
        self.over = True
        if self.alarm is not None:
            self.alarm.cancel()
        self.driver.on_end(self, outcome, why, at_ns)

    def usage(self, pattern: re.Pattern[bytes]) -> int | None:
        """Return the token count that `pattern` finds in the engine's usage data; None if there is none. If the engine
        has sent intermediate counts too, return the last count."""
        counts = [] if self.line is None else pattern.findall(self.line.usage)
        return int(counts[-1]) if counts else None

    def text(self) -> str:
        """Return the text of the answer, or an empty string if it cannot be decoded."""
        try:
            return msgspec.json.decode(b'"%b"' % b"".join(self.pieces or ()), type=str)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return ""

    def visible_tokens(self, tokens: int) -> int:
        """Estimate how many of the answer's `tokens` belong to its visible text, that is, without the tokens of the
        reasoning."""
        return tokens if not self.count else tokens * min(len(self.pieces or ()), self.count) // self.count


def _message(error: bytes) -> str:
    match = MESSAGE.search(error)
    return (error if match is None else match[1]).decode(errors="replace")[:LONGEST].strip()
