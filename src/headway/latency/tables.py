"""The packaged tables of GPUs, models and links: reading them, and finding an entry by any of its names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import yaml

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError

T = TypeVar("T")


def plain(name: str) -> str:
    """Case, `_` and blanks do not matter in names: "RTX 4090" is rtx-4090."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


class Table(Generic[T]):
    """Entries by name, in the order of the file, with the date at which its figures were taken."""

    def __init__(self, as_of: str, entries: Mapping[str, T], aliases: Mapping[str, str]) -> None:
        self.as_of = as_of
        self.entries = MappingProxyType(dict(entries))
        self.aliases = MappingProxyType(dict(aliases))

    def find(self, name: str, kind: str, where: str, instead: str = "a mapping of figures will do") -> T:
        wanted = plain(name)
        entry = self.entries.get(self.aliases.get(wanted, wanted))
        if entry is None:
            near = get_close_matches(wanted, [*self.entries, *self.aliases], n=1)
            hint = suggest(wanted, near) if near else ""
            raise HeadwayError(
                f"{where}: no {kind} in the table is called {shown(name)} ({instead}).{hint} "
                f"Known: {', '.join(sorted(self.entries))}."
            )
        return entry


def document_of(file: str) -> dict[str, Any]:
    """A file of `presets/`."""
    text = files("headway").joinpath("presets").joinpath(file).read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # C, where it is built
    return found


def figures_of(file: str, key: str) -> dict[str, dict[str, Any]]:
    """The entries of a table as they are written, without their other names."""
    entries = document_of(file)[key].items()
    return {name: {key: value for key, value in own.items() if key != "aliases"} for name, own in entries}


def load(file: str, key: str, make: Callable[[str, dict[str, Any]], T]) -> Table[T]:
    """A table of `presets/`; `make` builds an entry from its name and its figures."""
    document = document_of(file)
    entries: dict[str, T] = {}
    aliases: dict[str, str] = {}
    for name, figures in document[key].items():
        for alias in figures.pop("aliases", ()):
            aliases[alias] = name
        entries[name] = make(name, figures)
    return Table(str(document["as_of"]), entries, aliases)
