"""Checks the types of the arguments of public functions, by their annotations.

A wrong type, such as a list in place of a path, would otherwise fail somewhere inside, with an error that does not name
the argument.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from numbers import Integral, Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from headway.config.wording import PLURALS, WORDS, join_words, shown
from headway.errors import HeadwayError, argument

P = ParamSpec("P")
R = TypeVar("R")
LISTS: Final = (Iterable, Sequence, list, tuple)
NUMBERS: Final = {int: Integral, float: Real}  # the abstract types also include NumPy's numbers


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: if an argument has a wrong type, raise a `HeadwayError` that names the argument."""
    signature = inspect.signature(function)
    kinds = cache(lambda: {name: kind for name, kind in get_type_hints(function).items() if name in named})
    named = {name for name, each in signature.parameters.items() if each.kind != inspect.Parameter.VAR_KEYWORD}

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            bound = signature.bind_partial(*args, **kwargs)
        except TypeError:
            return function(*args, **kwargs)  # raises Python's own error, which names the wrong argument
        _check(kinds(), bound.arguments)
        for name, value in bound.arguments.items():
            if isinstance(value, Integral) and not isinstance(value, int):  # a NumPy integer
                bound.arguments[name] = int(value)
        return function(*bound.args, **bound.kwargs)

    return call


def check_fields(record: object) -> None:
    """Check a record that the user filled: if a field has a wrong type, raise a `HeadwayError`."""
    kinds = get_type_hints(type(record))
    _check(kinds, {name: getattr(record, name) for name in kinds})


def _check(kinds: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    for name, kind in kinds.items():
        if name in values and not _accepts(kind, values[name]):
            raise HeadwayError(f"{argument(name)}: expected {_describe(kind)}, got {shown(values[name])}.")


def _accepts(kind: Any, value: Any) -> bool:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_accepts(part, value) for part in inner)
    if origin is Literal:  # check only the type: the function checks the value, and its error suggests the nearest one
        return isinstance(value, type(inner[0]))
    if origin in NUMBERS:
        return isinstance(value, NUMBERS[origin]) and not isinstance(value, bool)
    if origin is Path:
        return isinstance(value, os.PathLike)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping)
    if origin in LISTS:
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, origin):
            return False
        return not inner or not isinstance(value, Sequence) or all(_accepts(inner[0], each) for each in value)
    if origin is Any or not isinstance(origin, type) or getattr(origin, "_is_protocol", False):
        return True
    return isinstance(value, origin)


def _describe(kind: Any) -> str:
    """Describe the values that `_accepts` accepts."""
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    if str in parts and Path in parts:
        parts = tuple(part for part in parts if part is not str)
    return join_words(list(dict.fromkeys(_describe_part(part) for part in parts)), "or")


def _describe_part(kind: Any) -> str:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is NoneType:
        return "None"
    if origin is bool:
        return "True or False"
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is Path:
        return "a path"
    if origin in (dict, Mapping):
        return "a mapping"
    if origin in LISTS:
        return f"a list of {PLURALS[inner[0]]}" if inner and inner[0] in PLURALS else "a list"
    if origin is Callable:
        return "a function"
    return WORDS.get(origin) or f"a {origin.__name__}"
