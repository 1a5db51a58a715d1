"""Distributions of durations: how long a person thinks or a tool runs. A draw is a whole number of microseconds.

A bare duration is a constant. Otherwise a mapping as for lengths, with durations for its figures:
`{dist: exponential, mean: 10s}`, `{dist: lognormal, mean: 2s, std: 3s, max: 60s}`, `{dist: uniform, min: 1s, max: 5s}`,
`{dist: empirical, values: [1s, 5s], weights: [3, 1]}`.
"""

from __future__ import annotations

from fractions import Fraction
from random import Random
from typing import Any, Final

import msgspec

from headway.config.units import LONGEST_PS, duration_ps
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.workload.shapes import Draw, Maker, check_weights, clamped, continuous, pickers

PS_PER_US: Final = 1_000_000
MAX_US: Final = LONGEST_PS // PS_PER_US
FIGURES: Final[dict[str, tuple[str, ...]]] = {  # those that each kind must be given
    "constant": ("value",),
    "uniform": ("min", "max"),
    "normal": ("mean", "std"),
    "exponential": ("mean",),
    "lognormal": ("mean", "std"),
    "empirical": ("values",),
}


def parse(spec: object, where: str) -> dict[str, Any]:
    """The kind (`dist`) and its figures in whole microseconds."""
    if not isinstance(spec, dict):
        return {"dist": "constant", "value": _microseconds(spec, where)}
    kind = spec.get("dist")
    if kind is None:
        raise HeadwayError(f"{where}: expected a duration or a mapping with 'dist', one of {', '.join(FIGURES)}.")
    if not isinstance(kind, str) or kind not in FIGURES:
        raise HeadwayError(f"{where}.dist: no distribution is called {shown(kind)}.{suggest(str(kind), FIGURES)}")
    known = ("dist", *FIGURES[kind], "min", "max") + (("weights",) if kind == "empirical" else ())
    found: dict[str, Any] = {"dist": kind}
    for key, value in spec.items():
        place = f"{where}.{key}"
        if key not in known:
            raise HeadwayError(f"{place}: there is no such key.{suggest(str(key), known)}")
        if key in ("values", "weights"):
            found[key] = _list(key, value, place)
        elif key != "dist":
            found[key] = _microseconds(value, place)
    for name in FIGURES[kind]:
        if name not in found:
            raise HeadwayError(f"{where}: {name!r} is missing.")
    _check(found, where)
    return found


def _check(found: dict[str, Any], where: str) -> None:
    if found.get("mean") == 0:
        raise HeadwayError(f"{where}.mean: must be longer than nothing.")
    if found.get("min", 0) > found.get("max", MAX_US):
        raise HeadwayError(f"{where}.min: is above the max.")
    if "weights" in found:
        check_weights(found["weights"], len(found["values"]), "values", f"{where}.weights")


def _list(key: str, value: object, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise HeadwayError(f"{where}: expected a list, got {shown(value)}.")
    if key == "values":
        return [_microseconds(one, where) for one in value]
    try:
        return msgspec.convert(value, list[float])
    except msgspec.ValidationError:
        raise HeadwayError(f"{where}: expected a list of numbers, got {shown(value)}.") from None


def _microseconds(value: object, where: str) -> int:
    return round(Fraction(duration_ps(value, where), PS_PER_US))


def sampler(spec: object, where: str, rng: Random) -> Draw:
    """A function that draws whole microseconds from `rng`."""
    return maker(spec, where)(rng)


def maker(spec: object, where: str) -> Maker:
    """Samplers of one distribution, which is read once."""
    found = parse(spec, where)
    low, high = found.get("min", 0), found.get("max", MAX_US)
    kind = found["dist"]
    if kind == "constant":
        value = min(max(found["value"], low), high)
        return lambda _: lambda: value
    if kind == "empirical":
        values = [min(max(one, low), high) for one in found["values"]]
        return pickers(values, found.get("weights"))
    mean, std = found.get("mean", 0), found.get("std", 0)
    return lambda rng: clamped(continuous(kind, mean, std, low, high, rng), low, high)
