"""Sends the requests of a workload, each at its planned time (open loop).

The workload's clock runs `speed` times as fast as the wall clock. If this process sends a request late, the delay is
called the request's lag. Latencies are measured from the planned time.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic_ns
from typing import Any, Final

from headway.errors import HeadwayError
from headway.http.event_loop import run_loop
from headway.load.asking import Ask, Writer, address_of
from headway.load.line import Endpoint, greet
from headway.load.load_book import Book
from headway.load.question import Question
from headway.results.result import Result
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import NEVER, PS_PER_SECOND
from headway.workload.traffic import Traffic

LEAD_NS: Final = 200_000_000  # minimum time from the start of the run to time 0 of the workload's clock
NEAR_S: Final = 0.001  # resolution of the event loop's timers, in seconds
REACH_S: Final = 10.0  # timeout of the first connection to the endpoint, in seconds
Progress = Callable[[int], None]  # called with the number of ended requests


class Driver:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        traffic: Traffic,
        ask: Ask,
        speed: float = 1.0,
        horizon_ps: int | None = None,
        progress: Progress | None = None,
        tick_s: float | None = None,
        lines: int = 0,
    ) -> None:
        """Open `lines` connections before the run begins. If `tick_s` is set, the run begins when this machine's clock
        shows a multiple of `tick_s`."""
        self.loop, self.traffic, self.speed, self.progress = loop, traffic, speed, progress
        self.lines = lines
        self.tick_ns = 1 if tick_s is None else round(tick_s * 1e9)
        self.horizon_ps = NEVER if horizon_ps is None else horizon_ps
        self.writer = Writer(ask)
        self.endpoint = Endpoint(loop, self.writer.address)
        self.book = Book(f"{self.writer.address.host}:{self.writer.address.port}", speed, self.ps)
        self.open: dict[int, Question] = {}  # requests in flight, by their row in the recorder
        self.origin_ns = 0
        self.failure: Exception | None = None
        self.over = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None
        self._timer_ps = -1

    async def run(self) -> Book:
        """Run until the last request has ended, until the horizon, or until Ctrl-C."""
        await greet(self.endpoint, self.lines)
        self.origin_ns = -(-(monotonic_ns() + LEAD_NS) // self.tick_ns) * self.tick_ns
        with suppress(NotImplementedError, ValueError, RuntimeError):  # signal handlers work in the main thread only
            self.loop.add_signal_handler(signal.SIGINT, self.stop)
        try:
            self._arm()
            await self.over.wait()
        finally:
            with suppress(NotImplementedError, ValueError, RuntimeError):
                self.loop.remove_signal_handler(signal.SIGINT)
            self._finish()
        if self.failure is not None:
            raise self.failure
        return self.book

    def stop(self) -> None:
        self.over.set()

    def _fail(self, error: Exception) -> None:
        """Stop the run with an error, such as an invalid line of a trace."""
        self.failure = self.failure or error
        self.stop()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self.open:  # the horizon or Ctrl-C ended the run early
            self.book.ended_ps = max(self.book.ended_ps, min(self.now_ps(), self.horizon_ps))
        for question in list(self.open.values()):
            question.drop()
            self.book.record_sending(question)
        self.traffic.stop()
        self.book.connections = self.endpoint.most
        self.endpoint.close()

    def spawn(self, task: Coroutine[Any, Any, None]) -> None:
        running = self.loop.create_task(task)
        self.tasks.add(running)
        running.add_done_callback(self.tasks.discard)

    def ps(self, at_ns: int) -> int:
        """Convert the wall clock's nanoseconds to the workload's picoseconds."""
        return max(0, int((at_ns - self.origin_ns) * self.speed * 1000))

    def now_ps(self) -> int:
        return self.ps(monotonic_ns())

    def seconds(self, at_ps: int) -> float:
        """Return the wall-clock seconds from now until a time of the workload."""
        return (self.origin_ns - monotonic_ns()) / 1e9 + at_ps / PS_PER_SECOND / self.speed

    def _arm(self) -> None:
        at_ps = min(self.traffic.next_ps, self.horizon_ps)
        if at_ps == self._timer_ps:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ps = at_ps
        if at_ps == NEVER:
            if not self.open:
                self.over.set()
            return
        left = self.seconds(at_ps)
        if left < NEAR_S:
            self._timer = self.loop.call_soon(self._ring)
        else:
            self._timer = self.loop.call_later(left - NEAR_S / 2, self._ring)

    def _ring(self) -> None:
        self._timer, self._timer_ps = None, -1
        traffic, now = self.traffic, self.now_ps()
        try:
            while traffic.next_ps <= now and traffic.next_ps < self.horizon_ps:
                self._send()
        except Exception as error:
            self._fail(error)
            return
        if now >= self.horizon_ps:
            self.stop()
        else:
            self._arm()

    def _send(self) -> None:
        planned = self.traffic.take()
        request = planned.request
        row = self.book.add(request)
        due_ns = self.origin_ns + round(request.arrival_ps / self.speed / 1000)
        question = Question(self, planned, row, due_ns, self.writer.request(planned))
        self.open[row] = question
        if self.writer.talks is not None and request.session is not None:
            question.pieces = []
        if request.deadline_ps is not None:
            question.alarm = self.loop.call_later(max(0.0, self.seconds(request.deadline_ps)), question.expire)
        question.begin()

    def on_end(self, question: Question, outcome: str, why: str, at_ns: int) -> None:
        del self.open[question.row]
        try:
            at_ps = self.book.record_end(question, outcome, why, at_ns)
            self._record_answer(question, outcome == "completed")
            self.traffic.on_ended(question.planned.request, at_ps, outcome == "completed")
        except Exception as error:
            self._fail(error)
            return
        if self.progress is not None:
            self.progress(len(self.book.recorder) - len(self.open))
        if not self.open and self.traffic.next_ps == NEVER:
            self.over.set()
        else:
            self._arm()

    def _record_answer(self, question: Question, completed: bool) -> None:
        """Store the answer, because the next turn of the session repeats it."""
        talks, recorder, row = self.writer.talks, self.book.recorder, question.row
        if talks is not None:
            tokens = recorder.prompt_tokens[row] + question.visible_tokens(recorder.output_tokens[row])
            talks.record_answer(question.planned, question.text() if completed else "", tokens)


def drive(traffic: Traffic, ask: Ask, *options: Any) -> Book:
    """Send a workload to an endpoint in a new event loop. `options` are those of `Driver`, in order."""

    async def run() -> Book:
        return await Driver(asyncio.get_running_loop(), traffic, ask, *options).run()

    return run_loop(run())


def load(
    ask: Ask,
    scenario: Source = DEFAULT,
    *,
    overrides: str | tuple[str, ...] = (),
    speed: float = 1.0,
    progress: Progress | None = None,
    tick_s: float | None = None,
    lines: int = 0,
) -> Result:
    """Send a scenario's workload to an endpoint and return what clients saw. The run uses only these parts of the
    scenario: the workload, the seed, the SLO targets, `warmup` and `horizon`. The workload's clock runs `speed` times
    as fast as the wall clock. For `tick_s` and `lines` see `Driver`."""
    loaded = Scenario.load(scenario, overrides)
    traffic = loaded.workload.plan(loaded.seed.workload, loaded.cluster.default_model())
    book = drive(traffic, ask, speed, loaded.horizon_ps, progress, tick_s, lines)
    return book.result(loaded, traffic)


def reach(url: str) -> None:
    """Raise an error if nothing listens at the URL, before a workload is sent there."""
    address = address_of(url)
    try:
        socket.create_connection((address.host, address.port), timeout=REACH_S).close()
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        why = getattr(error, "strerror", None) or str(error)
        raise HeadwayError(f"URL: {url} cannot be reached ({why}). Check that the endpoint is running.") from None
