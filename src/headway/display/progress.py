"""Progress of work that takes long: a bar in a terminal or a notebook after two seconds, otherwise a line every ten
seconds on stderr.

By default, Headway's Python functions show a bar if they run in a terminal or a notebook; see `watch`.
"""

from __future__ import annotations

import contextlib
import contextvars
import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from html import escape
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

PATIENCE_S = 2.0
FRAME_S = 0.2
SWITCH = "HEADWAY_PROGRESS"  # name of an environment variable; if its value is "off", no lines are printed
KERNEL: Final = "IPython"  # name of a module that the kernel of a notebook has imported; Headway does not depend on it
LINE_S = 10.0  # seconds between two printed lines; they replace the bar if stderr is not a terminal


class Screen(Protocol):
    """Where progress is drawn."""

    def interval_s(self) -> tuple[float, float]:
        """Return two times in seconds: until progress is first drawn, and between two drawings."""

    def draw(self, text: str, finished: int, total: int | None, elapsed_s: float) -> None: ...

    def close(self) -> None:
        """Remove the bar."""


class TerminalScreen:
    """A bar on stderr."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None

    def interval_s(self) -> tuple[float, float]:
        return PATIENCE_S, FRAME_S

    def draw(self, text: str, finished: int, total: int | None, elapsed_s: float) -> None:
        if self._bar is None:
            self._start()
        self._bar.update(self._task, completed=finished, total=total, text=text)
        self._bar.refresh()

    def _start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), TextColumn("{task.fields[text]}"), TimeElapsedColumn())
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False)
        self._task = self._bar.add_task("", total=None, text="")
        self._bar.start()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()


class LineScreen:
    """A line on stderr every ten seconds, if there is neither a terminal nor a notebook."""

    def interval_s(self) -> tuple[float, float]:
        return LINE_S, LINE_S

    def draw(self, text: str, finished: int, total: int | None, elapsed_s: float) -> None:
        if sys.stderr is not None and os.environ.get(SWITCH) != "off":
            with contextlib.suppress(OSError):
                print(f"headway: {text}, {_clock(elapsed_s)} so far", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class NotebookScreen:
    """A bar in the output of a cell. It is HTML, so that it needs no widgets."""

    def __init__(self) -> None:
        self._handle: Any = None

    def interval_s(self) -> tuple[float, float]:
        return PATIENCE_S, FRAME_S

    def draw(self, text: str, finished: int, total: int | None, elapsed_s: float) -> None:
        words = f"{text}, {_clock(elapsed_s)}"
        ends = f' value="{finished}" max="{total}"' if total else ""
        self._show({"text/plain": words, "text/html": f"<progress{ends}></progress> {escape(words)}"})

    def close(self) -> None:
        if self._handle is not None:
            self._show({"text/plain": "", "text/html": ""})

    def _show(self, content: dict[str, str]) -> None:
        if self._handle is None:
            module = importlib.import_module(f"{KERNEL}.display")
            self._handle = module.display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def in_terminal() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


def in_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get(KERNEL)
    return module is not None and getattr(module.get_ipython(), "kernel", None) is not None


def screen() -> Screen:
    return NotebookScreen() if in_notebook() else TerminalScreen() if in_terminal() else LineScreen()


class Bar:
    """Progress of a command. After an interrupt (Ctrl-C), a note says how much was finished, and `kept` says which
    results remain.

    The bar is redrawn at regular times even if no progress is reported. In a terminal, the signal of a timer redraws
    it. A thread would make it unsafe to fork worker processes. In a notebook, a thread redraws the bar, because the
    kernel has threads anyway.
    """

    KEPT: Final = "Nothing was written."

    def __init__(self, total: int | None, unit: str, kept: str = KEPT) -> None:
        self.total = total
        self.unit = unit
        self.kept = kept
        self.finished = 0
        self._stage = ""
        self.screen = screen()
        self._first_s, self._frame_s = self.screen.interval_s()
        self._begun_s = time.monotonic()
        self._due_s = self._begun_s + self._first_s
        self._drawing = threading.Lock()
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._before: Any = None  # the signal handler to restore; None if there is no timer

    @property
    def watched(self) -> bool:
        return not isinstance(self.screen, LineScreen)

    def __enter__(self) -> Self:
        if isinstance(self.screen, NotebookScreen):
            context = contextvars.copy_context()  # the context says to which notebook cell the bar belongs
            self._thread = threading.Thread(target=context.run, args=(self._tick,), name="progress", daemon=True)
            self._thread.start()
        elif _timer_is_free():
            self._before = signal.signal(signal.SIGALRM, lambda *_: self._draw())
            signal.setitimer(signal.ITIMER_REAL, max(self._first_s, 0.001), self._frame_s)
        return self

    def _tick(self) -> None:
        while not self._done.wait(max(self._frame_s, 0.01)):
            self._draw()

    def __call__(self, finished: int, total: int | None = None) -> None:
        self.update(finished, total)

    def update(self, finished: int, total: int | None = None) -> None:
        self.finished, self.total, self._stage = finished, total or self.total, ""
        self._report()

    def stage(self, unit: str, finished: int) -> None:
        """Show the progress of a preparation, which counts items of another `unit`. The next call of `update` replaces
        this text."""
        self._stage = f"{finished:,} {unit}"
        self._report()

    def _report(self) -> None:
        if self._thread is None:
            self._draw()

    def _draw(self) -> None:
        now = time.monotonic()
        # Do not wait for the lock: if a signal interrupts `_draw`, the interrupted call holds the lock.
        if now < self._due_s or not self._drawing.acquire(blocking=False):
            return
        try:
            self._due_s = now + self._frame_s
            self.screen.draw(self._text(), self.finished, self.total, now - self._begun_s)
        finally:
            self._drawing.release()

    def _text(self) -> str:
        if self._stage:
            return self._stage
        if self.total is not None:
            return f"{self.finished:,}/{self.total:,} {self.unit}"
        return f"{self.finished:,} {self.unit}" if self.finished else self.unit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
        if self._thread is not None:
            self._done.set()
            self._thread.join()
        self.screen.close()
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"{self._text()}. {self.kept}")


def _timer_is_free() -> bool:
    """Return whether a timer may redraw the bar. This needs the main thread, and the caller's program must not use the
    same timer."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0


@contextlib.contextmanager
def watch(progress: Any, bar: Callable[[], Bar]) -> Iterator[Any]:
    """Yield the function that receives reports of progress. If `progress` is a function, yield it. If `progress` is
    true and there is a terminal or a notebook, yield the bar. Otherwise yield None."""
    if callable(progress):
        yield progress
    elif progress and os.environ.get(SWITCH) != "off" and (in_notebook() or in_terminal()):
        with bar() as shown:
            yield shown
    else:
        yield None


class CountProgress(Bar):
    """Progress of work that calls this object once for each finished item, without a count."""

    def __call__(self, finished: int | None = None, total: int | None = None) -> None:
        self.update(self.finished + 1 if finished is None else finished, total)


class RunProgress(Bar):
    """Progress of one simulation: the requests that arrived."""

    def __init__(self, requests: int | None) -> None:
        super().__init__(requests, "requests")

    def __call__(self, arrived: int, now_ps: int | None = None) -> None:
        self.update(arrived)


class SweepProgress(Bar):
    """Progress of a sweep: the finished runs, how many of them were reused, and the time left. On a terminal, or with a
    folder for `output`, it prints the number of runs first."""

    def __init__(self, say: Callable[[str], None] | None = None, output: Path | None = None) -> None:
        kept = f"Finished runs are in {output}; the same command continues." if output else Bar.KEPT
        super().__init__(None, "runs", kept)
        self._say = say
        self._aloud = output is not None or self.watched
        self._begun: float | None = None
        self._reused = 0

    def __call__(self, finished: int, total: int | None = None, reused: int = 0) -> None:
        if self._begun is None:
            self._begun, self._reused = time.monotonic(), reused
            if self._say is not None and self._aloud:
                there = f", {reused:,} of them already done" if reused else ""
                self._say(f"{total or 0:,} run{'s' * (total != 1)}{there}")
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
