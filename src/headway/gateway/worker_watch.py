"""Watches a worker process: detects that it hangs or is stopped, and delays its replacement if it fails again and
again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, Protocol

BEAT_S: Final = 0.5  # time between two heartbeats
LONGEST_LOOK_S: Final = 2.0  # the most that one look adds to a worker's silence; the parent may have been stopped too
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0
STEADY_S: Final = 60.0  # a worker that has run this long is replaced after the first pause again


class Counter(Protocol):
    """A number in shared memory. Unlike a pipe, it never blocks the worker if its parent does not read."""

    value: int


def beat(counter: Counter, loop: asyncio.AbstractEventLoop) -> None:
    """Count heartbeats on the event loop, as long as the loop runs. A stopped process and a blocked loop count none."""
    counter.value += 1
    loop.call_later(BEAT_S, beat, counter, loop)


class Watch:
    """How long a worker has been silent, and how long its parent waits before it starts the next one."""

    def __init__(self, counter: Counter, seconds: Callable[[], float]) -> None:
        self.counter, self.seconds = counter, seconds
        self.started = self._looked = seconds()
        self.silent_s = 0.0
        self._last = counter.value

    def look(self, stopped: bool = False) -> float:
        """Return the time without a heartbeat in seconds. Until its first heartbeat, a worker is silent only while it
        is `stopped`. Called often."""
        now, count = self.seconds(), self.counter.value
        passed_s, self._looked = min(now - self._looked, LONGEST_LOOK_S), now
        if count != self._last or not (count or stopped):
            self._last, self.silent_s = count, 0.0
        else:
            self.silent_s += passed_s
        return self.silent_s

    def pause_s(self, former_s: float) -> float:
        """Return the pause before the worker's replacement starts. `former_s` is the pause before this worker, 0 if it
        is the first one."""
        if not former_s or self.seconds() - self.started >= STEADY_S:
            return FIRST_PAUSE_S
        return min(2 * former_s, LONGEST_PAUSE_S)


def is_stopped(pid: int | None) -> bool:
    """Return whether a child process is stopped, as by SIGSTOP. Where the system cannot say so, return False."""
    if pid is None or not hasattr(os, "waitid"):
        return False
    try:
        return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it has ended
        return False
