"""How a result is displayed: as text, as HTML in a notebook, as a data frame and as charts.

A result names the function that describes it for people. That function is in `headway.report` or in a layer above it,
so it is imported when a result is first shown. This also keeps `import headway` fast.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Final, get_args, get_type_hints

from headway.errors import missing_extra

# Replacements for terminals without Unicode.
SIGNS: Final = {"▸": ">", "→": "->", "×": "x", "–": "-", "·": "|", "≤": "<=", "±": "+-", "✓": "+", "✗": "x", "…": "..."}
PLAIN: Final = str.maketrans({**SIGNS, **dict.fromkeys("▏▎▍▌▋▊▉█▁▂▃▄▅▆▇", "#")})


Types = Mapping[str, type]


class Displayed:
    """The base of every result: it displays the result as a short text, HTML, data frames and charts."""

    __slots__ = ()

    _view: ClassVar[str]  # module:function that returns the `report.result_view.View` of the result
    _types: ClassVar[Types] = {}  # column -> type; needed for a column of strings or booleans that may be empty

    def columns(self) -> dict[str, list[Any]]:
        """Return the table of the result: columns of equal length by name. Quantities are numbers in base units, not
        strings with a unit."""
        raise NotImplementedError

    def to_pandas(self) -> Any:
        """Return the table of the result as a data frame of pandas."""
        return pandas_frame(self.columns(), self._types)

    def to_polars(self) -> Any:
        """Return the table of the result as a data frame of Polars."""
        return polars_frame(self.columns(), self._types)

    def plot(self, name: str | None = None) -> Any:
        """Return charts of the result as one Altair chart. A result may have several sets of charts: `name` selects one
        of them, by default the first. An unknown name raises an error that lists the names."""
        return view_of(self).plot(name)

    def __repr__(self) -> str:
        text: str = view_of(self).text()
        return text

    def _repr_html_(self) -> str:
        html: str = view_of(self).html()
        return html


class Document(Displayed, dict[str, Any]):
    """A mapping with the JSON document of a command. It is displayed like a result."""

    __slots__ = ()

    __repr__ = Displayed.__repr__


def view_of(result: Displayed) -> Any:
    """Return the `View` that describes a result."""
    module, _, name = result._view.partition(":")
    return getattr(importlib.import_module(module), name)(result)


def columns_of(rows: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> dict[str, list[Any]]:
    """Return rows as columns. A value that a row does not have is None. `names` are the columns if there are no
    rows."""
    table = list(rows)
    names = dict.fromkeys(name for row in table for name in row) if table else names
    return {name: [row.get(name) for row in table] for name in names}


def flat(value: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Flatten a nested mapping to one mapping with dotted keys. A list stays one value."""
    values: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            values.update(flat(inner, f"{before}{key}."))
        else:
            values[f"{before}{key}"] = inner
    return values


def cells(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the strings and numbers of a nested mapping by dotted key, as a row of a table."""
    return {key: inner for key, inner in flat(value).items() if not isinstance(inner, list | tuple | Mapping)}


SCALARS: Final = (bool, int, float, str)


def types_of(record: type) -> dict[str, type]:
    """Return the type of each field of a record. Include only fields with a scalar, or with one scalar per row."""
    kinds = {name: (hint, *get_args(hint)) for name, hint in get_type_hints(record).items()}
    return {name: kind for name, hints in kinds.items() for kind in hints[:2] if kind in SCALARS}


def pandas_frame(columns: Mapping[str, list[Any]], types: Types) -> Any:
    pandas = library("pandas", extra="data", purpose="data frames")
    frame = pandas.DataFrame(columns)
    dtypes = {str: pandas.Series([""]).dtype, bool: "boolean", int: "float64" if len(frame) else "int64"}
    return frame.astype({name: dtypes.get(kind, "float64") for name, kind in _without_values(columns, types).items()})


def polars_frame(columns: Mapping[str, list[Any]], types: Types) -> Any:
    polars = library("polars", extra="data", purpose="data frames")
    # strict=False: a column with whole numbers and fractions becomes a column of floats, and a column with numbers
    # and strings becomes a column of strings.
    return polars.DataFrame(
        columns, schema_overrides=_without_values(columns, types), infer_schema_length=None, strict=False
    )


def _without_values(columns: Mapping[str, list[Any]], types: Types) -> dict[str, type]:
    """Return the types of the columns in which every value is None. Without a known type, the type is float."""
    return {name: types.get(name, float) for name, values in columns.items() if all(value is None for value in values)}


def library(name: str, *, extra: str, purpose: str) -> Any:
    """Import an optional package. If it is missing, raise an error that names the extra of Headway to install."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise missing_extra(purpose, name, extra) from None


def encodable(text: str) -> bool:
    """Return whether stdout can encode a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Return a text that stdout can print. If stdout cannot encode the text, replace its special characters, such as ×,
    by plain ones."""
    return text if encodable(text) else text.translate(PLAIN)
