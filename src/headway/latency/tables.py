"""Read the packaged tables of GPUs, models and links, whose entries have names and aliases. Read CSV files of measured
steps."""

import csv
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import yaml

from headway.config.wording import join_words, shown, suggest
from headway.errors import HeadwayError
from headway.latency.exact_numbers import not_negative

T = TypeVar("T")
SPELLED: Final = "[A-Z_ ]"  # matches a character that `plain` replaces


def plain(name: str) -> str:
    """Normalize a name: case, `_` and spaces do not matter, so that "RTX 4090" becomes "rtx-4090"."""
    return name.strip().lower().replace("_", "-").replace(" ", "-")


class Table(Generic[T]):
    """The entries of a table file by name, in the order of the file. `as_of` is the date of the values."""

    def __init__(self, as_of: str, entries: Mapping[str, T], aliases: Mapping[str, str]) -> None:
        self.as_of = as_of
        self.entries = MappingProxyType(dict(entries))
        self.aliases = MappingProxyType(dict(aliases))

    @property
    def names(self) -> list[str]:
        """All names and aliases."""
        return [*self.entries, *self.aliases]

    def find(self, name: str, kind: str, where: str, instead: str = "give a mapping of its keys instead") -> T:
        key = plain(name)
        entry = self.entries.get(self.aliases.get(key, key))
        if entry is None:
            near = get_close_matches(key, self.names, n=1)
            hint = suggest(key, near) if near else ""
            raise HeadwayError(
                f"{where}: no {kind} in the table is called {shown(name)}; {instead}.{hint} "
                f"Known: {', '.join(sorted(self.entries))}."
            )
        return entry


def document_of(file: str) -> dict[str, Any]:
    """Return the content of a YAML file in `presets/`."""
    text = files("headway").joinpath("presets").joinpath(file).read_text(encoding="utf-8")
    # The C loader is faster, but some builds of PyYAML lack it.
    document: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def load(file: str, key: str, make: Callable[[str, dict[str, Any]], T]) -> Table[T]:
    """Load a table from a file in `presets/`. The function `make` creates an entry from its name and its keys."""
    document = document_of(file)
    entries: dict[str, T] = {}
    aliases: dict[str, str] = {}
    for name, figures in document[key].items():
        for alias in figures.pop("aliases", ()):
            aliases[alias] = name
        entries[name] = make(name, figures)
    return Table(str(document["as_of"]), entries, aliases)


# A CSV file of measured steps.

COLUMNS: Final = ("batch", "decode_kv_tokens", "n_prefill", "new_tokens", "past_context", "median_ms")
Row = tuple[str, dict[str, Any]]


def read_rows(path: str | Path, needed: Sequence[str]) -> list[Row]:
    """Return the rows of a CSV file, each with its location for errors. If the file has a column `mode`, return only
    the rows with the mode "graph"."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except OSError as error:
        raise HeadwayError(f"{path}: cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise HeadwayError(f"{path}: is not a CSV file in UTF-8.") from None
    missing = [repr(name) for name in needed if name not in columns]
    if missing:
        raise HeadwayError(f"{path}: has no column {join_words(missing)}. A file of steps needs {', '.join(needed)}.")
    return [(place, row) for place, row in rows if row.get("mode") in (None, "", "graph")]


def whole(text: str | None, where: str) -> int:
    value = not_negative(text or "0", where)
    if value != int(value):
        raise HeadwayError(f"{where}: must be a whole number, got {shown(text)}.")
    return int(value)
