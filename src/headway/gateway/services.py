"""The parts of a gateway that its exchanges use."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.engines.engine_health import Health
    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.recent_decisions import Reasons
    from headway.gateway.plane import Plane
    from headway.gateway.settings import Timeouts
    from headway.gateway.waiting import Waiting

EndListener = Callable[["Exchange", int, str, str], None]  # arguments: exchange, time in ps, outcome, reason
log = logging.getLogger("headway.gateway")


class Services(Struct):
    """Shared by all exchanges of a gateway."""

    clock: Clock
    plane: Plane
    waiting: Waiting
    fleet: Fleet
    health: Health
    reasons: Reasons
    timeouts: Timeouts
    retries: int
    count_retry: Callable[[str], None]
    on_end: list[EndListener] = []  # called when an exchange has ended
    # Sends an exchange to a prefill and a decode engine. If None, the decode engine also computes the prompt.
    split: Callable[[Exchange], None] | None = None

    def report_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        waiting = self.waiting
        waiting.exchanges.pop(exchange.request.id, None)
        for listener in self.on_end:
            try:
                listener(exchange, now_ps, outcome, why)
            except Exception:  # a failing observer must not delay the answer
                log.exception("an observer raised an exception at the end of a request")
        waiting.nudge()
