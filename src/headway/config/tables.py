"""Generates the tables of keys in the documentation from the declarations of the keys.

In a page, a table is between the comments `<!-- keys: scenario.scenario.RouterSpec -->` and `<!-- /keys -->`. The first
comment names the struct that declares the section. `python -m headway.config.tables docs/*.md` updates all tables.
"""

import re
import sys
from importlib import import_module
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Meta, Struct

from headway.config.keys import Key, keys_of, write_value
from headway.config.wording import PLURALS, limit_text

BLOCK: Final = re.compile(r"(<!-- keys: (\S+) -->\n).*?(<!-- /keys -->)", re.DOTALL)
ENDLESS: Final = 10**9  # tables omit upper bounds from this size on, because such bounds only catch typing errors
HEAD: Final = "| Key | Type | Default | Meaning |\n|---|---|---|---|\n"
NAMES: Final = {int: "whole number", float: "number", bool: "true or false", str: "text", Any: "any value"}


def fill_tables(page: str) -> str:
    """Return a page with its tables of keys updated."""
    return BLOCK.sub(lambda block: f"{block[1]}{key_table(find_section(block[2]))}{block[3]}", page)


def find_section(name: str) -> type[Struct]:
    """Return the struct with this name. The name begins with the struct's module in the package."""
    module, _, struct = name.rpartition(".")
    section: type[Struct] = getattr(import_module(f"headway.{module}"), struct)
    return section


def key_table(section: type[Struct]) -> str:
    """Return a Markdown table of the keys of a section: name, type, default and meaning."""
    rows = [(f"`{key.name}`", type_text(key), default_text(key), key.doc.meaning) for key in keys_of(section).values()]
    return HEAD + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def type_text(key: Key) -> str:
    """Describe the type of a key, such as "whole number, 1 to 1,024"."""
    if key.doc.type is not None:
        return key.doc.type
    return key.unit.name if key.unit is not None else _type_text(key.type)


def _type_text(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return ", ".join((_type_text(inner[0]), *(_range_text(mark) for mark in inner[1:] if isinstance(mark, Meta))))
    if origin is Literal:
        return " or ".join(filter(None, (", ".join(inner[:-1]), inner[-1])))
    if origin in (Union, UnionType):
        return " or ".join(_type_text(part) for part in inner if part is not NoneType)
    if origin in (list, tuple):
        return f"list of {PLURALS.get(inner[0], 'values')}"
    return NAMES.get(kind, "mapping")


def _range_text(bounds: Meta) -> str:
    low, high = bounds.ge, bounds.le
    if low is not None and high is not None and high < ENDLESS:
        return f"{limit_text(low)} to {limit_text(high)}"
    above = f"above {limit_text(bounds.gt)}" if bounds.gt is not None else None
    least = f"{limit_text(low)} or more" if low is not None else None
    most = f"at most {limit_text(high)}" if high is not None and high < ENDLESS else None
    return ", ".join(filter(None, (above, least, most)))


def default_text(key: Key) -> str:
    if key.doc.default is not None:
        return key.doc.default
    if key.required:
        return "required"
    if key.unit is not None and key.unit.show is not None:
        return key.unit.show(key.default)
    value = write_value(key, key.default)
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, dict):
        return "all defaults"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = Path(name).read_text(encoding="utf-8")
        Path(name).write_text(fill_tables(text), encoding="utf-8")
