"""GPUs: what a card has, what it costs, what it draws."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Annotated, Any

from msgspec import Struct, field

from headway.config import section
from headway.config.keys import Unit, bytes_text
from headway.config.units import bandwidth, size_bytes
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import not_negative, positive
from headway.latency.tables import Table, load


def _read_memory(value: Any, where: str) -> int:
    return _check_positive(size_bytes(value, where), value, where)


def _read_bandwidth(value: Any, where: str) -> int:
    return _check_positive(bandwidth(value, where), value, where)


def _check_positive(amount: int, value: object, where: str) -> int:
    if amount <= 0:
        raise HeadwayError(f"{where}: must be above zero, got {shown(value)}.")
    return amount


def _read_teraflops(value: Any, where: str) -> Fraction:
    return positive(value, where) * 10**12


Amount = Annotated[float, Unit("number, 0 or more", not_negative, float, show=lambda amount: f"{amount:g}")]


class Gpu(Struct, frozen=True):
    """A GPU as a mapping: `{memory: 80GB, bandwidth: 3.35TB/s, tflops: 989, usd_per_hour: 3.50}`."""

    memory: Annotated[int, Unit("size", _read_memory, bytes_text)]  # bytes
    bandwidth: Annotated[int, Unit("bandwidth", _read_bandwidth, lambda speed: f"{bytes_text(speed)}/s")]  # a second
    flops: Annotated[Fraction, Unit("number above 0", _read_teraflops, float)] = field(name="tflops")  # dense BF16
    usd_per_hour: Amount
    idle_watts: Amount = 0.0
    busy_watts: Amount = 0.0
    name: str = "custom"
    approximate: tuple[str, ...] = ()  # figures that are no spec sheet's


def read_gpu(data: object, where: str) -> Gpu:
    """A GPU from its name in the table or from its figures."""
    if isinstance(data, str):
        return gpus().find(data, "GPU", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a GPU's name or a mapping of its figures, got {shown(data)}.")
    gpu = section.read(Gpu, data, where)
    if gpu.busy_watts < gpu.idle_watts:
        busy = shown(data.get("busy_watts", 0))
        raise HeadwayError(f"{where}.busy_watts: must not be below idle_watts ({gpu.idle_watts:g}), got {busy}.")
    return gpu


@cache
def gpus() -> Table[Gpu]:
    return load("hardware.yaml", "gpus", lambda name, figures: read_gpu({"name": name, **figures}, f"gpus.{name}"))
