"""Requests that wait for a decision of the plane, and the timer that wakes the plane."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from headway.types import NEVER, Request

if TYPE_CHECKING:
    from headway.control.flights import Answer
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Decided, Plane

log = logging.getLogger("headway.gateway")


class Waiter(Protocol):
    """A request that waits for a decision."""

    @property
    def request(self) -> Request: ...

    def on_decision(self, answer: Answer) -> None: ...

    def fail(self) -> None: ...


class Waiting:
    def __init__(self, clock: Clock, plane: Plane) -> None:
        self.clock, self.plane = clock, plane
        self.exchanges: dict[int, Waiter] = {}  # waiting requests, by request id
        self._waking = False
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ps = NEVER

    def __len__(self) -> int:
        return len(self.exchanges)

    def add(self, exchange: Waiter, queued: bool) -> None:
        """Keep a request until the plane decides on it."""
        self.exchanges[exchange.request.id] = exchange
        if queued:
            self.wake_soon()

    def nudge(self) -> None:
        """Wake the plane soon, because something has changed. If no request waits, do nothing."""
        if self.exchanges:
            self.wake_soon()

    def wake_soon(self) -> None:
        """Wake the plane at the end of this iteration of the event loop."""
        if not self._waking:
            self._waking = True
            self.clock.call_soon(self.wake)

    def wake(self) -> None:
        self._waking = False
        self.carry_out(self.plane.wake(self.clock.now_ps()))

    def carry_out(self, decisions: Decided) -> None:
        """Give each waiting request its decision."""
        for request, answer in decisions:
            exchange = self.exchanges.pop(request.id, None)
            if exchange is None:
                continue
            try:
                exchange.on_decision(answer)
            except Exception:  # the other decisions must still be carried out
                log.exception("the gateway failed to carry out the decision on a waiting request")
                exchange.fail()
        self.set_alarm()

    def follow_alarm(self) -> None:
        """Move the timer if the plane's next wake-up has changed."""
        if self.plane.next_ps != self._alarm_ps:
            self.set_alarm()

    def set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ps = self.plane.next_ps
        if self._alarm_ps != NEVER:
            delay_s = max(0.0, (self._alarm_ps - self.clock.now_ps()) / 1e12)
            self._alarm = self.clock.call_later(delay_s, self.wake)
