"""GPUs: the memory, speed, price and power of each card, and the link between the cards of a node."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import BANDWIDTH, INTERNAL, Doc, Form, Unit, bytes_of_at_least
from headway.config.schema import Names
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.latency.exact_numbers import ABOVE_0, not_negative, positive
from headway.latency.links import Speed, read_speed, show_speed
from headway.latency.tables import SPELLED, Table, load


def _read_teraflops(value: Any, where: str) -> Fraction:
    return positive(value, where) * 10**12


AT_LEAST_0: Final = Form.of({"type": ["number", "string"], "minimum": 0})
Amount = Annotated[float, Unit("number, 0 or more", not_negative, float, show="{:g}".format, form=AT_LEAST_0)]
LINK_NAME: Final = Form.of(Names(lambda: _link_names(), SPELLED))
UNKNOWN_LINK: Final = "pcie5"  # the link of a GPU that names none


class Interconnect(Struct, frozen=True):
    """The link between the GPUs of a node, which carries the all-reduces of tensor parallelism."""

    kind: Annotated[
        Literal["switch", "bridge", "mesh", "pcie"],
        "switch: every GPU reaches every other one at full speed; bridge: `gpus` cards are joined directly; "
        "mesh: a link for each pair of GPUs; pcie: through PCIe and the host",
    ]
    bandwidth: Annotated[Speed, "spec sheet, in one direction, of one GPU to all others"]
    peer: Annotated[bool, "whether a GPU reads the memory of another one directly, without a copy in host memory"]
    source: Annotated[str, "origin of the values"]
    gpus: Annotated[int, "GPUs that the link joins"] = 8
    beyond: Annotated[str, "link of a group with more GPUs; empty: this one"] = ""
    name: Annotated[str, INTERNAL] = ""
    assumed: Annotated[bool, INTERNAL] = False  # whether the card names no link


def _link_names() -> list[str]:
    return interconnects().names


@cache
def interconnects() -> Table[Interconnect]:
    def read(name: str, figures: dict[str, Any]) -> Interconnect:
        return replace(section.read(Interconnect, figures, f"interconnects.{name}"), name=name)

    return load("hardware.yaml", "interconnects", read)


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
    # It decides `gpu_blocks: auto` if the engine is known. Otherwise, `memory` does.
    visible: Annotated[
        int | None,
        bytes_of_at_least(1),
        Doc(
            "memory that nvidia-smi or rocm-smi reports; decides `gpu_blocks: auto` if the engine is known",
            default="unknown",
        ),
    ] = None
    link: Annotated[
        str | None,
        LINK_NAME,
        Doc("link to the other GPUs of the node", default=UNKNOWN_LINK),
    ] = None
    fp8: Annotated[bool, "whether the card computes in FP8; if not, FP8 weights save memory traffic alone"] = True
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
    if gpu.link is not None:
        interconnects().find(gpu.link, "link between GPUs", f"{where}.link", "use one of the table")
    return gpu


def interconnect(gpu: Gpu, group: int | None = None) -> Interconnect:
    """Return the link between the GPUs of a node, or the link between `group` of them. A bridge joins few GPUs, and a
    small group uses only some of the links of a mesh. A GPU that names no link gets PCIe, marked as assumed."""
    table = interconnects()
    link = table.find(gpu.link or UNKNOWN_LINK, "link between GPUs", f"{gpu.name}.link", "use one of the table")
    if group is not None:
        if group > link.gpus and link.beyond:
            link = table.entries[link.beyond]
        elif link.kind == "mesh" and 1 < group < link.gpus:
            link = replace(link, bandwidth=link.bandwidth * (group - 1) // (link.gpus - 1))
    return replace(link, assumed=gpu.link is None)


# The name of a GPU, or a mapping with its data.
GpuSpec = Annotated[Any, Form.of(Names(lambda: gpus().names, SPELLED), Gpu)]


@cache
def gpus() -> Table[Gpu]:
    return load("hardware.yaml", "gpus", lambda name, figures: read_gpu({"name": name, **figures}, f"gpus.{name}"))
