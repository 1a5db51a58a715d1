"""Signals that engines report: metrics pages that the gateway polls, and reports of agents.

A value is fresh for a limited time. If an engine has no fresh load values, the plane uses the gateway's own counts, as
for an engine that has never reported. For its power, busy fraction and hit rate, the plane then uses the mean of the
other engines, so that a missing value neither attracts nor repels requests.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

from msgspec import Meta, Struct

from headway.config.dated_defaults import CURRENT, SETS
from headway.config.keys import INTERNAL, Doc, PositiveSeconds, Seconds
from headway.config.section import read
from headway.errors import HeadwayError
from headway.gateway.engines.follower import Follower, Poller, PollFailed, turn
from headway.gateway.signals.reading import LOAD, Reading, clean
from headway.gateway.signals.scrape import parse
from headway.types import PS_PER_SECOND, LoadRule
from headway.views.instance import MEAN_IF_MISSING

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.plane import Plane

LATE_S: Final = 0.002  # poll this long after a tick, because timers and clocks are not exact
Counts = tuple[int, int]  # numbers of requests so far: those sent to an engine, and those that have left the engine
log = logging.getLogger("headway.gateway")


class SignalSettings(Struct, frozen=True):
    """The section `signals:` of a gateway's file: a mapping, or `off`."""

    interval_s: Annotated[PositiveSeconds, "time between two polls of an engine's metrics page"] = 0.5
    timeout_s: Annotated[PositiveSeconds, "time limit of one poll"] = 2.0
    stale_s: Annotated[PositiveSeconds, "age at which the values of a page become stale"] = 5.0
    heartbeat_stale_s: Annotated[PositiveSeconds, "age at which an agent's report becomes stale"] = 15.0
    page_bytes: Annotated[int, Meta(ge=1024, le=2**27), "most bytes of a page"] = 4 * 1024 * 1024
    watts: Annotated[str | None, "another Prometheus series that has the power in watts"] = None
    ticks_s: Annotated[
        Seconds | None,
        Doc(
            "for engines that update their pages at multiples of `interval`: the delay after each multiple at which "
            "the gateway applies the pages of all engines together",
            default="none: each page applies when it arrives, and polls are spread over the interval",
        ),
    ] = None
    effective_load: Annotated[
        LoadRule | None,
        Doc(
            "how policies see the load of an engine. snapshot: the requests in its last report, plus the requests "
            "sent since; outstanding: also minus the requests that have ended since, but at least the requests in "
            "flight",
            default=SETS[CURRENT].effective_load,
        ),
    ] = None  # None: use the value of the gateway's set of defaults
    on: Annotated[bool, INTERNAL] = True
    short_form: ClassVar[Any] = bool  # YAML reads `off` as false

    @classmethod
    def read(cls, data: Any, where: str = "signals") -> SignalSettings:
        """Read the section. With `signals: off`, the gateway polls no pages, but still accepts agents' reports."""
        if data is False:
            return cls(on=False)
        return read(cls, {} if data is None or data is True else data, where)

    def validate(self, where: str) -> SignalSettings:
        if self.stale_s <= self.interval_s:
            raise HeadwayError(f"{where}.stale: must be longer than `interval`; otherwise signals are always stale.")
        if self.ticks_s is not None and not 0 <= self.ticks_s < self.interval_s:
            raise HeadwayError(f"{where}.ticks: must be shorter than `interval`.")
        return self


class EngineSignals:
    """Polls the engines' metrics pages, and keeps one reading for each engine."""

    def __init__(self, clock: Clock, plane: Plane, fleet: Fleet, settings: SignalSettings) -> None:
        self.clock, self.plane, self.fleet, self.settings = clock, plane, fleet, settings
        self.poller = Poller(settings.timeout_s, settings.page_bytes)
        follow = self._take_turns if settings.ticks_s is None else self._follow_ticks
        self.follower = Follower(clock, fleet, self.poller, follow, Reading)
        self.readings = self.follower.states
        self.pages = self.misses = 0

    async def start(self) -> None:
        await self.follower.start()

    async def stop(self) -> None:
        await self.follower.stop()

    async def _take_turns(self, backend: Backend) -> None:
        """Poll the engine's page at each interval, starting after an offset that depends on the engine's place."""
        interval = self.settings.interval_s
        await asyncio.sleep(interval * turn(backend))
        due = self.clock.seconds()
        while True:
            if self.settings.on and backend.spec.metrics is not None:
                await self._poll(backend, backend.spec.metrics)
            self.check(backend)
            now = self.clock.seconds()
            due = max(due + interval, now)
            await asyncio.sleep(due - now)

    async def _follow_ticks(self, backend: Backend) -> None:
        """Poll the engine's page just after each tick, and apply the page `ticks_s` seconds after the tick. A tick is a
        time at which the gateway's clock shows a multiple of the polling interval."""
        interval, due = self.settings.interval_s, self.settings.ticks_s or 0.0
        while True:
            tick = self.clock.seconds() // interval * interval + interval
            await self._until(tick)
            then = backend.view.routed, self.plane.places.ended(backend.place)
            await self._until(tick + LATE_S)
            if self.settings.on and backend.spec.metrics is not None:
                await self._poll(backend, backend.spec.metrics, tick + due, then)
            self.check(backend)

    async def _until(self, at: float) -> None:
        await asyncio.sleep(max(0.0, at - self.clock.seconds()))

    async def _poll(self, backend: Backend, path: str, due: float = 0.0, then: Counts | None = None) -> None:
        """Poll a page and apply it at the time `due`, or at once if `due` is 0. `then` has the gateway's counts at the
        tick."""
        try:
            page = await self.poller.text(backend, path)
            if due:
                await self._until(due)
            signals = self.take_page(backend, page, then)
        except PollFailed as error:
            self.misses += 1
            log.debug("%s: the poll failed: %s", backend.name, error)
        except Exception:  # an exception must not end the polls of this engine
            self.misses += 1
            log.exception("%s: the poll failed", backend.name)
        else:
            self.pages += 1
            if not any(name in signals for name in LOAD):
                log.debug("%s: its metrics page has no load signals", backend.name)

    # --- figures -----------------------------------------------------------------------------------------------------

    def take_page(self, backend: Backend, page: str, then: Counts | None = None) -> dict[str, Any]:
        """Apply a metrics page. `then` has the gateway's counts at the time of the page's values. If `then` is given,
        increase the reported queue by the number of requests that were sent since that time, and report to the plane
        how many requests have ended since that time."""
        now, reading = self.clock.now_ps(), self.readings.setdefault(backend, Reading())
        figures = parse(page, backend.spec.engine, self.settings.watts, backend.spec.rank)
        block_bytes = backend.spec.kv_block_bytes
        signals = reading.signals_of(figures, backend.view, self.plane.block_tokens, now, block_bytes)
        if "adapter_slots" in figures:
            self.fleet.set_adapter_slots(backend, figures["adapter_slots"])
        finished = 0
        if then is not None and "queued" in signals:
            routed, ended = then
            signals["queued"] += backend.view.routed - routed
            finished = self.plane.places.ended(backend.place) - ended
        reading.take(signals, now, round(self.settings.stale_s * PS_PER_SECOND), True)
        self._report(backend, now, finished)
        return signals

    def take_report(self, name: str, signals: Mapping[str, Any], age_s: float = 0.0) -> None:
        """Apply an agent's report of its engine. The report may have queued, running, kv_used, kv_blocks, busy (0 to
        1), watts and hit_rate."""
        backend = self.fleet.names.get(name)
        if backend is None:
            return
        now, reading = self.clock.now_ps(), self.readings.setdefault(backend, Reading())
        lasts = round(self.settings.heartbeat_stale_s * PS_PER_SECOND)
        reading.take(clean(signals), now - round(age_s * PS_PER_SECOND), lasts, False)
        self._report(backend, now)

    def check(self, backend: Backend) -> None:
        """Drop stale values. Called after each poll."""
        now, reading = self.clock.now_ps(), self.readings[backend]
        old = [name for name, figure in reading.figures.items() if figure.until <= now]
        for name in old:
            del reading.figures[name]
            if name == "watts":
                reading.watts.samples.clear()
        if any(name in reading.figures for name in LOAD):
            if old:
                self._report(backend, now)
            return
        if reading.reporting:
            log.warning("%s: its load signals are stale; the gateway uses its own counts instead", backend.name)
        neutral = self.neutral(now)
        if reading.reporting or old or (neutral and now - reading.neutral_at >= self.settings.stale_s * PS_PER_SECOND):
            reading.reporting, reading.neutral_at = False, now
            fresh = {name: reading.figures[name].value for name in MEAN_IF_MISSING if name in reading.figures}
            self.plane.stale(now, backend.place, {**neutral, **fresh})

    def _report(self, backend: Backend, now: int, finished: int = 0) -> None:
        reading = self.readings[backend]
        fresh = reading.fresh(now)
        if not fresh:
            return
        if not reading.reporting and any(name in fresh for name in LOAD):
            reading.reporting = True
            log.info("%s: its load signals are fresh", backend.name)
        self.plane.report(now, backend.place, {**self.neutral(now), **fresh}, finished)

    def neutral(self, now: int) -> dict[str, float]:
        """Return the mean of each signal over the engines that report it."""
        fresh = [reading.fresh(now) for reading in self.readings.values()]
        known = {name: [signals[name] for signals in fresh if name in signals] for name in MEAN_IF_MISSING}
        return {name: math.fsum(values) / len(values) for name, values in known.items() if values}

    def ages(self, backend: Backend) -> dict[str, float]:
        """Return the age of each signal of an engine, in seconds."""
        reading = self.readings.get(backend)
        return {} if reading is None else reading.ages(self.clock.now_ps())
