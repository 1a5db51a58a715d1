"""Transforms of traces. They are applied in order and, if possible, to one record at a time.

In a scenario, transforms are a list: `transforms: [{cap: {max_turns: 8}}, {scale: {rate: 2}}]`. On the command line,
each transform is a command: `headway trace cap IN OUT --max-turns 8`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from headway.config.keys import Form
from headway.config.schema import Later, ListOf, Mapped
from headway.config.section import read
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms import anonymise, assign, cap, dequantise, filter, merge, scale, slice, starts
from headway.workload.transforms.base import Transform, with_records

__all__ = ["TRANSFORMS", "TRANSFORMS_FORM", "Transform", "apply", "make", "parse"]

# Each module defines `Spec`, the keys of the transform, and `transform`, which returns a function from trace to trace.
MODULES: Final = (cap, scale, slice, merge, filter, dequantise, anonymise, starts, assign)
TRANSFORMS: Final = {module.__name__.rpartition(".")[2]: module for module in MODULES}
NESTED: Final = ".merge.transforms"
DEEPEST: Final = 4  # maximum depth of nested merges, because transforms call each other and so use Python's stack
MOST: Final = 30


TRANSFORMS_FORM: Final = Form.of(Later("transforms", lambda: ListOf(_steps_form())))


def _steps_form() -> Form:
    return Form.of({"enum": list(TRANSFORMS)}, *(_step(name, module.Spec) for name, module in TRANSFORMS.items()))


def _step(name: str, spec: type[Struct]) -> Mapped:
    return Mapped({name: spec | None}, (name,))


def parse(data: object, where: str) -> list[Transform]:
    """Read a list of transforms such as [{cap: {max_turns: 8}}, dequantise]."""
    if not isinstance(data, list | tuple):
        raise HeadwayError(f"{where}: expected a list such as [{{cap: {{max_turns: 8}}}}], got {shown(data)}.")
    if len(data) > MOST or (data and where.count(NESTED) > DEEPEST):
        raise HeadwayError(
            f"{cut(where)}: too many transforms. The limit is {MOST} in a list and {DEEPEST} nested merges; "
            "convert the trace in several steps."
        )
    return [_parse_step(item, f"{where}[{number}]") for number, item in enumerate(data)]


def _parse_step(item: Any, where: str) -> Transform:
    if isinstance(item, str):
        item = {item: None}
    if not isinstance(item, dict) or len(item) != 1:
        raise HeadwayError(f"{where}: expected one transform such as {{cap: {{max_turns: 8}}}}, got {shown(item)}.")
    [(name, parameters)] = item.items()
    if not isinstance(name, str) or name not in TRANSFORMS:
        raise HeadwayError(f"{where}: no transform is called {shown(name)}.{suggest(cut(str(name)), TRANSFORMS)}")
    return make(name, parameters, f"{where}.{name}")


def make(name: str, parameters: object, where: str) -> Transform:
    """Return the transform with this name. `where` is its path in the scenario for errors."""
    module = TRANSFORMS[name]
    step = module.transform(read(module.Spec, {} if parameters is None else parameters, where), where)
    return lambda reader: _check_filled(step(reader), where)


def apply(reader: Reader, transforms: Sequence[Transform]) -> Reader:
    """Apply the transforms in order, and return a reader of the resulting trace."""
    for transform in transforms:
        reader = transform(reader)
    return reader


def _check_filled(reader: Reader, where: str) -> Reader:
    """Return a reader of the same trace that raises an error if the trace has no requests."""

    def records() -> Iterator[Record]:
        record = None
        for record in reader.records:
            yield record
        if record is None:
            raise HeadwayError(f"{where}: this transform removes every request of the trace. Make it keep some.")

    return with_records(reader, records())
