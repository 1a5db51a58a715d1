"""Progress bars on stderr: only where somebody watches, and only once it takes more than two seconds."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

PATIENCE_S = 2.0


class Bar:
    """A progress bar that stays away from short work and from files."""

    def __init__(self, total: int | None, unit: str) -> None:
        self.total = total
        self.unit = unit
        self.began = time.monotonic()
        self.watched = sys.stderr is not None and sys.stderr.isatty()
        self.bar: object | None = None

    def __enter__(self) -> Self:
        return self

    def update(self, done: int, total: int | None = None) -> None:
        if not self.watched or (self.bar is None and time.monotonic() - self.began < PATIENCE_S):
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        if self.bar is None:
            shown = (BarColumn(), MofNCompleteColumn(), TextColumn(self.unit), TimeElapsedColumn())
            self.bar = Progress(*shown, console=Console(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task("", total=total or self.total)
        assert isinstance(self.bar, Progress)
        self.bar.update(self.task, completed=done)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stop = getattr(self.bar, "stop", None)
        if stop is not None:
            stop()


class RunProgress(Bar):
    """Requests that have arrived."""

    def __init__(self, requests: int | None) -> None:
        super().__init__(requests, "requests")

    def __call__(self, arrived: int, now_ps: int) -> None:
        self.update(arrived)


class CompareProgress(Bar):
    """Policies that are done."""

    def __init__(self) -> None:
        super().__init__(None, "policies")

    def __call__(self, done: int, total: int) -> None:
        self.update(done, total)
