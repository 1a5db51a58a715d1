"""How often policies have failed while they decided, and what became of them."""

from __future__ import annotations

import logging
from typing import Any, Final

from headway.config.wording import one_line
from headway.types import Json

LOGGED: Final = 20  # failures, of one arm; beyond them every thousandth
log = logging.getLogger("headway.gateway")


class Failures:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {"live": 0, "canary": 0}
        self.last: str | None = None
        self.back: Json | None = None  # the last time that others took over

    def add(self, arm: str, error: Exception) -> None:
        count = self.counts[arm] = self.counts.get(arm, 0) + 1
        self.last = one_line(error)
        if count <= LOGGED or count % 1000 == 0:
            log.warning("policies: %s failed, others decide (%d so far): %s", arm, count, self.last)

    def fell_back(self, version: int, routing: Any) -> None:
        self.back = {"version": version, "routing": routing, "why": self.last}
        log.error("policies: those in force failed too often; version %d takes over: routing %s", version, routing)

    def status(self) -> Json:
        return {"count": dict(self.counts), "last": self.last, "fell_back": self.back}
