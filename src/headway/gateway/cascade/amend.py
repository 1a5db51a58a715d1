"""A request's body with some fields other than its client wrote them. What is not named stays as it was written, value
by value and in its order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

Fields = dict[str, Raw]
NOTHING: Final = (b"null", b"false")

_decode: Callable[[bytes], Fields] = msgspec.json.Decoder(Fields).decode
_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def fields_of(body: bytes) -> Fields:
    """Raises msgspec.MsgspecError where it is no JSON object."""
    return _decode(body)


def asked_for(fields: Fields, name: str) -> bool:
    """Whether a field is there, and neither null nor false."""
    return name in fields and bytes(fields[name]) not in NOTHING


def amended(fields: Fields, changes: Mapping[str, Any], without: tuple[str, ...] = ()) -> bytes:
    found: dict[str, Any] = {**fields, **changes}
    for name in without:
        found.pop(name, None)
    return _encode(found)
