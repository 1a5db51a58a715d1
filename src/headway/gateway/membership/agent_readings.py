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
OLD_S: Final = 60.0  # a file that nobody writes any more says nothing
COMMAND_S: Final = 5.0  # for a command to end
log = logging.getLogger("headway.agent")

Reading = dict[str, float]  # busy in [0, 1], watts


class Gauge(Protocol):
    name: str

    def read(self) -> Reading:
        """Blocks for a moment. HeadwayError where nothing can be read now."""


class Nvml:
    """The cards of this machine, or some of them: the mean of their utilisation, the sum of their power."""

    def __init__(self, nvml: Any, cards: Sequence[int] | None = None) -> None:
        self.nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        wanted = list(range(count)) if cards is None else list(cards)
        for card in wanted:
            if not 0 <= card < count:
                raise HeadwayError(f"--gpus: there is no card {card}; NVML has {count}.")
        self.cards = [nvml.nvmlDeviceGetHandleByIndex(card) for card in wanted]
        self.name = f"NVML, {len(self.cards)} card{'s' if len(self.cards) != 1 else ''}"

    @classmethod
    def find(cls, cards: Sequence[int] | None = None) -> Nvml | None:
        """None where this machine has no such cards, or no driver."""
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
        found = {"busy": self._busy(), "watts": self._watts()}
        return {name: value for name, value in found.items() if value is not None}

    def _busy(self) -> float | None:
        try:
            shares = [self.nvml.nvmlDeviceGetUtilizationRates(card).gpu / 100 for card in self.cards]
        except self.nvml.NVMLError:  # some cards, and parts of cards, do not tell
            return None
        return math.fsum(shares) / len(shares)

    def _watts(self) -> float | None:
        try:
            return math.fsum(self.nvml.nvmlDeviceGetPowerUsage(card) / 1000 for card in self.cards)
        except self.nvml.NVMLError:
            return None


class ReadingsFile:
    """A file with JSON such as {"busy": 0.4, "watts": 310}, that somebody writes anew now and then."""

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
        return _reading(text, str(self.path))


class ReadingsCommand:
    """A command that prints such JSON."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.name = f"the command {command!r}"

    def read(self) -> Reading:
        try:
            done = subprocess.run(self.command, shell=True, capture_output=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            raise HeadwayError(f"{self.name} did not end in {COMMAND_S:g} s.") from None
        if done.returncode:
            why = one_line(done.stderr.decode(errors="replace"), kind=False)
            raise HeadwayError(f"{self.name} failed with status {done.returncode} ({why}).")
        return _reading(done.stdout, self.name)


def _reading(text: bytes, where: str) -> Reading:
    try:
        found = msgspec.json.decode(text, type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise HeadwayError(f'{where}: expected JSON such as {{"busy": 0.4, "watts": 310}}, but {error}.') from None
    for name, value in found.items():
        if name not in NAMES or not 0 <= value < (1.000001 if name == "busy" else 1e6):
            raise HeadwayError(f"{where}: {name} {value:g} is no share `busy` of 0 to 1, nor `watts`.")
    return found


class Meter:
    """Samples a gauge every second, and gives means over the last seconds."""

    def __init__(
        self,
        gauge: Gauge,
        window_s: float = WINDOW_S,
        sample_s: float = SAMPLE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gauge, self.clock, self.sample_s, self.window_s = gauge, clock, sample_s, window_s
        self.samples: deque[tuple[float, Reading]] = deque()
        self._told = ""
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
            found = await asyncio.to_thread(self.gauge.read)
        except HeadwayError as error:
            if str(error) != self._told:
                self._told = str(error)
                log.warning("utilisation and power are not known: %s", error)
            return
        if self._told:
            self._told = ""
            log.info("utilisation and power are known again, from %s", self.gauge.name)
        self.samples.append((self.clock(), found))
        self._forget()

    def means(self) -> Reading:
        """What was not sampled is not there."""
        self._forget()
        values = {name: [one[name] for _, one in self.samples if name in one] for name in NAMES}
        return {name: math.fsum(some) / len(some) for name, some in values.items() if some}

    def _forget(self) -> None:
        while self.samples and self.samples[0][0] < self.clock() - self.window_s:
            self.samples.popleft()
