"""Formats and protocols of other projects: llm-d's scheduling profiles, BLIS's workloads and traces, and Envoy's
external processing, with which an inference gateway asks for an endpoint."""

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
