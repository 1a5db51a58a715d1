"""The times of engines by version, beside those of the GPU: `presets/engines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Form
from headway.config.schema import Names
from headway.latency.engine_memory import EngineLoad, EngineMemory
from headway.latency.step_cost import Constants, both
from headway.latency.tables import SPELLED, Table, load, plain
from headway.types import PS_PER_US


class Engine(Struct, frozen=True):
    """What an engine adds to the GPU's time of a step, and how fast its kernels for 8 bits and less are. Computing
    limits these kernels, not only the bandwidth. The rates hold for a card that computes as fast as an H200; other
    cards have them in proportion."""

    step_ps: Duration
    sequence_ps: Duration  # for each sequence of the step
    source: str
    exposed_ps: Duration = 0  # the part of `step` that asynchronous scheduling does not hide
    async_scheduling: bool = False  # whether this version schedules asynchronously by default
    # If activations are rounded to 8 bits: for each layer and 1,024 numbers of the hidden state. It replaces `fp8_us`
    # of the profile, unless it is 0.
    quantise_ps: Duration = 0
    # Two limits beside the bandwidth, in TB/s. 0: none.
    kv8_tb_s: float = 0.0  # to widen a KV cache of 8 bits
    fp8_many_tb_s: float = 0.0  # to read weights of 8 bits in steps above 16 tokens
    fp8_share: dict[str, float] = {}  # GPU -> speed of its matmuls in 8 bits, relative to that in proportion
    # GPU -> rate at which it reads weights of 16 bits, relative to that in proportion to its bandwidth. A GPU with a
    # profile of its own has no entry.
    read_share: dict[str, float] = {}
    # Weights below 8 bits: at most this rate, and at most that of other experts. 0: as in the profile.
    packed_tb_s: float = 0.0
    packed_tflops: float = 0.0
    memory: EngineMemory | None = None  # None if it is unknown
    name: Annotated[str, INTERNAL] = ""

    def kernels(self, gpu: Constants, known: Constants, hidden: int, card: str) -> Constants:
        """Return the constants of a GPU with the kernels of this engine, for a model with this hidden size. `known` has
        the constants of an H200."""
        computing = gpu.matmul_tflops / known.matmul_tflops
        rates: dict[str, float] = {}
        if self.quantise_ps:
            rates["fp8_us"] = self.quantise_ps / PS_PER_US * hidden / 1024
        if self.kv8_tb_s:
            rates["kv8_tb_s"] = both(gpu.kv8_tb_s or gpu.kv_tb_s, self.kv8_tb_s * computing)
        if self.fp8_many_tb_s:
            rates["fp8_many_tb_s"] = self.fp8_many_tb_s * computing
        if card in self.fp8_share:
            rates["fp8_speedup"] = gpu.fp8_speedup * self.fp8_share[card]
        if card in self.read_share:
            rates["weights_tb_s"] = gpu.weights_tb_s * self.read_share[card]
        if self.packed_tb_s:
            rates["packed_tb_s"] = min(self.packed_tb_s * computing, gpu.expert_tb_s or gpu.weights_tb_s)
            rates["packed_tflops"] = self.packed_tflops * computing
        return replace(gpu, **rates)


@cache
def engines() -> Table[Engine]:
    def read(name: str, figures: dict[str, Any]) -> Engine:
        return replace(section.read(Engine, figures, f"engines.{name}"), name=name)

    return load("engines.yaml", "engines", read)


def find_engine(name: object) -> Engine | None:
    """Return the engine with this name. For `auto` and for a name that is not in the table, return None."""
    key = plain(name) if isinstance(name, str) else ""
    table = engines()
    return table.entries.get(table.aliases.get(key, key))


def engine_load(name: object, tokens: int, sequences: int) -> EngineLoad | None:
    """Return what decides the memory that an engine takes, if its steps have up to `tokens` tokens and `sequences`
    sequences. If the engine or its memory is unknown, return None."""
    entry = find_engine(name)
    return None if entry is None or entry.memory is None else EngineLoad(entry.memory, tokens, sequences)


def engine_schedules_ahead(name: object) -> bool:
    """Return whether an engine schedules asynchronously by default. For `auto` and for an unknown engine, return
    False."""
    entry = find_engine(name)
    return entry is not None and entry.async_scheduling


ENGINE_NAME: Final = Form.of(Names(lambda: ["auto", *engines().names], SPELLED))
