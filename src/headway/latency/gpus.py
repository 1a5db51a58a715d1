"""GPUs: what a card has, what it costs, what it draws."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

from msgspec import Struct

from headway.config import section
from headway.config.units import bandwidth, size_bytes
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import not_negative, positive
from headway.latency.tables import Table, load


class Gpu(Struct, frozen=True):
    name: str
    memory: int  # bytes
    bandwidth: int  # bytes a second
    flops: Fraction  # dense BF16, a second
    usd_per_hour: float
    idle_watts: float = 0.0
    busy_watts: float = 0.0
    approximate: tuple[str, ...] = ()  # figures that are no spec sheet's


class GpuFigures(Struct):
    """A GPU as a mapping: `{memory: 80GB, bandwidth: 3.35TB/s, tflops: 989, usd_per_hour: 3.50}`."""

    memory: Any
    bandwidth: Any
    tflops: Any  # dense BF16
    usd_per_hour: Any
    idle_watts: Any = 0
    busy_watts: Any = 0
    name: str = "custom"
    approximate: tuple[str, ...] = ()


def read_gpu(data: object, where: str) -> Gpu:
    """A GPU from its name in the table or from its figures."""
    if isinstance(data, str):
        return gpus().find(data, "GPU", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a GPU's name or a mapping of its figures, got {shown(data)}.")
    given = section.read(GpuFigures, data, where)
    gpu = Gpu(
        name=given.name,
        memory=size_bytes(given.memory, f"{where}.memory"),
        bandwidth=bandwidth(given.bandwidth, f"{where}.bandwidth"),
        flops=positive(given.tflops, f"{where}.tflops") * 10**12,
        usd_per_hour=not_negative(given.usd_per_hour, f"{where}.usd_per_hour"),
        idle_watts=not_negative(given.idle_watts, f"{where}.idle_watts"),
        busy_watts=not_negative(given.busy_watts, f"{where}.busy_watts"),
        approximate=given.approximate,
    )
    for key, value in (("memory", gpu.memory), ("bandwidth", gpu.bandwidth)):
        if value <= 0:
            raise HeadwayError(f"{where}.{key}: must be above zero, got {shown(data[key])}.")
    if gpu.busy_watts < gpu.idle_watts:
        raise HeadwayError(
            f"{where}.busy_watts: must not be below idle_watts ({gpu.idle_watts:g}), got {shown(given.busy_watts)}."
        )
    return gpu


@cache
def gpus() -> Table[Gpu]:
    return load("hardware.yaml", "gpus", lambda name, figures: read_gpu({"name": name, **figures}, f"gpus.{name}"))
