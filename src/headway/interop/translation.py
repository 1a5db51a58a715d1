"""What a translation gives: the document, and each difference once, in the order in which they were found."""

import yaml
from msgspec import Struct

from headway.types import Json


class Notes:
    def __init__(self) -> None:
        self._sentences: dict[str, None] = {}

    def add(self, sentence: str) -> None:
        self._sentences[sentence] = None

    @property
    def sentences(self) -> list[str]:
        return list(self._sentences)


class Translation(Struct, frozen=True):
    document: Json
    notes: list[str]

    @property
    def text(self) -> str:
        return str(yaml.safe_dump(self.document, sort_keys=False, allow_unicode=True))
