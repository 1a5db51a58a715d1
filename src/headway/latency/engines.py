"""The times of engines by version, beside those of the GPU: `presets/engines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Form
from headway.config.schema import Names
from headway.latency.step_cost import Constants, cube_root
from headway.latency.tables import SPELLED, Table, load, plain
from headway.types import PS_PER_US


class Engine(Struct, frozen=True):
    """What an engine adds to the GPU's time of a step, and how fast its kernels for 8 bits are."""

    step_ps: Duration
    sequence_ps: Duration  # for each sequence of the step
    source: str
    exposed_ps: Duration = 0  # the part of `step` that asynchronous scheduling does not hide
    async_scheduling: bool = False  # whether this version schedules asynchronously by default
    # If activations are rounded to 8 bits: for each layer and 1,024 numbers of the hidden state. It replaces `fp8_us`
    # of the profile, unless it is 0.
    quantise_ps: Duration = 0
    # Two limits of its kernels, on a card that computes as fast as an H200, in TB/s. 0: no limit.
    kv8_tb_s: float = 0.0  # to widen a KV cache of 8 bits, in addition to reading it
    fp8_many_tb_s: float = 0.0  # to read weights of 8 bits in steps above 16 tokens
    name: Annotated[str, INTERNAL] = ""

    def kernels(self, gpu: Constants, hidden: int, speed: float) -> Constants:
        """Return the constants of a GPU with the kernels of this engine, for a model with this hidden size. `speed` is
        the GPU's computing rate divided by that of an H200."""
        kv8, many, fp8_us = gpu.kv8_tb_s, gpu.fp8_many_tb_s, gpu.fp8_us
        if self.quantise_ps:
            fp8_us = self.quantise_ps / PS_PER_US * hidden / 1024
        if self.kv8_tb_s:
            read, widen = 1.0 / (kv8 or gpu.kv_tb_s), 1.0 / (self.kv8_tb_s * speed)
            kv8 = 1.0 / cube_root(read * read * read + widen * widen * widen)
        if self.fp8_many_tb_s:
            many = self.fp8_many_tb_s * speed
        return replace(gpu, kv8_tb_s=kv8, fp8_many_tb_s=many, fp8_us=fp8_us)


@cache
def engines() -> Table[Engine]:
    def read(name: str, figures: dict[str, Any]) -> Engine:
        return replace(section.read(Engine, figures, f"engines.{name}"), name=name)

    return load("engines.yaml", "engines", read)


def engine_schedules_ahead(name: object) -> bool:
    """Return whether an engine schedules asynchronously by default. For `auto` and for an unknown engine, return
    False."""
    key = plain(name) if isinstance(name, str) else ""
    table = engines()
    entry = table.entries.get(table.aliases.get(key, key))
    return entry is not None and entry.async_scheduling


ENGINE_NAME: Final = Form.of(Names(lambda: ["auto", *engines().names], SPELLED))
