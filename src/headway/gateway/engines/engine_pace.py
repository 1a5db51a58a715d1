"""The pace of an engine: how long it recently took to begin answers, and for how long it has sent nothing although it
owes answers. The gateway derives from it when to give up on an engine that hangs."""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from headway.gateway.settings import Timeouts

KEPT: Final = 64  # number of recent answers from which the limits follow
ENOUGH: Final = 5  # with fewer recent answers, only the longest limits apply
QUANTILE: Final = 0.95
FIXED_TOKENS: Final = 256  # part of a prompt's work that does not depend on its length, in tokens
PAUSE_HALF_S: Final = 300.0  # time after which the longest recent pause counts half
IDLE_S: Final = 60.0  # after this time without requests, an earlier silence does not count any more


class Owed(Protocol):
    """An answer that an engine owes and of which nothing has arrived since the last sweep."""

    sent: bool  # whether a part of the answer has reached the client
    since: float  # time of the last piece; before the first piece, the time at which the request was sent

    def expected_s(self, pace: Pace) -> float:
        """Return how long the first byte should take at most, judging by recent answers; infinity if unknown."""

    def give_up(self, why: str, elsewhere: bool) -> None:
        """End the answer, or ask another engine if `elsewhere` and if the client has received nothing."""


class Trial(Protocol):
    """The request that decides whether an engine serves again after an ejection."""

    def streams_for_s(self) -> float:
        """Return the time since the first content of the answer, in seconds; -1 if there is none."""


class RecentTimes:
    """Times to the first byte of the last answers, with the work of each: prompt tokens that the engine had to compute
    before, and tokens of the answer."""

    def __init__(self) -> None:
        self.samples: deque[tuple[float, int, int]] = deque(maxlen=KEPT)

    def add(self, seconds: float, prompt_tokens: int, answer_tokens: int = 1) -> None:
        self.samples.append((seconds, prompt_tokens + FIXED_TOKENS, max(1, answer_tokens)))

    def expected_s(self, prompt_tokens: int, answer_tokens: int = 1) -> float:
        """Return a high quantile of the recent times. If a request has more work than the mean of the recent ones,
        return proportionally more. If there are too few recent times, return infinity."""
        count = len(self.samples)
        if count < ENOUGH:
            return inf
        seconds = sorted(sample[0] for sample in self.samples)[int(QUANTILE * count)]
        prompts, answers = (max(1, sum(sample[at] for sample in self.samples)) for at in (1, 2))
        longer = max(1.0, (prompt_tokens + FIXED_TOKENS) * count / prompts)
        return seconds * longer * max(1.0, answer_tokens * count / answers)


class Pace:
    def __init__(self) -> None:
        self.streams, self.wholes = RecentTimes(), RecentTimes()  # whole answers: their first byte comes at the end
        self.moved = False  # whether the engine has sent something since the last sweep
        self.owing: list[Owed] = []  # answers of which nothing has arrived since the last sweep
        self.silent_s = 0.0  # time for which the engine has sent nothing although it owed answers
        self._owed_at = 0.0  # time at which it last owed an answer
        self._pause = (0.0, 0.0)  # the longest recent pause within streams, and the time at which it ended

    def record_pause(self, seconds: float, now: float) -> None:
        """Record a pause within a stream that went on afterwards."""
        if seconds > self.longest_pause(now):
            self._pause = (seconds, now)

    def longest_pause(self, now: float) -> float:
        seconds, at = self._pause
        return float(seconds * 0.5 ** ((now - at) / PAUSE_HALF_S)) if seconds else 0.0

    def sweep(self, now: float, passed_s: float) -> list[Owed]:
        """Update the time of silence, and return the answers that the engine owes."""
        owing, self.owing = self.owing, []
        if self.moved:
            self.moved, self.silent_s = False, 0.0
        elif owing:
            self.silent_s += passed_s
        if owing:
            self._owed_at = now
        elif now - self._owed_at > IDLE_S:
            self.silent_s = 0.0
        return owing

    def dawdles(self, timeouts: Timeouts) -> bool:
        """Return whether the engine has been silent for longer than its recent whole answers took, so that it should
        get no new requests. An answer of unknown length may still be on its way."""
        if self.silent_s <= timeouts.first_byte_floor_s:
            return False
        return self.silent_s > self.wholes.expected_s(0) * timeouts.slack

    def stalls(self, owing: list[Owed], timeouts: Timeouts, now: float) -> bool:
        """Return whether the engine has been silent for longer than its own recent times explain."""
        waiting = [answer for answer in owing if not answer.sent]
        silent_s = self.silent_s
        if silent_s <= min(timeouts.stall_s, timeouts.first_byte_floor_s, timeouts.first_byte_s, timeouts.silence_s):
            return False
        expected_s = max([answer.expected_s(self) for answer in waiting], default=0.0) * timeouts.slack
        if waiting and silent_s > min(timeouts.first_byte_s, max(timeouts.first_byte_floor_s, expected_s)):
            return True
        # A long prompt may hold up the streams of an engine that computes it in one step.
        pause_s = max(timeouts.stall_s, self.longest_pause(now) * timeouts.slack, expected_s)
        return len(waiting) < len(owing) and silent_s > min(timeouts.silence_s, pause_s)
