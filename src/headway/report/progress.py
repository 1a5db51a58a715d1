"""Progress bars on stderr: only where somebody watches, and only once it takes more than two seconds."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_S = 2.0
FRAME_S = 0.2


class Bar:
    """A progress bar that stays away from short work and from files.

    A timer's signal draws it, so that it moves while nothing is reported. A thread would do so too, but worker
    processes can then not be forked.
    """

    def __init__(self, total: int | None, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.finished = 0
        self.watched = sys.stderr is not None and sys.stderr.isatty()
        self.bar: Progress | None = None
        self._due = time.monotonic() + PATIENCE_S
        self._drawing = False
        self._before: Any = None  # the signal's handler before; None where there is no timer

    def __enter__(self) -> Self:
        if self.watched and hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGALRM, lambda *_: self._draw())
            signal.setitimer(signal.ITIMER_REAL, max(PATIENCE_S, 0.001), FRAME_S)
        return self

    def update(self, finished: int, total: int | None = None) -> None:
        self.finished, self.total = finished, total or self.total
        if self.watched:
            self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        if self._drawing or now < self._due:  # the signal may come amid a drawing
            return
        self._drawing = True
        try:
            self._due = now + FRAME_S
            if self.bar is None:
                self.bar = self._start()
            self.bar.update(self.task, completed=self.finished, total=self.total, text=self._text())
            self.bar.refresh()
        finally:
            self._drawing = False

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


class SweepProgress(Bar):
    """Runs that are done, how many of them were there already, and how long the rest may take. The number of runs is
    printed first, on a terminal or if `aloud`."""

    def __init__(self, say: Callable[[str], None], aloud: bool = False) -> None:
        super().__init__(None, "runs")
        self._say = say
        self._aloud = aloud or self.watched
        self._begun: float | None = None
        self._reused = 0

    def __call__(self, finished: int, total: int, reused: int) -> None:
        if self._begun is None:
            self._begun, self._reused = time.monotonic(), reused
            if self._aloud:
                there = f", {reused:,} of them are there already" if reused else ""
                self._say(f"{total:,} run{'s' * (total != 1)}{there}")
        self.update(finished, total)

    def _text(self) -> str:
        reused = f", {self._reused:,} reused" if self._reused else ""
        return f"{super()._text()}{reused}{self._time_left()}"

    def _time_left(self) -> str:
        """The time that the rest will take if it goes on as so far."""
        run = self.finished - self._reused
        if self._begun is None or run < 1 or self.total is None:
            return ""
        seconds = round((time.monotonic() - self._begun) / run * (self.total - self.finished))
        return f", about {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"
