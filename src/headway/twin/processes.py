"""Parts of Headway as processes beside this one, which end with it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import headway.load as _near
from headway.errors import HeadwayError

START_S: Final = 60.0
STOP_S: Final = 10.0
LOOK_S: Final = 0.02


class Process:
    """`headway ARGUMENTS` under way; its last words are what it says to its standard error."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        source = str(Path(_near.__file__).parents[2])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "headway.cli", *arguments],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._words,
            start_new_session=True,  # Ctrl-C is ours
        )

    def words(self) -> str:
        self._words.seek(0)
        return self._words.read().decode(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """What it has said by the time this is among it."""
        end = time.monotonic() + START_S
        while not re.search(pattern, said := self.words()):
            if self.process.poll() is not None or time.monotonic() > end:
                last = (said.strip().splitlines() or ["it said nothing"])[-1].removeprefix("headway: ")
                raise HeadwayError(f"`headway {self.arguments[0]}` did not start: {last}")
            time.sleep(LOOK_S)
        return said

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._words.close()


def emulated(process: Process) -> dict[str, str]:
    """The engines of `headway emulate` by name: their URLs."""
    said = process.wait_for(r"emulating \d+ engines")
    return dict(re.findall(r"^headway: (\S+) at (http://\S+)/v1", said, re.MULTILINE))


def serving(process: Process) -> str:
    """Where `headway serve` listens."""
    found = re.search(r"serving at (http://\S+)", process.wait_for(r"serving at http://\S+"))
    assert found is not None
    return found[1]


def taken(process: Process) -> None:
    """Until `headway serve` goes by its file as that is now."""
    refused = re.search(r"is refused, .*?: (.*)", process.wait_for(r"policies are in force|is refused, "))
    if refused is not None:
        raise HeadwayError(refused[1])
