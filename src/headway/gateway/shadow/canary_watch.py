"""Watches the canary, and ends it if its requests have worse results than the other requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headway.config.units import positive_duration_ps
from headway.gateway.shadow.canary import CANARY, Choice
from headway.gateway.shadow.canary_trial import SIDES, Trial
from headway.types import PS_PER_SECOND, Json

if TYPE_CHECKING:
    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane
    from headway.gateway.services import EndListener

EVERY_S: Final = 0.25
GONE: Final = "the client has gone"
log = logging.getLogger("headway.gateway")


class CanaryWatch:
    def __init__(self, clock: Clock, plane: Plane, on_end: list[EndListener], halt: Callable[[str], None]) -> None:
        """`on_end` lists the listeners for ended requests. `halt` ends the canary in all processes, with a reason."""
        self.clock, self.plane, self.on_end, self.halt = clock, plane, on_end, halt
        self.spec: Json | None = None
        self.trial: Trial | None = None
        self.choice = Choice(0.0, "request")
        self.stopped: str | None = None  # reason why the last canary was stopped; None if it was not stopped
        self.stops = 0
        self._since_ps = 0
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, why: str) -> None:
        """React when the policies in force have changed or the canary has ended. `why` is the reason."""
        spec = self.plane.policies.get(CANARY)
        if why.startswith("halt: ") and self.spec is not None:
            self.stopped, self.stops = why.removeprefix("halt: "), self.stops + 1
            log.warning("canary: stopped (%s); the policies in force decide on all requests", self.stopped)
        if spec == self.spec and why != "swap":
            return
        self._end()
        if spec is None:
            return
        slo = spec["slo"]
        self.spec, self.stopped = spec, None
        self.trial = Trial(None if slo is None else positive_duration_ps(slo["ttft"], "canary.slo.ttft"))
        self.choice, self._since_ps = Choice(spec["share"], spec["by"]), self.clock.now_ps()
        self.on_end.append(self._on_end)
        self._timer = self.clock.call_later(EVERY_S, self._look)
        log.info("canary: decides on %.3g %% of %ss: %s", 100 * spec["share"], spec["by"], spec["policies"])

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.on_end.remove(self._on_end)
        self.spec = None  # keep `trial`, because the status shows the ended trial

    async def start(self) -> None:
        self.follow("start")

    async def stop(self) -> None:
        self._end()

    def _side(self, request: Any) -> str:
        return SIDES[self.choice(request)]

    def _on_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        request = exchange.request
        if self.trial is None or request.arrival_ps < self._since_ps:
            return
        completed, abandoned = outcome == "completed", why == GONE
        # An answer without streaming has its first token at its end. A client that disconnected has waited until now.
        first_ps = exchange.first_ps if exchange.first_ps >= 0 or not (completed or abandoned) else now_ps
        ttft_ps = first_ps - request.arrival_ps if first_ps >= 0 else -1
        self.trial.record_end(self._side(request), now_ps, ttft_ps, not (completed or abandoned))

    def _look(self) -> None:
        assert self.spec is not None and self.trial is not None
        self._timer = self.clock.call_later(EVERY_S, self._look)
        now_ps = self.clock.now_ps()
        waiting: dict[str, list[int]] = {side: [] for side in SIDES}
        for flight in self.plane.control.flights.by_id.values():
            if flight.first_ps < 0 and flight.request.arrival_ps >= self._since_ps:
                waiting[self._side(flight.request)].append(now_ps - flight.request.arrival_ps)
        for rule in self.spec["stop"]:
            why = self.trial.verdict(rule, now_ps, waiting)
            if why is not None:
                self.halt(why)
                return

    # --- reports -----------------------------------------------------------------------------------------------------

    def status(self) -> Json | None:
        trial = self.trial
        if trial is None:
            return None
        spec = self.spec
        ttft, errors = trial.difference(0), trial.difference(1)
        recent = trial.recent(self.clock.now_ps())
        return {
            "running": spec is not None,
            "stopped": self.stopped,
            "share": 0.0 if spec is None else spec["share"],
            "by": None if spec is None else spec["by"],
            "policies": None if spec is None else spec["policies"],
            "arms": {
                side: {
                    "requests": tally.ended,
                    "errors": tally.errors,
                    "slo_missed": tally.missed if trial.slo_ps is not None else None,
                    "ttft_mean_s": tally.mean_s,
                    "ttft_p90_s": recent[side].quantile_ps() / PS_PER_SECOND if recent[side].first else None,
                }
                for side, tally in trial.total.items()
            },
            "pairs": len(trial.pairs),
            "ttft_difference_s": None if ttft is None else [ttft.mean, ttft.low, ttft.high],
            "error_difference": None if errors is None else [errors.mean, errors.low, errors.high],
        }

    def figures(self) -> dict[str, dict[str, float]]:
        """Return values by metric and labels, in the same form as the gateway's metrics."""
        trial = self.trial
        by_metric: dict[str, dict[str, float]] = {
            "canary_share": {"": 0.0 if self.spec is None else self.spec["share"]},
            "canary_stops": {"": self.stops},
        }
        if trial is None:
            return by_metric
        for side, tally in trial.total.items():
            values = {
                "requests": tally.ended,
                "errors": tally.errors,
                "slo_missed": tally.missed if trial.slo_ps is not None else 0,
                "first_tokens": tally.first,
                "ttft_seconds": tally.sum_ps / PS_PER_SECOND,
            }
            for name, value in values.items():
                by_metric.setdefault(f"canary_{name}", {})[side] = value
        ttft = trial.difference(0)
        if ttft is not None and ttft.low is not None and ttft.high is not None:
            bounds = {"mean": ttft.mean, "low": ttft.low, "high": ttft.high}
            by_metric["canary_ttft_difference_seconds"] = bounds
        return by_metric
