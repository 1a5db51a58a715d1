"""Reads one section of a file strictly: an unknown key or a wrong value raises an error that names its location."""

import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final, TypeVar, get_origin

import msgspec

from headway.config.keys import Key, keys_of
from headway.config.wording import cut, describe_type, join_words, shown, suggest
from headway.errors import HeadwayError

S = TypeVar("S", bound=msgspec.Struct)


def read(kind: type[S], data: object, where: str, only: Collection[str] | None = None) -> S:
    """Build a struct from a mapping, using the declarations of its fields (`headway.config.keys`).

    Fields of type `Any` are not checked here; the code that uses the section reads them. The struct may define two
    hooks: `expand(data, where)` turns a short form into a mapping, and `validate(where)` checks keys against each other
    and returns the section or a replacement. If `only` is given, all other keys are invalid.
    """
    expand = getattr(kind, "expand", None)
    if expand is not None:
        data = expand(data, where)
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping, got {shown(data)}.")
    keys = keys_of(kind)
    if only is not None:
        keys = {name: key for name, key in keys.items() if name in only}
    values: dict[str, Any] = {}
    for name, value in data.items():
        key = _find_key(name, keys, where)
        if key.unit is None and key.section is None:
            value = _convert(key, value, where)
        values[key.field] = value
    missing = [repr(key.name) for key in keys.values() if key.required and key.field not in values]
    if missing:
        raise HeadwayError(
            f"{where or 'scenario'}: {join_words(missing)} {'is' if len(missing) == 1 else 'are'} missing."
        )
    for key in keys.values():
        if (key.unit is not None or key.section is not None) and key.field in values:
            values[key.field] = _read_value(key, values[key.field], place_of(key.name, where))
    section = kind(**values)
    validate = getattr(section, "validate", None)
    return section if validate is None else validate(where)


def find_errors(kind: type[msgspec.Struct], data: Any, where: str) -> list[str]:
    """Return all errors of a section that do not depend on each other. If no key alone has one, return the error of
    the whole section, if any."""
    errors: list[str] = []
    try:
        expand = getattr(kind, "expand", None)
        expanded = data if expand is None else expand(data, where)
        for name, value in expanded.items() if isinstance(expanded, dict) else ():
            errors += _key_errors(name, value, keys_of(kind), where)
        if not errors:
            read(kind, data, where)
    except HeadwayError as error:
        errors.append(str(error))
    return errors


def _key_errors(name: Any, value: Any, keys: dict[str, Key], where: str) -> list[str]:
    """Return the errors of a key. The entries of a mapping with names that the user chooses are read one by one."""
    try:
        key = _find_key(name, keys, where)
    except HeadwayError as error:
        return [str(error)]
    if key.section is not None and key.unit is None and value is not None:
        return find_errors(key.section, value, place_of(key.name, where))
    form = None if key.unit is None else key.unit.form
    parts = [value]
    if isinstance(value, dict) and value and form and any(get_origin(each) is dict for each in form.alternatives):
        parts = [{entry: value[entry]} for entry in value]
    return [why for part in parts if (why := _why_not(key, part, where))]


def _why_not(key: Key, value: Any, where: str) -> str:
    """Return why a value cannot be read; "" if it can."""
    try:
        if key.unit is None and key.section is None:
            _convert(key, value, where)
        else:
            _read_value(key, value, place_of(key.name, where))
    except HeadwayError as error:
        return str(error)
    return ""


def _find_key(name: Any, keys: dict[str, Key], where: str) -> Key:
    key = keys.get(str(name))
    if key is None:
        short = cut(str(name))
        raise HeadwayError(f"{place_of(short, where)}: there is no such key.{suggest(short, keys)}")
    return key


def place_of(name: str, where: str) -> str:
    return f"{where}.{name}" if where else name


def _convert(key: Key, value: Any, where: str) -> Any:
    for form in (_unchanged, _exponents_read):  # try the value as it is, then with its exponents read as numbers
        with suppress(msgspec.ValidationError, OverflowError, RecursionError):
            return msgspec.convert(form(value), key.type)
    raise HeadwayError(f"{place_of(key.name, where)}: expected {describe_type(key.type)}, got {shown(value)}.")


def _unchanged(value: Any) -> Any:
    return value


EXPONENT: Final = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d{1,3}")


def _exponents_read(value: Any) -> Any:
    """Convert strings such as `1e2` in a value to numbers, and return the result. PyYAML reads `1e2` as a string, but
    `1.0e+2` as a number."""
    if isinstance(value, dict):
        return {key: _exponents_read(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_exponents_read(inner) for inner in value]
    if not isinstance(value, str) or not EXPONENT.fullmatch(value):
        return value
    number = float(value)
    return int(number) if number.is_integer() else number


def _read_value(key: Key, value: Any, place: str) -> Any:
    """Read the value of a key that has a unit or is a nested section. If a section is null, all its keys have their
    defaults."""
    if value is None and key.optional:
        return None
    if key.unit is not None:
        return key.unit.parse(value, place)
    assert key.section is not None
    if isinstance(value, key.section):
        return value
    return read(key.section, {} if value is None and not key.required else value, place)


def check_range(value: float, low: float, high: float, where: str) -> None:
    if not low <= value <= high:
        text = f"{value:g}" if isinstance(value, float) else shown(value)
        raise HeadwayError(f"{where}: must lie between {low} and {high}, got {text}.")


def split_kind(
    spec: object, where: str, tag: str, kinds: Collection[str], noun: str, title: str
) -> tuple[str, dict[str, Any]]:
    """Return the name of the kind that `spec` chooses, and the other keys of `spec`. `spec` is a name, or a mapping
    with the name under the key `tag`. Error messages use `noun` and `title`."""
    rest = {tag: spec} if isinstance(spec, str) else spec
    if not isinstance(rest, dict):
        raise HeadwayError(f"{where}: expected a {noun}'s name or a mapping with {tag!r}, got {shown(spec)}.")
    rest = dict(rest)
    name = rest.pop(tag, None)
    if name is None:
        raise HeadwayError(f"{where}: {tag!r} is missing; use one of {', '.join(kinds)}.")
    if not isinstance(name, str) or name not in kinds:
        place = where if isinstance(spec, str) else f"{where}.{tag}"
        raise HeadwayError(f"{place}: no {title} is called {shown(name)}.{suggest(str(name), kinds)}")
    return name, rest
