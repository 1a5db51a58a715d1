"""Health of engines. Unhealthy and ejected engines receive no requests.

`Checks` polls the health path of each engine. `Health` counts failed requests. A request fails if its answer is not
complete. Several failures in a row, or a share of the recent requests, eject the engine for some seconds. After a
passed check, one request is the engine's trial: if it succeeds, the engine serves again; if it fails, the engine is
ejected for twice the time. `Health` never ejects the last engine of a model, because a request that fails on every
engine could otherwise eject them all.

An engine that hangs sends nothing, although it owes answers. `Health` ejects it, asks other engines for the answers
that have not begun, and ends the others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Final

from msgspec import Meta, Struct

from headway.config.keys import PositiveSeconds
from headway.gateway.engines.follower import Follower, Poller, PollFailed, turn
from headway.http.open_files import NO_FILES, OpenFiles
from headway.types import SERVING

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend, Fleet
    from headway.gateway.engines.engine_pace import Owed, Trial
    from headway.gateway.live_clock import Clock
    from headway.gateway.settings import Timeouts

    Probe = Callable[[Backend], Awaitable[str]]

log = logging.getLogger("headway.gateway")
Few = Annotated[int, Meta(ge=1, le=1000)]
SOON_S: Final = 1.0  # interval of checks for new, unhealthy and silent engines
SUSPICIOUS_S: Final = 1.0  # if an engine owes answers but sends nothing for this time, it is checked soon
CHECK: Final = "check"  # the reporter of health checks, in `Backend.unready`
WINDOW: Final = 20  # number of recent requests of which `failed_share` may fail
REMEMBERED: Final = (1 << WINDOW) - 1
MOST_DOUBLINGS: Final = 20
EARLY_S: Final = 1.0  # least time between two ejections of an engine that end early
TIMER_S: Final = 0.01  # timers may be early by less than this time
LATE, SILENT = "no answer in time", "silent for too long"


class HealthSettings(Struct, frozen=True):
    """The section `health:` of a gateway's file."""

    failures: Annotated[Few, "failed requests in a row after which the gateway ejects an engine"] = 3
    failed_share: Annotated[
        float, Meta(gt=0, le=1), "share of its last 20 requests that must fail before the gateway ejects an engine"
    ] = 0.5
    eject_s: Annotated[
        PositiveSeconds, "time for which an ejected engine receives no requests; doubled after each failed trial"
    ] = 5.0
    eject_most_s: Annotated[PositiveSeconds, "longest time of one ejection"] = 60.0
    path: Annotated[str | None, "path of the health check, or null for no checks"] = "/health"
    interval_s: Annotated[PositiveSeconds, "time between two checks of an engine"] = 5.0
    timeout_s: Annotated[PositiveSeconds, "time limit of one check"] = 2.0
    fall: Annotated[Few, "failed checks in a row after which an engine is unhealthy"] = 3
    rise: Annotated[Few, "passed checks in a row after which it is healthy again"] = 2


class Pulse:
    """Whether an engine is up, judging by its health checks. Several equal results in a row are needed to change the
    state. Until the first check has passed, a single result is enough."""

    def __init__(self) -> None:
        self.up = True
        self.answered = False
        self.row = 0  # number of consecutive checks whose result contradicts `up`
        self.began = 0.0  # time at which the last check began
        self.early = asyncio.Event()  # set to check before the next interval ends

    def turned(self, passed: bool, fall: int, rise: int) -> bool:
        """Count the result of a check. Return whether this result turns the engine's state from up to down, or from
        down to up."""
        needed = (fall if self.up else rise) if self.answered else 1
        self.answered = self.answered or passed
        if passed == self.up:
            self.row = 0
            return False
        self.row += 1
        if self.row < needed:
            return False
        self.up, self.row = passed, 0
        return True


class Checks:
    def __init__(self, clock: Clock, fleet: Fleet, health: Health, settings: HealthSettings) -> None:
        self.clock, self.fleet, self.health, self.settings = clock, fleet, health, settings
        self.poller = Poller(settings.timeout_s, 0)
        self.follower = Follower(clock, fleet, self.poller, self._follow, Pulse)
        self.pulses = self.follower.states

    async def start(self) -> None:
        if self.settings.path is not None:
            await self.follower.start()
            self.health.probe, self.health.suspect = self.check, self.suspect

    async def stop(self) -> None:
        self.health.probe, self.health.suspect = None, lambda backend: None
        await self.follower.stop()

    async def _follow(self, backend: Backend) -> None:
        pulse = self.pulses[backend]
        await asyncio.sleep(min(self.settings.interval_s, SOON_S) * turn(backend))
        while True:
            interval = self.settings.interval_s
            soon = min(interval, SOON_S)
            pulse.began = self.clock.seconds()
            why = await self.check(backend)
            if why != NO_FILES and pulse.turned(not why, self.settings.fall, self.settings.rise):
                log.warning("%s: %s", backend.name, f"health checks fail: {why}" if why else "health checks pass again")
                if not why:  # the engine has recovered, whatever it still owes
                    backend.pace.silent_s = 0.0
                self.fleet.ready(backend.name, not why, why, CHECK)
            left = pulse.began + (interval if pulse.up and not pulse.row else soon) - self.clock.seconds()
            pulse.early.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(pulse.early.wait(), max(0.0, left))

    def change(self, settings: HealthSettings) -> None:
        """Use other settings from now on."""
        before, self.settings, self.health.settings = self.settings.path, settings, settings
        self.poller.client.timeout_s = settings.timeout_s
        if before is not None and settings.path is None:
            self.clock.spawn(self._end())
        elif before is None and settings.path is not None:
            self.clock.spawn(self.start())

    async def _end(self) -> None:
        await self.stop()
        for backend in self.fleet.members:
            self.fleet.ready(backend.name, True, reporter=CHECK)

    def suspect(self, backend: Backend) -> None:
        """Check an engine soon, because it sends nothing."""
        pulse = self.pulses.get(backend)
        if pulse is not None and self.clock.seconds() - pulse.began >= SOON_S:
            pulse.early.set()

    async def check(self, backend: Backend) -> str:
        """Return why the check failed; "" if it passed. A 404 passes: the engine answers, but has no such path. The
        result NO_FILES says nothing about the engine."""
        path = self.settings.path
        if path is None:  # a reload has ended the checks
            return ""
        try:
            status = await self.poller.status(backend, path)
        except PollFailed as error:
            if self.health.open_files.are_short(error):
                return NO_FILES
            backend.unanswered = True
            return str(error)
        except Exception as error:  # an uncaught exception would end the checks of this engine
            log.exception("%s: the health check raised an exception", backend.name)
            return type(error).__name__
        backend.unanswered = False
        return f"status {status}" if status >= 500 else ""


class Health:
    def __init__(self, clock: Clock, fleet: Fleet, settings: HealthSettings, timeouts: Timeouts) -> None:
        self.clock, self.fleet, self.settings, self.timeouts = clock, fleet, settings, timeouts
        self.probe: Probe | None = None  # checks an ejected engine: returns why it cannot serve yet, or ""
        self.suspect: Callable[[Backend], None] = lambda backend: None  # checks a silent engine soon
        self.open_files = OpenFiles()
        self._swept = clock.seconds()

    # --- outcomes of requests ----------------------------------------------------------------------------------------

    def record_status(self, backend: Backend, status: int) -> None:
        """Record a complete answer with this status."""
        if status >= 500:
            self.record_failure(backend, f"status {status}")
            return
        backend.failures = 0
        backend.outcomes = backend.outcomes << 1 & REMEMBERED
        if backend.on_trial:
            log.info("%s: a request has succeeded, so the engine serves again", backend.name)
            self._end_trial(backend)
            backend.ejections = 0

    def record_failure(self, backend: Backend, why: str) -> None:
        """Record a request without a complete answer. After several failures, eject the engine."""
        backend.trouble.note(backend.name, why)
        backend.failures += 1
        backend.outcomes = (backend.outcomes << 1 | 1) & REMEMBERED
        in_row = backend.failures >= self.settings.failures
        if in_row or backend.on_trial or backend.outcomes.bit_count() >= self.settings.failed_share * WINDOW:
            self.eject(backend, why)

    def eject(self, backend: Backend, why: str) -> bool:
        """Send the engine no requests for a while, unless it is the last engine of a model. Return whether the engine
        is ejected."""
        if backend.ejected:
            return True
        if not self.fleet.spares(backend, or_on_trial=True):
            self._end_trial(backend)
            return False
        backend.ejected, backend.on_trial, backend.trial, backend.outcomes = True, False, None, 0
        seconds = min(self.settings.eject_s * 2.0**backend.ejections, self.settings.eject_most_s)
        seconds = max(seconds, self.settings.eject_s)
        backend.ejected_until = self.clock.seconds() + seconds
        backend.ejections = min(backend.ejections + 1, MOST_DOUBLINGS)
        log.warning("%s: ejected for %g s, because requests fail: %s", backend.name, seconds, why)
        self.fleet.settle(backend)
        self._readmit_later(backend, seconds)
        return True

    # --- trials of ejected engines -----------------------------------------------------------------------------------

    def _readmit_later(self, backend: Backend, seconds: float) -> None:
        self.clock.call_later(seconds, lambda: self.clock.spawn(self._readmit(backend)))

    async def _readmit(self, backend: Backend) -> None:
        """Check an ejected engine. If the check passes, or if no checks are configured, send the engine one request as
        a trial. Otherwise check again later."""
        if self.fleet.names.get(backend.name) is not backend or not backend.ejected:
            return
        if self.clock.seconds() < backend.ejected_until - TIMER_S:  # this is the timer of an earlier ejection
            return
        if self.probe is not None and await self.probe(backend):
            self._readmit_later(backend, self.settings.eject_s)
            return
        log.info("%s: the ejection ends with a trial, which is the next request", backend.name)
        backend.ejected, backend.on_trial, backend.failures = False, True, 0
        backend.pace.silent_s = 0.0
        self.fleet.settle(backend)

    def readmit_early(self, model: str, tried: Collection[Backend]) -> None:
        """If all engines that serve a model have failed a request (`tried`), end the ejection of another one, if it
        passes its checks: the engine may have recovered. One more failure ejects it again."""
        now, fleet = self.clock.seconds(), self.fleet
        others = [
            other
            for other in fleet.names.values()
            if other not in tried and (not other.spec.models or model in other.spec.models)
        ]
        ejected = [
            other
            for other in others
            if other.ejected
            and not (other.unready or other.unanswered or other.name in fleet.cordoned)
            and other.pace.silent_s <= SUSPICIOUS_S  # a request to a hung engine would be lost
            and now - other.early_at >= EARLY_S
        ]
        if not ejected or any(other.view.state in SERVING for other in others):
            return
        backend = min(ejected, key=lambda other: other.ejections)
        log.warning("%s: the ejection ends early, because the other engines fail", backend.name)
        backend.ejected, backend.early_at, backend.failures = False, now, self.settings.failures - 1
        fleet.settle(backend)

    def begin_trial(self, backend: Backend, exchange: Trial) -> bool:
        """Make the exchange the trial of its engine. Return False if another request is the trial already. The last
        engine of a model gets all requests without a trial."""
        if backend.trial is not None:
            return False
        if not self.fleet.spares(backend):
            self._end_trial(backend)
            return True
        backend.trial = exchange
        self.fleet.settle(backend)
        return True

    def leave_trial(self, backend: Backend) -> None:
        """Handle the end of a trial that showed nothing, such as a client that disconnected: another trial follows."""
        backend.trial = None
        self.fleet.settle(backend)

    def _end_trial(self, backend: Backend) -> None:
        if backend.on_trial:
            backend.on_trial, backend.trial = False, None
            self.fleet.settle(backend)

    # --- engines that hang -------------------------------------------------------------------------------------------

    def sweep(self, now: float) -> None:
        """Give up on engines that hang. Called periodically, after all exchanges have said what engines owe them."""
        passed_s, self._swept = now - self._swept, now
        for backend in self.fleet.members:
            trial = backend.trial
            if trial is not None:
                streams = trial.streams_for_s() > self.settings.eject_s
                if streams:
                    log.info("%s: streams without a break, so the engine serves again", backend.name)
                    backend.failures = self.settings.failures - 1  # so that one more failure ejects the engine again
                if streams or not self.fleet.spares(backend):
                    self._end_trial(backend)
            owing = backend.pace.sweep(now, passed_s)
            if owing:
                self._judge(backend, owing, now)

    def _judge(self, backend: Backend, owing: list[Owed], now: float) -> None:
        pace, timeouts = backend.pace, self.timeouts
        if pace.silent_s > SUSPICIOUS_S:
            self.suspect(backend)
        hangs = pace.silent_s > SUSPICIOUS_S and backend.unanswered and CHECK in backend.unready
        if hangs or pace.stalls(owing, timeouts, now):
            ejected = self.eject(backend, f"no data for {pace.silent_s:.0f} s")
            for answer in owing:
                overdue = now - answer.since > timeouts.first_byte_s
                if answer.sent or ejected or not hangs or overdue:  # the last engine of a model may still wake up
                    answer.give_up(SILENT if answer.sent else LATE, elsewhere=ejected)
            return
        if not backend.ejected and pace.dawdles(timeouts):
            self.eject(backend, f"no data for {pace.silent_s:.0f} s")
        for answer in owing:
            if now - answer.since > (timeouts.silence_s if answer.sent else timeouts.first_byte_s):
                why = SILENT if answer.sent else LATE
                self.record_failure(backend, why)
                answer.give_up(why, elsewhere=True)
