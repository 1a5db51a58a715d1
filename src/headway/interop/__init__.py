"""Formats and protocols of other projects: llm-d's scheduling profiles, BLIS's workloads, policies and traces,
RouteSim's configurations, and Envoy's external processing, with which an inference gateway asks for an endpoint."""

import yaml
from msgspec import Struct

from headway.types import Json


class Translation(Struct, frozen=True):
    """A translated document, and a note for each difference between the two projects."""

    document: Json
    notes: list[str]

    @property
    def text(self) -> str:
        return str(yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True))


def plain(value: float) -> int | float:
    """Return a whole number as an int, and any other number as it is."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else value
