"""What engines add to the time of the GPU, by version: `presets/engines.yaml`."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from headway.config import section
from headway.config.keys import INTERNAL, Duration, Form
from headway.config.schema import Names
from headway.latency.tables import SPELLED, Table, load


class EngineHost(Struct, frozen=True):
    """The times that an engine adds to the GPU's time of a step."""

    step_ps: Duration
    sequence_ps: Duration  # for each sequence of the step
    source: str
    quantise_ps: Duration = 0  # for each layer of a model that computes in 8 bits
    name: Annotated[str, INTERNAL] = ""


@cache
def engines() -> Table[EngineHost]:
    def read(name: str, figures: dict[str, Any]) -> EngineHost:
        return replace(section.read(EngineHost, figures, f"engines.{name}"), name=name)

    return load("engines.yaml", "engines", read)


ENGINE_NAME: Final = Form.of(Names(lambda: ["auto", *engines().names], SPELLED))
