"""Distributions of durations, such as think times. Each sample is a whole number of microseconds.

A plain duration is a constant. Other distributions are mappings with the same keys as for lengths, but with durations
as values.
"""

from fractions import Fraction
from typing import Annotated, Any, Final

import msgspec

from headway.config.keys import DURATION, Duration, Form
from headway.config.schema import Later, Mapped, Variants
from headway.config.section import split_kind
from headway.config.units import LONGEST_PS, duration_ps
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.types import PS_PER_US
from headway.workload.shapes import Maker, check_weights, clamp, continuous, pickers

MAX_US: Final = LONGEST_PS // PS_PER_US
FIGURES: Final[dict[str, tuple[str, ...]]] = {  # required keys of each distribution
    "constant": ("value",),
    "uniform": ("min", "max"),
    "normal": ("mean", "std"),
    "exponential": ("mean",),
    "lognormal": ("mean", "std"),
    "empirical": ("values",),
}


MEANINGS: Final = {  # meaning of each key
    "value": "the duration of every draw",
    "mean": "mean duration",
    "std": "standard deviation of the durations",
    "min": "shorter draws become this duration",
    "max": "longer draws become this duration",
    "values": "durations to draw from",
    "weights": "weight of each of `values`",
}


def known_keys(kind: str) -> tuple[str, ...]:
    """Return the keys of a distribution."""
    return (*FIGURES[kind], *(key for key in ("min", "max") if key not in FIGURES[kind])) + (
        ("weights",) if kind == "empirical" else ()
    )


def _forms() -> dict[str, Any]:
    """Return the schema of each distribution, by name."""
    lists: dict[str, Any] = {"values": list[Duration], "weights": list[float]}
    return {
        kind: Mapped(
            {key: Annotated[lists.get(key, Duration), MEANINGS[key]] for key in known_keys(kind)}, FIGURES[kind]
        )
        for kind in FIGURES
    }


# Valid values of a drawn duration in a file: a duration, or a distribution.
FORM: Final = Form.of(Later("duration", lambda: Form.of(DURATION, Variants("dist", _forms, bare=False))))
Durations = Annotated[Any, FORM]


def parse(spec: object, where: str) -> dict[str, Any]:
    """Return the distribution as a mapping of `dist` and its other keys. Durations are in whole microseconds."""
    if not isinstance(spec, dict):
        return {"dist": "constant", "value": microseconds(spec, where)}
    kind, rest = split_kind(spec, where, "dist", FIGURES, "distribution", "distribution")
    known = known_keys(kind)
    figures: dict[str, Any] = {"dist": kind}
    for key, value in rest.items():
        place = f"{where}.{key}"
        if key not in known:
            raise HeadwayError(f"{place}: there is no such key.{suggest(str(key), known)}")
        figures[key] = _list(key, value, place) if key in ("values", "weights") else microseconds(value, place)
    for name in FIGURES[kind]:
        if name not in figures:
            raise HeadwayError(f"{where}: {name!r} is missing.")
    if figures.get("mean") == 0:
        raise HeadwayError(f"{where}.mean: must be greater than zero, got 0.")
    if figures.get("min", 0) > figures.get("max", MAX_US):
        raise HeadwayError(f"{where}.min: must be at most max.")
    if "weights" in figures:
        check_weights(figures["weights"], len(figures["values"]), "values", f"{where}.weights")
    return figures


def _list(key: str, value: object, where: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise HeadwayError(f"{where}: expected a list, got {shown(value)}.")
    if key == "values":
        return [microseconds(entry, where) for entry in value]
    try:
        return msgspec.convert(value, list[float])
    except msgspec.ValidationError:
        raise HeadwayError(f"{where}: expected a list of numbers, got {shown(value)}.") from None


def microseconds(value: object, where: str) -> int:
    """Return a duration, rounded to whole microseconds."""
    return round(Fraction(duration_ps(value, where), PS_PER_US))


def maker(spec: object, where: str) -> Maker:
    """Parse a distribution, and return a function that creates a sampler from a random stream."""
    figures = parse(spec, where)
    low, high = figures.get("min", 0), figures.get("max", MAX_US)
    kind = figures["dist"]
    if kind == "constant":
        value = min(max(figures["value"], low), high)
        return lambda _: lambda: value
    if kind == "empirical":
        values = [min(max(value, low), high) for value in figures["values"]]
        return pickers(values, figures.get("weights"))
    mean, std = figures.get("mean", 0), figures.get("std", 0)
    return lambda rng: clamp(continuous(kind, mean, std, low, high, rng), low, high)
