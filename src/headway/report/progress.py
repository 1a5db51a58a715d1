"""Progress on stderr: a bar on a terminal after two seconds of work, otherwise a line every ten seconds."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0
FRAME_S = 0.2
SWITCH = "HEADWAY_PROGRESS"  # name of an environment variable; if its value is "off", no lines are printed
LINE_S = 10.0  # interval in seconds of the lines that replace the bar if stderr is not a terminal


class Bar:
    """Progress of a command. After an interrupt (Ctrl-C), a note says how much was finished and what was `kept`.

    A timer's signal draws the bar, so that it moves even if no progress is reported. A thread could draw it too, but
    then worker processes could not be forked.
    """

    KEPT: Final = "Nothing was written."

    def __init__(self, total: int | None, unit: str, kept: str = KEPT) -> None:
        self.total = total
        self.unit = unit
        self.kept = kept
        self.finished = 0
        self.watched = sys.stderr is not None and sys.stderr.isatty()
        self.bar: Progress | None = None
        self._begun_s = time.monotonic()
        self._due = self._begun_s + (PATIENCE_S if self.watched else LINE_S)
        self._drawing = False
        self._before: Any = None  # the signal handler to restore; None if there is no timer

    def __enter__(self) -> Self:
        if hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, lambda *_: self._draw())
            first, interval = (PATIENCE_S, FRAME_S) if self.watched else (LINE_S, LINE_S)
            signal.setitimer(signal.ITIMER_REAL, max(first, 0.001), interval)
        return self

    def update(self, finished: int, total: int | None = None) -> None:
        self.finished, self.total = finished, total or self.total
        self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if self._drawing or now < self._due:  # the timer's signal may arrive while `update` draws the bar
            return
        self._drawing = True
        try:
            self._due = now + (FRAME_S if self.watched else LINE_S)
            if not self.watched:
                self._print(now)
                return
            if self.bar is None:
                self.bar = self._start()
            self.bar.update(self.task, completed=self.finished, total=self.total, text=self._text())
            self.bar.refresh()
        finally:
            self._drawing = False

    def _print(self, now: float) -> None:
        if sys.stderr is not None and os.environ.get(SWITCH) != "off":
            with contextlib.suppress(OSError):
                print(f"headway: {self._text()}, {_clock(now - self._begun_s)} so far", file=sys.stderr, flush=True)

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self.task = bar.add_task("", total=self.total, text="")
        bar.start()
        return bar

    def _text(self) -> str:
        if self.total is not None:
            return f"{self.finished:,}/{self.total:,} {self.unit}"
        return f"{self.finished:,} {self.unit}" if self.finished else self.unit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        if self.bar is not None:
            self.bar.stop()
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"{self._text()}. {self.kept}")


class SweepProgress(Bar):
    """Progress of a sweep: the finished runs, how many of them were reused, and the time left. On a terminal, or with a
    folder for `output`, it prints the number of runs first."""

    def __init__(self, say: Callable[[str], None], output: Path | None = None) -> None:
        kept = f"Finished runs are in {output}; the same command continues." if output else Bar.KEPT
        super().__init__(None, "runs", kept)
        self._say = say
        self._aloud = output is not None or self.watched
        self._begun: float | None = None
        self._reused = 0

    def __call__(self, finished: int, total: int, reused: int) -> None:
        if self._begun is None:
            self._begun, self._reused = time.monotonic(), reused
            if self._aloud:
                there = f", {reused:,} of them already done" if reused else ""
                self._say(f"{total:,} run{'s' * (total != 1)}{there}")
        self.update(finished, total)

    def _text(self) -> str:
        reused = f", {self._reused:,} reused" if self._reused else ""
        return f"{super()._text()}{reused}{self._time_left()}"

    def _time_left(self) -> str:
        """Estimate the time left from the runs so far."""
        run = self.finished - self._reused
        if self._begun is None or run < 1 or self.total is None:
            return ""
        return f", about {_clock((time.monotonic() - self._begun) / run * (self.total - self.finished))} left"


def _clock(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
