"""What engines add to the time of the GPU, by version: `presets/engines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Form
from headway.config.schema import Names
from headway.latency.engine_memory import EngineLoad, EngineMemory
from headway.latency.tables import SPELLED, Table, load, plain


class EngineHost(Struct, frozen=True):
    """The times that an engine adds to the GPU's time of a step."""

    step_ps: Duration
    sequence_ps: Duration  # for each sequence of the step
    source: str
    quantise_ps: Duration = 0  # for each layer of a model that computes in 8 bits
    exposed_ps: Duration = 0  # the part of `step` that asynchronous scheduling does not hide
    async_scheduling: bool = False  # whether this version schedules asynchronously by default
    memory: EngineMemory | None = None  # None if it is unknown
    name: Annotated[str, INTERNAL] = ""


@cache
def engines() -> Table[EngineHost]:
    def read(name: str, figures: dict[str, Any]) -> EngineHost:
        return replace(section.read(EngineHost, figures, f"engines.{name}"), name=name)

    return load("engines.yaml", "engines", read)


def find_engine(name: object) -> EngineHost | None:
    """Return an engine. For `auto` and for an unknown engine, return None."""
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
