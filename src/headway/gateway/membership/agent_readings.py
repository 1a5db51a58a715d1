"""GPU readings of an agent's machine: SM utilisation and power, from NVML, a file or a command."""

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
from typing import Any, Final, NamedTuple

import msgspec

from headway.config.wording import one_line
from headway.errors import HeadwayError

SAMPLE_S: Final = 1.0
NAMES: Final = ("busy", "watts")
WINDOW_S: Final = 5.0  # readings are averaged over this time; gateways average watts over a longer time
OLD_S: Final = 60.0  # if the file was last written longer ago than this, reading the values fails
COMMAND_S: Final = 5.0  # time limit of a command
log = logging.getLogger("headway.agent")

Reading = dict[str, float]  # `busy` from 0 to 1, and `watts`


class Gauge(NamedTuple):
    name: str
    read: Callable[[], Reading]  # may block; raises HeadwayError if it cannot read the values


def nvml_gauge(nvml: Any, gpus: Sequence[int] | None = None) -> Gauge:
    """Return a gauge of the given GPUs, by default all: the mean of their utilisation and the sum of their power."""
    count = nvml.nvmlDeviceGetCount()
    numbers = range(count) if gpus is None else gpus
    for gpu in numbers:
        if not 0 <= gpu < count:
            raise HeadwayError(f"--gpus: there is no GPU {gpu}; NVML reports {count}, numbered from 0.")
    devices = [nvml.nvmlDeviceGetHandleByIndex(gpu) for gpu in numbers]

    def read() -> Reading:
        reading = {}
        with suppress(nvml.NVMLError):  # some GPUs and MIG devices report only utilisation or only power
            shares = [nvml.nvmlDeviceGetUtilizationRates(device).gpu / 100 for device in devices]
            reading["busy"] = math.fsum(shares) / len(shares)
        with suppress(nvml.NVMLError):
            reading["watts"] = math.fsum(nvml.nvmlDeviceGetPowerUsage(device) / 1000 for device in devices)
        return reading

    return Gauge(f"NVML, {len(devices)} GPU{'s' if len(devices) != 1 else ''}", read)


def find_nvml(gpus: Sequence[int] | None = None) -> Gauge | None:
    """Return a gauge that uses NVML. If this machine has no NVIDIA GPU, no driver or no pynvml, return None."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
        return nvml_gauge(nvml, gpus) if nvml.nvmlDeviceGetCount() else None
    except nvml.NVMLError:
        return None


def file_gauge(path: Path) -> Gauge:
    """Return a gauge that reads a JSON file such as {"busy": 0.4, "watts": 310}, which another program updates."""

    def read() -> Reading:
        try:
            text, written = path.read_bytes(), path.stat().st_mtime
        except OSError as error:
            raise HeadwayError(f"{path}: cannot be read ({error.strerror or error}).") from None
        if time.time() - written > OLD_S:
            raise HeadwayError(f"{path}: was written more than {OLD_S:g} s ago.")
        return _parse(text, str(path))

    return Gauge(f"the file {path}", read)


def command_gauge(command: str) -> Gauge:
    """Return a gauge that runs a command, which prints JSON in the form of `file_gauge`."""
    name = f"the command {command!r}"

    def read() -> Reading:
        try:
            process = subprocess.run(command, shell=True, capture_output=True, timeout=COMMAND_S, check=False)
        except subprocess.TimeoutExpired:
            raise HeadwayError(f"{name} did not end in {COMMAND_S:g} s.") from None
        if process.returncode:
            why = one_line(process.stderr.decode(errors="replace"), kind=False)
            raise HeadwayError(f"{name} failed with status {process.returncode} ({why}).")
        return _parse(process.stdout, name)

    return Gauge(name, read)


def _parse(text: bytes, where: str) -> Reading:
    try:
        reading = msgspec.json.decode(text, type=dict[str, float])
    except msgspec.MsgspecError as error:
        raise HeadwayError(f'{where}: expected JSON such as {{"busy": 0.4, "watts": 310}}, but {error}.') from None
    for name, value in reading.items():
        if name not in NAMES or not 0 <= value < (1.000001 if name == "busy" else 1e6):
            raise HeadwayError(f"{where}: {name} {value:g} is invalid; expected `busy` from 0 to 1, or `watts`.")
    return reading


class Meter:
    """Samples a gauge every second, and returns the means over the last `window_s` seconds."""

    def __init__(self, gauge: Gauge, window_s: float = WINDOW_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.gauge, self.clock, self.window_s = gauge, clock, window_s
        self.samples: deque[tuple[float, Reading]] = deque()
        self._problem = ""

    async def run(self) -> None:
        """Sample until the task is cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            await self.sample()

    async def sample(self) -> None:
        try:
            reading = await asyncio.to_thread(self.gauge.read)
        except HeadwayError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("GPU utilisation and power are unknown: %s", error)
            return
        if self._problem:
            self._problem = ""
            log.info("GPU utilisation and power are known again, from %s", self.gauge.name)
        self.samples.append((self.clock(), reading))
        self._forget()

    def means(self) -> Reading:
        """Return the mean of each quantity over the window. Omit quantities without samples."""
        self._forget()
        columns = {name: [reading[name] for _, reading in self.samples if name in reading] for name in NAMES}
        return {name: math.fsum(values) / len(values) for name, values in columns.items() if values}

    def _forget(self) -> None:
        while self.samples and self.samples[0][0] < self.clock() - self.window_s:
            self.samples.popleft()
