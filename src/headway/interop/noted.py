"""What is said beside a translation: each difference once, in the order in which they were found."""

from __future__ import annotations

from typing import Any

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Json


class Notes:
    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def add(self, sentence: str) -> None:
        self._found[sentence] = None

    @property
    def sentences(self) -> list[str]:
        return list(self._found)


class Reading:
    """A mapping of somebody else's, whose keys are taken one by one; those that are left have no counterpart."""

    def __init__(self, data: Json, where: str) -> None:
        self.left, self.where = dict(data), where

    def take(self, name: str, default: Any = None) -> Any:
        found = self.left.pop(name, None)
        return default if found is None else found

    def whole(self, name: str, default: int) -> int:
        found = self.take(name, default)
        if not isinstance(found, int) or isinstance(found, bool) or found < 0:
            raise HeadwayError(f"{self.place(name)}: expected a whole number of at least 0, got {shown(found)}.")
        return found

    def text(self, name: str, default: str | None = None) -> str | None:
        found = self.take(name, default)
        if found is not None and not isinstance(found, str):
            raise HeadwayError(f"{self.place(name)}: expected a name, got {shown(found)}.")
        return found

    def place(self, name: str) -> str:
        return f"{self.where}.{name}"
