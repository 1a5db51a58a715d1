"""What an agent measures of its machine's GPUs: SM utilisation and power, from NVML, a file or a command."""

from __future__ import annotations

import asyncio
import logging
import math
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from headway.config.wording import one_line
from headway.errors import HeadwayError

SAMPLE_S: Final = 1.0
NAMES: Final = ("busy", "watts")
WINDOW_S: Final = 5.0  # over which they are averaged; gateways average watts over more
OLD_S: Final = 60.0  # an older file is not read
COMMAND_S: Final = 5.0  # for a command to end
log = logging.getLogger("headway.agent")

Reading = dict[str, float]  # busy in [0, 1], watts


class Gauge(Protocol):
    name: str

    def read(self) -> Reading:
        """Read it, blocking for a moment; raises HeadwayError if there is nothing to read now."""


class Nvml:
    """The cards of this machine, or some of them: the mean of their utilisation, the sum of their power."""

    def __init__(self, nvml: Any, cards: Sequence[int] | None = None) -> None:
        self.nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        numbers = range(count) if cards is None else cards
        for card in numbers:
            if not 0 <= card < count:
                raise HeadwayError(f"--gpus: there is no card {card}; NVML has {count}.")
        self.cards = [nvml.nvmlDeviceGetHandleByIndex(card) for card in numbers]
        self.name = f"NVML, {len(self.cards)} card{'s' if len(self.cards) != 1 else ''}"

    @classmethod
    def find(cls, cards: Sequence[int] | None = None) -> Nvml | None:
        """Return None if this machine has no such cards, or no driver."""
        try:
            nvml = import_module("pynvml")
        except ImportError:
            return None
        try:
            nvml.nvmlInit()
            return cls(nvml, cards) if nvml.nvmlDeviceGetCount() else None
        except nvml.NVMLError:
            return None

    def read(self) -> Reading:
        reading = {}
        with suppress(self.nvml.NVMLError):  # some cards, and parts of cards, do not report one of them
            shares = [self.nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100 for card in self.cards]
            reading["busy"] = math.fsum(shares) / len(shares)
        with suppress(self.nvml.NVMLError):
            reading["watts"] = math.fsum(self.nvml.nvmlDeviceGetPowerUsage(card) / 1000 for card in self.cards)
        return reading


class ReadingsFile:
    """A file with JSON such as {"busy": 0.4, "watts": 310}, that another program rewrites now and then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"the file {path}"

    def read(self) -> Reading:
        try:
            text, written = self.path.read_bytes(), self.path.stat().st_mtime
        except OSError as error:
            raise HeadwayError(f"{self.path}: cannot be read ({error.strerror or error}).") from None
        if time.time() - written > OLD_S:
            raise HeadwayError(f"{self.path}: was written more than {OLD_S:g} s ago.")
        return _parse(text, str(self.path))


class ReadingsCommand:
    """A command that prints such JSON."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.name = f"the command {command!r}"

    def read(self) -> Reading:
        try:
            process = subprocess.run(self.command, shell=True, capture_output=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            raise HeadwayError(f"{self.name} did not end in {COMMAND_S:g} s.") from None
        if process.returncode:
            why = one_line(process.stderr.decode(errors="replace"), kind=False)
            raise HeadwayError(f"{self.name} failed with status {process.returncode} ({why}).")
        return _parse(process.stdout, self.name)


def _parse(text: bytes, where: str) -> Reading:
    try:
        reading = msgspec.json.decode(text, type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise HeadwayError(f'{where}: expected JSON such as {{"busy": 0.4, "watts": 310}}, but {error}.') from None
    for name, value in reading.items():
        if name not in NAMES or not 0 <= value < (1.000001 if name == "busy" else 1e6):
            raise HeadwayError(f"{where}: {name} {value:g} is no share `busy` of 0 to 1, nor `watts`.")
    return reading


class Meter:
    """Samples a gauge every second, and returns means over the last seconds."""

    def __init__(
        self,
        gauge: Gauge,
        window_s: float = WINDOW_S,
        sample_s: float = SAMPLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gauge, self.clock, self.sample_s, self.window_s = gauge, clock, sample_s, window_s
        self.samples: deque[tuple[float, Reading]] = deque()
        self._problem = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.sample()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self.sample_s)
            await self.sample()

    async def sample(self) -> None:
        try:
            reading = await asyncio.to_thread(self.gauge.read)
        except HeadwayError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("utilisation and power are not known: %s", error)
            return
        if self._problem:
            self._problem = ""
            log.info("utilisation and power are known again, from %s", self.gauge.name)
        self.samples.append((self.clock(), reading))
        self._forget()

    def means(self) -> Reading:
        """Return the means of the quantities that were sampled."""
        self._forget()
        columns = {name: [reading[name] for _, reading in self.samples if name in reading] for name in NAMES}
        return {name: math.fsum(values) / len(values) for name, values in columns.items() if values}

    def _forget(self) -> None:
        while self.samples and self.samples[0][0] < self.clock() - self.window_s:
            self.samples.popleft()
