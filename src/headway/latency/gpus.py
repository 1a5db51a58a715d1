"""GPUs: the memory, speed, price and power of each card."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct, field

from headway.config import section
from headway.config.keys import BANDWIDTH, Form, Unit, bytes_of_at_least
from headway.config.schema import Names
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import ABOVE_0, not_negative, positive
from headway.latency.links import read_speed, show_speed
from headway.latency.tables import SPELLED, Table, load


def _read_teraflops(value: Any, where: str) -> Fraction:
    return positive(value, where) * 10**12


AT_LEAST_0: Final = Form.of({"type": ["number", "string"], "minimum": 0})
Amount = Annotated[float, Unit("number, 0 or more", not_negative, float, show="{:g}".format, form=AT_LEAST_0)]


class Gpu(Struct, frozen=True):
    """A GPU as a mapping: `{memory: 80GB, bandwidth: 3.35TB/s, tflops: 989, usd_per_hour: 3.50}`."""

    memory: Annotated[int, bytes_of_at_least(1), "size of the memory"]
    bandwidth: Annotated[int, Unit("bandwidth", read_speed, show_speed, form=BANDWIDTH), "of the memory"]
    # Peak rate of dense BF16 matrix multiplication, in FLOP/s. The key in the file is in TFLOP/s.
    flops: Annotated[Fraction, Unit("number above 0", _read_teraflops, float, form=ABOVE_0), "dense BF16"] = field(
        name="tflops"
    )
    usd_per_hour: Annotated[Amount, "price"]
    idle_watts: Annotated[Amount, "power when idle"] = 0.0
    busy_watts: Annotated[Amount, "power when busy"] = 0.0
    name: Annotated[str, "name in reports"] = "custom"
    approximate: Annotated[tuple[str, ...], "keys whose values are not from a spec sheet"] = ()


def read_gpu(data: object, where: str) -> Gpu:
    """Return the GPU that has this name in the table, or the GPU that a mapping of keys describes."""
    if isinstance(data, str):
        return gpus().find(data, "GPU", where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected the name of a GPU or a mapping of its keys, got {shown(data)}.")
    gpu = section.read(Gpu, data, where)
    if gpu.busy_watts < gpu.idle_watts:
        busy = shown(data.get("busy_watts", 0))
        raise HeadwayError(f"{where}.busy_watts: must be at least idle_watts ({gpu.idle_watts:g}), got {busy}.")
    return gpu


# The name of a GPU, or a mapping with its data.
GpuSpec = Annotated[Any, Form.of(Names(lambda: gpus().names, SPELLED), Gpu)]


@cache
def gpus() -> Table[Gpu]:
    return load("hardware.yaml", "gpus", lambda name, figures: read_gpu({"name": name, **figures}, f"gpus.{name}"))
