"""Strict reading of one section of a scenario: an unknown key or a wrong value is an error that says where."""

from __future__ import annotations

from functools import cache
from typing import Any, TypeVar

import msgspec

from headway.config.wording import cut, expected, listed, shown, suggest
from headway.errors import HeadwayError

S = TypeVar("S", bound=msgspec.Struct)


def read(kind: type[S], data: object, where: str) -> S:
    """A struct from a mapping. Fields typed `Any` are taken as they are, for the owner of the section to read."""
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping, got {shown(data)}.")
    fields = fields_of(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = cut(str(key))
        place = f"{where}.{name}" if where else name
        field = fields.get(str(key))
        if field is None:
            raise HeadwayError(f"{place}: there is no such key.{suggest(name, fields)}")
        try:
            values[field.name] = msgspec.convert(value, field.type)
        except (msgspec.ValidationError, OverflowError, RecursionError):
            raise HeadwayError(f"{place}: expected {expected(field.type)}, got {shown(value)}.") from None
    missing = [repr(field.encode_name) for field in fields.values() if field.required and field.name not in values]
    if missing:
        raise HeadwayError(f"{where or 'scenario'}: {listed(missing)} {'is' if len(missing) == 1 else 'are'} missing.")
    return kind(**values)


@cache
def fields_of(kind: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """By name; to read the annotations takes longer than to read a section."""
    return {field.encode_name: field for field in msgspec.structs.fields(kind)}
