"""Names of models: aliases, and the names that a client may use. An alias replaces the value of `model` in the body of
a request, and no other byte."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.request_body import LONGEST_MODEL, read_fields
from headway.gateway.settings import check_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headway.gateway.api_keys import Key

MODEL: Final = "model"
MOST_FIELDS: Final = 1000  # a body with more fields is refused if the gateway must look for one of them
# The next field of an object, from the brace or comma before it to the colon.
FIELD: Final = re.compile(rb'\s*[{,]\s*("[^"\\]*(?:\\.[^"\\]*)*")\s*:\s*')
_name: Callable[[bytes], str] = msgspec.json.Decoder(str).decode
_encode: Callable[[Any], bytes] = msgspec.json.Encoder().encode


def read_aliases(data: Any, where: str = "aliases") -> dict[str, str]:
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping of names to models, as in {{fast: m-8b}}, got {shown(data)}.")
    for name, model in data.items():
        check_name(name, where, LONGEST_MODEL)
        check_name(model, f"{where}.{name}", LONGEST_MODEL)
        if model in data:
            raise HeadwayError(f"{where}.{name}: {shown(model)} is an alias too. Name the model itself.")
    return dict(data)


def replace_model(body: bytes, model: str) -> bytes:
    """Return a JSON object with another value of its field `model`. All other bytes stay. If a field occurs twice,
    raise HeadwayError, because readers of JSON differ in which of the two they take."""
    start, end = find_model(body)
    return b"".join((body[:start], _encode(model), body[end:]))


def find_model(body: bytes) -> tuple[int, int]:
    """Return the offsets at which the value of the field `model` begins and ends. Raise HeadwayError if an engine could
    read another model: some readers of JSON, such as Go's, ignore the case of names."""
    fields = read_fields(body)
    if len(fields) > MOST_FIELDS:
        raise HeadwayError(f"the request has more than {MOST_FIELDS:,} fields")
    sizes = {name: len(value) for name, value in fields.items()}
    place = (-1, -1)
    at = body.index(b"{")
    while (field := FIELD.match(body, at)) is not None:
        name = _name(field[1])
        size = sizes.pop(name, None)
        start = field.end()
        if size is None or (size > 0 and body[start : start + size] != bytes(fields[name])):
            raise HeadwayError(f"the field {shown(name)} occurs twice. Send it once.")
        at = start + size
        if name != MODEL and name.lower() == MODEL:
            raise HeadwayError(f"the field {shown(name)} differs from 'model' only in case. Remove it.")
        if name == MODEL:
            place = (start, at)
    if place[0] < 0:
        raise HeadwayError("the request has no field `model`")
    return place


def permit(key: Key, model: str, body: bytes) -> bool:
    """Return whether the list of a key has the model of a request. If the body names a field twice, raise
    HeadwayError: the engine could take another model than the gateway."""
    if key.models is None:
        return True
    if model:
        find_model(body)
    return model in key.models


def visible_models(names: Iterable[str], aliases: Mapping[str, str], key: Key | None) -> list[str]:
    """Return the names that the holder of a key may use, each once."""
    known = dict.fromkeys([*names, *aliases])
    return [name for name in known if key is None or key.models is None or name in key.models]
