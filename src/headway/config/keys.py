"""Declares settings: each key is one annotated field of its section's struct.

The key is the field's name without the suffix of its unit: the field `latency_ps` has the value of the key `latency`.
The type says which values are valid. A `Unit` annotation converts the value in the file to the number in the field. A
string annotation describes the key. Readers, resolved copies, JSON Schemas and the tables in the documentation are
derived from these declarations.

    class Adapters(Struct, frozen=True):
        slots: Annotated[Positive, "adapters that an instance can hold at a time"]
        load_time_ps: Annotated[Duration, "time to load one adapter"]
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct

from headway.config.units import (
    PER,
    SIZE,
    TIME,
    duration_ps,
    duration_text,
    positive_duration_ps,
    positive_seconds,
    quantity_schema,
    size_bytes,
)
from headway.types import PS_PER_SECOND, Json

INTERNAL: Final = object()  # marks a field that is not a key: the program computes or sets it
QUIET: Final = object()  # marks a key that resolved copies omit if it has its default value


class Form(Struct, frozen=True, eq=False):
    """Describes the valid values of a key in a file, if the type of the key's field is too general, such as `Any`.
    The alternatives are types, forms of `headway.config.schema`, or JSON Schemas. Only schema generation uses a
    form."""

    alternatives: tuple[Any, ...]

    @classmethod
    def of(cls, *alternatives: Any) -> Form:
        return cls(alternatives)


class Unit(Struct, frozen=True):
    """Converts a quantity between its form in a file, such as "250ms", and the number in a field."""

    name: str  # name of the quantity, such as "duration"
    parse: Callable[[Any, str], Any]  # arguments: the value in the file, and its location for error messages
    write: Callable[[Any], Any]
    suffix: str = ""  # suffix of the names of the fields that have this unit, such as "_ps"
    show: Callable[[Any], str] | None = None  # returns a shorter form of a value for tables; None: no shorter form
    form: Form | None = None  # form of the value in a file, for schemas; None: the form of the field's type


class Doc(Struct, frozen=True):
    """The description of a key. If `default` or `type` is set, it is shown in place of the default or type in the
    declaration."""

    meaning: str = ""
    default: str | None = None
    type: str | None = None


class Key(Struct, frozen=True):
    field: str
    name: str
    type: Any
    unit: Unit | None
    section: type[Struct] | None  # the struct of a nested section; None: the key is not a section
    optional: bool  # whether null is a valid value
    required: bool
    default: Any
    doc: Doc
    quiet: bool


@cache
def keys_of(kind: type[Struct]) -> dict[str, Key]:
    """Return the keys of a section by name, in the order of declaration."""
    fields = [field for field in msgspec.structs.fields(kind) if INTERNAL not in _marks(field.type)]
    return {key.name: key for key in map(_key, fields)}


def _key(field: msgspec.structs.FieldInfo) -> Key:
    marks = _marks(field.type)
    unit = next((mark for mark in marks if isinstance(mark, Unit)), None)
    kinds = plain_types(field.type)
    section = next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, Struct)), None)
    return Key(
        field.name,
        field.encode_name.removesuffix(unit.suffix) if unit is not None else field.encode_name,
        field.type,
        unit,
        section,
        NoneType in kinds,
        field.required,
        field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory(),
        _doc(marks),
        QUIET in marks,
    )


def _doc(marks: list[Any]) -> Doc:
    """Merge the annotations that describe a key; later ones override earlier ones."""
    doc = Doc()
    for mark in marks:
        if isinstance(mark, str):
            doc = Doc(mark, doc.default, doc.type)
        elif isinstance(mark, Doc):
            doc = Doc(mark.meaning or doc.meaning, mark.default or doc.default, mark.type or doc.type)
    return doc


def _marks(kind: Any) -> list[Any]:
    """Return the annotations of a type and of the members of a union, innermost first."""
    origin = get_origin(kind)
    if origin is Annotated:
        return [*_marks(get_args(kind)[0]), *kind.__metadata__]
    return [mark for part in get_args(kind) for mark in _marks(part)] if origin in (Union, UnionType) else []


def plain_types(kind: Any) -> list[Any]:
    """Return the members of a union, or the type itself, without annotations."""
    origin = get_origin(kind)
    if origin is Annotated:
        return plain_types(get_args(kind)[0])
    return [type_ for part in get_args(kind) for type_ in plain_types(part)] if origin in (Union, UnionType) else [kind]


def write(section: Struct, without: Collection[str] = (), whole: bool = False) -> Json:
    """Return a section in the form that it has in a file. Omit the keys in `without`. Also omit a key that is marked
    QUIET if it has its default value, unless `whole` is set."""
    written = {}
    for key in keys_of(type(section)).values():
        value = getattr(section, key.field)
        if key.name not in without and (whole or not key.quiet or value != key.default):
            written[key.name] = write_value(key, value)
    return written


def write_value(key: Key, value: Any) -> Any:
    if key.unit is not None:
        return None if value is None else key.unit.write(value)
    if key.section is None or value is None:
        return msgspec.to_builtins(value)
    resolved = getattr(value, "resolved", None)  # a section may define a method `resolved`
    return write(value) if resolved is None else resolved()


SIZE_TEXT: Final = Form.of(quantity_schema(SIZE, "80GB", "16GiB"))


def _seconds(value: Any, where: str) -> float:
    return duration_ps(value, where) / PS_PER_SECOND


def _seconds_text(seconds: float) -> str | None:
    return duration_text(round(seconds * PS_PER_SECOND))


def bytes_of_at_least(least: int) -> Unit:
    return Unit("size", partial(size_bytes, least=least), bytes_text, form=SIZE_TEXT)


def bytes_text(size: int) -> str:
    for unit, step in (("GiB", 2**30), ("MiB", 2**20), ("GB", 10**9), ("MB", 10**6), ("KiB", 2**10)):
        if size and size % step == 0:
            return f"{size // step}{unit}"
    return f"{size}B"


DURATION: Final = Form.of(quantity_schema(TIME, "250ms", "1.5s", "5m"))
RATE: Final = Form.of(quantity_schema(PER, "40/s", "90/min", before=r"/\s*"))
BANDWIDTH: Final = Form.of(quantity_schema(SIZE, "50GB/s", after="/s"))
PICOSECONDS: Final = Unit("duration", duration_ps, duration_text, "_ps", form=DURATION)
POSITIVE_PICOSECONDS: Final = Unit("duration above 0", positive_duration_ps, duration_text, "_ps", form=DURATION)
SECONDS: Final = Unit("duration", _seconds, _seconds_text, "_s", form=DURATION)
POSITIVE_SECONDS: Final = Unit("duration above 0", positive_seconds, _seconds_text, "_s", form=DURATION)

Duration = Annotated[int, PICOSECONDS]
PositiveDuration = Annotated[int, POSITIVE_PICOSECONDS]
Seconds = Annotated[float, SECONDS]
PositiveSeconds = Annotated[float, POSITIVE_SECONDS]
Bytes = Annotated[int, bytes_of_at_least(0)]
Positive = Annotated[int, Meta(ge=1, le=10**9)]
