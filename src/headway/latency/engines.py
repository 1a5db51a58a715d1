"""What engines add to the time of the GPU, by version: `presets/engines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Form
from headway.config.schema import Names
from headway.latency.tables import SPELLED, Table, load, plain


class EngineHost(Struct, frozen=True):
    """The times that an engine adds to the GPU's time of a step."""

    step_ps: Duration
    sequence_ps: Duration  # for each sequence of the step
    source: str
    quantise_ps: Duration = 0  # for each layer of a model that computes in 8 bits
    exposed_ps: Duration = 0  # the part of `step` that asynchronous scheduling does not hide
    async_scheduling: bool = False  # whether this version schedules asynchronously by default
    name: Annotated[str, INTERNAL] = ""


@cache
def engines() -> Table[EngineHost]:
    def read(name: str, figures: dict[str, Any]) -> EngineHost:
        return replace(section.read(EngineHost, figures, f"engines.{name}"), name=name)

    return load("engines.yaml", "engines", read)


def engine_schedules_ahead(name: object) -> bool:
    """Return whether an engine schedules asynchronously by default. For `auto` and for an unknown engine, return
    False."""
    key = plain(name) if isinstance(name, str) else ""
    table = engines()
    entry = table.entries.get(table.aliases.get(key, key))
    return entry is not None and entry.async_scheduling


ENGINE_NAME: Final = Form.of(Names(lambda: ["auto", *engines().names], SPELLED))
