"""Reads scoring profiles: scorers with their weights, in one of three forms.

A profile is a mapping {prefix-affinity: 3, queue-depth: 2}, a list [{name: prefix-affinity, weight: 3, lru_blocks:
31250}] or a string "prefix-affinity:3,queue-depth:2". Weights are decimals; only their ratios matter.
"""

from decimal import Decimal, InvalidOperation
from fractions import Fraction
from math import gcd, lcm
from typing import Any

from headway.errors import HeadwayError
from headway.policies import registry
from headway.types import Json

PLACE = "policies.routing.scorers"
DEFAULT = "prefix-affinity:3,queue-depth:2,kv-utilization:2"


def scorer_list(scorers: object, where: str = PLACE) -> list[Json]:
    """Return the profile as a list of {name, weight, parameters}."""
    if isinstance(scorers, str):
        return [split_text(piece.strip(), where) for piece in scorers.split(",") if scorers.strip()]
    if isinstance(scorers, dict):
        return [
            {"name": str(name), **rest} if isinstance(rest, dict) else {"name": str(name), "weight": rest}
            for name, rest in scorers.items()
        ]
    if not isinstance(scorers, list | tuple):
        raise HeadwayError(f"{where}: expected a mapping, a list or text of scorers and weights, got {scorers!r}.")
    items = []
    for at, item in enumerate(scorers):
        name, rest = registry.split(item, f"{where}[{at}]")
        items.append({"name": name, **rest})
    return items


def split_text(piece: str, where: str) -> Json:
    """Split `name:weight` into its parts. The name may be `file.py:Class`."""
    name, _, weight = piece.rpartition(":")
    try:
        number = Decimal(weight)
    except InvalidOperation:
        number = None
    if not name or number is None:
        raise HeadwayError(f"{where}: {piece!r} is not of the form name:weight, as in queue-depth:2.")
    whole = number.is_finite() and number == number.to_integral_value() and abs(number) < 10**15
    return {"name": name.strip(), "weight": int(number) if whole else float(number)}


def read_scorers(scorers: object) -> list[tuple[Any, int]]:
    """Return the scorers with their weights as coprime integers, sorted by name."""
    weighted: dict[str, tuple[Any, Fraction]] = {}
    for item in scorer_list(scorers):
        name, missing = item.pop("name"), "weight" not in item
        weight = item.pop("weight", None)
        key = name if registry.is_file(name) else registry.canonical(name)
        place = f"{PLACE}.{key}"
        if key in weighted:
            raise HeadwayError(f"{place}: the scorer is listed twice. List it once, with one weight.")
        if missing:
            raise HeadwayError(f"{place}: the weight is missing, as in {{name: {key}, weight: 1}}.")
        entry = registry.find("scorer", name, place)
        ratio = read_weight(weight, place)
        weighted[key] = registry.make(entry, item, place), ratio
    order = sorted(weighted, key=lambda key: (key.rpartition("/")[2], key))  # sort by the file name without its folder
    pairs = [weighted[key] for key in order if weighted[key][1]]  # scorers with weight 0 are omitted
    if not pairs:
        raise HeadwayError(f"{PLACE}: at least one scorer needs a weight above 0, as in {DEFAULT!r}.")
    scale = lcm(*(ratio.denominator for _, ratio in pairs))
    whole = [int(ratio * scale) for _, ratio in pairs]
    common = gcd(*whole)
    return [(scorer, weight // common) for (scorer, _), weight in zip(pairs, whole, strict=True)]


def read_weight(value: object, place: str) -> Fraction:
    """Convert a weight through its decimal string, so that 0.3 is exactly three tenths."""
    try:
        number = Decimal(str(value)) if not isinstance(value, bool) else Decimal(-1)
    except InvalidOperation:
        number = Decimal(-1)
    if not number.is_finite() or number < 0:
        raise HeadwayError(f"{place}: a weight must be 0 or a positive number, got {value}.")
    if number and not Decimal("1e-12") <= number <= Decimal("1e12"):
        raise HeadwayError(f"{place}: a weight must be 0 or between 1e-12 and 1e12, got {value}.")
    return Fraction(number)
