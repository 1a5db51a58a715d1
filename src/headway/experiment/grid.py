"""The grid of a sweep: every combination of the values of the varied keys."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from decimal import Decimal
from itertools import product
from math import prod
from typing import Any, Final

from msgspec import Struct

from headway.config.units import bandwidth, duration_ps, rate, size_bytes
from headway.config.wording import cut, join_words, shown
from headway.errors import HeadwayError
from headway.experiment.contenders import label as policy_label
from headway.experiment.contenders import list_items, stage_label
from headway.policies import registry
from headway.scenario import overrides
from headway.scenario.references import absolute
from headway.scenario.scenario import STAGES, Scenario, validate
from headway.types import PS_PER_SECOND, Json

WHERE: Final = "vary"
MOST: Final = 100_000  # maximum number of points of a grid
NUMBER: Final = r"[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
QUANTITY: Final = re.compile(rf"({NUMBER})\s*([A-Za-zµ%]{{0,3}}(?:\s*/\s*[a-z]{{1,3}})?)")
RANGE: Final = re.compile(r"(.+?)\.\.(.+?)(?::([^:]+))?")
# Parsers of a quantity with a unit: a rate per second, a duration in seconds, a size in bytes, and bytes per second.
READERS: Final[tuple[Callable[[Any], float], ...]] = (
    lambda text: float(rate(text, "")),
    lambda text: duration_ps(text, "") / PS_PER_SECOND,
    lambda text: size_bytes(text, ""),
    lambda text: bandwidth(text, ""),
)
Vary = str | Iterable[str] | Mapping[str, Any]


class Axis(Struct, frozen=True):
    """A key of the scenario and the values that it takes."""

    path: str
    values: list[Any]

    @property
    def keys(self) -> list[str]:
        return self.path.split(".")

    @property
    def stage(self) -> str | None:
        """If the key sets the policy of a stage, the name of the stage; otherwise None."""
        keys = self.keys
        return keys[1] if len(keys) == 2 and keys[0] == "policies" and keys[1] in STAGES else None

    def text(self, value: Any) -> str:
        """Return a short string for a value of this key."""
        if self.stage is not None and isinstance(value, str | Mapping):
            return policy_label(*registry.split(dict(value) if isinstance(value, Mapping) else value, self.path))
        return flat(value)

    def numbers(self) -> dict[str, Any]:
        """Map the text of each value to the value that a table shows. If all values are quantities of one kind, such as
        rates, the table shows numbers in base units. Otherwise it shows strings and numbers unchanged, and any other
        value as a short string."""
        if all(isinstance(value, str) for value in self.values):
            for read in READERS:
                try:
                    return {flat(value): read(value) for value in self.values}
                except HeadwayError:
                    continue
        plain = (value if isinstance(value, str | int | float | None) else self.text(value) for value in self.values)
        return dict(zip(map(flat, self.values), plain, strict=True))


class Point(Struct, frozen=True):
    """A scenario of the grid."""

    vary: Json
    label: str  # the varied values in words
    policy: str  # the varied policies; if no policy varies, the routing policy
    scenario: Scenario


def flat(value: Any) -> str:
    """Return a value of a scenario on one line, as in YAML."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {flat(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(flat, value))}]"
    return str(value)


def axes(vary: Vary, base: Scenario) -> list[Axis]:
    """Parse the varied keys from strings such as "workload.rate=20..80:10" or from a mapping of paths to values. A
    number without a unit takes the unit of the scenario's value."""
    texts = vary if isinstance(vary, Mapping) else _split([vary] if isinstance(vary, str) else vary)
    resolved = base.resolved()
    varied = []
    for path, text in texts.items():
        if not isinstance(path, str):
            raise HeadwayError(f"{WHERE}: expected the path of a key, such as workload.rate, got {shown(path)}.")
        where = f"{WHERE} {cut(path)}"
        items = list_items(text, where)
        if not items:
            raise HeadwayError(f"{where}: name at least one value, as in workload.rate=20..80:10.")
        own = _at(resolved, path.split("."))
        quantity = _quantity(own) if isinstance(own, str) else None
        unit = "" if quantity is None else quantity[1]
        values = [_with_unit(value, unit) for item in items for value in _expand(item, unit, where)]
        counts = Counter(map(flat, values))
        twice = next((text for text, count in counts.items() if count > 1), None)
        if twice is not None:
            raise HeadwayError(f"{where}: {shown(twice)} appears twice. Remove one.")
        varied.append(Axis(path, values))
    if not varied:
        raise HeadwayError(f"{WHERE}: name at least one key and its values, as in workload.rate=20..80:10.")
    return varied


def _split(texts: Iterable[str]) -> dict[str, str]:
    """Split strings of the form path=values, and return the values of each path as a string."""
    by_path: dict[str, str] = {}
    for text in texts:
        path, equals, values = text.partition("=")
        path = ".".join(key.strip() for key in path.split("."))
        if not equals or not all(path.split(".")):
            raise HeadwayError(f"{WHERE} {cut(text)}: write it as key.path=values, as in workload.rate=20..80:10.")
        if path in by_path:
            raise HeadwayError(f"{WHERE} {cut(path)}: is given twice. List all its values once, separated by commas.")
        by_path[path] = values
    return by_path


def _expand(item: Any, unit: str, where: str) -> list[Any]:
    """Return the values of a range such as 20/s..80/s:10/s; for any other item, return only the item."""
    match = RANGE.fullmatch(item.strip()) if isinstance(item, str) else None
    ends = [] if match is None else [_quantity(match[place]) for place in (1, 2)]
    if match is None or None in ends:
        return [item]
    step = None if match[3] is None else _quantity(match[3])
    if step is None:
        raise HeadwayError(f"{where}: the range {shown(item)} has no step; write it as {match[1]}..{match[2]}:STEP.")
    parts = [part for part in (*ends, step) if part is not None]
    units = list(dict.fromkeys(part[1] for part in parts if part[1]))
    if len(units) > 1:
        raise HeadwayError(f"{where}: the range {shown(item)} mixes {join_words(units)}. Use one unit.")
    low, high, stride = (part[0] for part in parts)
    if stride <= 0 or high < low:
        raise HeadwayError(f"{where}: the range {shown(item)} must rise, with a step above 0, as in 20..80:10.")
    if (high - low) / stride > MOST:
        raise HeadwayError(f"{where}: the range {shown(item)} has more than {MOST:,} values. Use a larger step.")
    count = int((high - low) / stride) + 1
    return [_quantity_text(low + place * stride, units[0] if units else unit) for place in range(count)]


def _quantity(text: Any) -> tuple[Decimal, str] | None:
    """Split a string into a number and its unit, which may be empty. If it is not a quantity, return None."""
    match = QUANTITY.fullmatch(str(text).strip())
    return None if match is None else (Decimal(match[1].replace("_", "")), match[2].strip())


def _quantity_text(number: Decimal, unit: str) -> Any:
    plain = format(number.normalize(), "f")
    if unit:
        return f"{plain}{unit}"
    return int(plain) if number == number.to_integral_value() else float(plain)


def _with_unit(value: Any, unit: str) -> Any:
    if not unit or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    return _quantity_text(Decimal(str(value)), unit)


def _at(data: Any, keys: Sequence[str]) -> Any:
    """Return the value at a path of a resolved scenario. If the path does not exist, return None."""
    for key in keys:
        if isinstance(data, list):
            data = data[int(key)] if key.isdecimal() and int(key) < len(data) else None
        else:
            data = data.get(key) if isinstance(data, dict) else None
    return data


def points(data: Json, varied: Sequence[Axis]) -> list[Point]:
    """Return the points of the grid, the last key varying fastest. Raise an error at the first invalid scenario."""
    count = prod(len(axis.values) for axis in varied)
    if count > MOST:
        raise HeadwayError(f"{WHERE}: the grid has {count:,} points; the limit is {MOST:,}. Vary fewer values.")
    return [_point(data, varied, values) for values in product(*(axis.values for axis in varied))]


def _point(data: Json, varied: Sequence[Axis], values: Sequence[Any]) -> Point:
    changed: Json = deepcopy(data)
    texts = []
    for axis, value in zip(varied, values, strict=True):
        where = f"{WHERE} {cut(axis.path)}"
        overrides.put(changed, axis.keys, deepcopy(absolute(value)), where)
        texts.append(axis.text(value))
    label = ", ".join(f"{name}={text}" for name, text in zip(names(varied), texts, strict=True))
    try:
        scenario = validate(changed)
    except HeadwayError as error:
        whole = ", ".join(f"{axis.path}={text}" for axis, text in zip(varied, texts, strict=True))
        raise HeadwayError(f"{WHERE} {cut(whole)}: {error}") from None
    decided = [text for axis, text in zip(varied, texts, strict=True) if axis.stage is not None]
    policy = " + ".join(decided) or stage_label("routing", scenario.policies.explicit("routing"))
    vary = {axis.path: value for axis, value in zip(varied, values, strict=True)}
    return Point(vary, label, policy, scenario)


def names(varied: Sequence[Axis]) -> list[str]:
    """Return the name of each axis: its last key, or its whole path if another axis has the same last key."""
    last = [axis.keys[-1] for axis in varied]
    return [axis.path if last.count(name) > 1 else name for axis, name in zip(varied, last, strict=True)]
