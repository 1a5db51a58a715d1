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
    """Return a number as an int if it is whole, so that files show 2 instead of 2.0. Otherwise return it unchanged."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else value
