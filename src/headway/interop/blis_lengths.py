"""Translate length distributions between BLIS and a workload.

In BLIS, the length of an input excludes its shared prefix. In a workload, the length of a prompt includes the prefix,
unless `prefix.added` is set. The import sets `prefix.added`. If a workload does not set `prefix.added`, the export
shifts the distribution of a prompt by the length of the prefix; only some distributions can be shifted.
"""

from collections.abc import Callable
from fractions import Fraction
from math import exp, isfinite, log, sqrt
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.interop import plain
from headway.types import Json
from headway.workload import shapes
from headway.workload.shapes import MAX_TOKENS

MOST_VALUES: Final = 4096  # maximum range of a uniform distribution: BLIS has none, so the export lists every length
DIGITS: Final = 10  # number of significant digits of a mean or standard deviation that is computed from logarithms
PARAMETERS: Final = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
}
BOUNDED: Final = ("exponential", "lognormal")  # distributions with optional parameters `min` and `max`


class Dist(Struct):
    type: str
    params: dict[str | int, float] = {}
    file: str = ""


def ours(dist: Dist, where: str) -> Any:
    """Translate a distribution of BLIS to a distribution of a workload."""
    if dist.file:
        raise HeadwayError(f"{where}.file: is not supported. Write the lengths and their weights as params.")
    params = {str(name): value for name, value in dist.params.items()}
    for name, value in params.items():
        if not isfinite(value):
            raise HeadwayError(f"{where}.params.{name}: expected a number, got {shown(value)}.")
    if dist.type == "empirical":
        return _empirical(params, where)
    if dist.type not in PARAMETERS:
        known = ", ".join((*PARAMETERS, "empirical"))
        raise HeadwayError(f"{where}.type: {shown(dist.type)} is unknown. Known: {known}.")
    bounds = ("min", "max") if dist.type in BOUNDED else ()
    for name in params:
        if name not in (*PARAMETERS[dist.type], *bounds):
            raise HeadwayError(f"{where}.params.{name}: {dist.type} has no such parameter.")
    for name in PARAMETERS[dist.type]:
        if name not in params:
            raise HeadwayError(f"{where}.params: {name!r} is missing.")
    lengths = _FROM[dist.type](params, where)
    shapes.parse(lengths, where)
    return lengths


def _constant(params: Json, where: str) -> Any:
    return max(1, int(params["value"]))


def _gaussian(params: Json, where: str) -> Any:
    lengths: Json = {"dist": "normal", "mean": plain(params["mean"]), "std": plain(params["std_dev"])}
    low, high = max(1, int(params["min"])), max(1, int(params["max"]))
    if low == high:
        return low
    if low > 1:
        lengths["min"] = low
    if high < MAX_TOKENS:
        lengths["max"] = high
    return lengths


def _exponential(params: Json, where: str) -> Any:
    return {"dist": "exponential", "mean": plain(params["mean"]), **_bounds(params)}


def _lognormal(params: Json, where: str) -> Any:
    mu, sigma = params["mu"], params["sigma"]
    try:
        mean = exp(mu + sigma * sigma / 2)
        std = mean * sqrt(exp(sigma * sigma) - 1)
    except OverflowError:
        raise HeadwayError(f"{where}.params: mu and sigma are too large.") from None
    return {"dist": "lognormal", "mean": _round(mean), "std": _round(std), **_bounds(params)}


def _bounds(params: Json) -> Json:
    """Return the bounds `min` and `max`, if they are set. Leave out a bound of 0, because BLIS ignores it."""
    return {name: int(params[name]) for name in ("min", "max") if params.get(name, 0) >= 1}


def _pareto_lognormal(params: Json, where: str) -> Any:
    weight = params["mix_weight"]
    if not 0 <= weight <= 1:
        raise HeadwayError(f"{where}.params.mix_weight: must lie between 0 and 1, got {weight:g}.")
    pareto = {"dist": "pareto", "alpha": plain(params["alpha"]), "scale": plain(params["xm"])}
    if weight == 1:
        return pareto
    lognormal = _lognormal({"mu": params["mu"], "sigma": params["sigma"]}, where)
    if weight == 0:
        return lognormal
    rest = float(1 - Fraction(str(weight)))
    return {"dist": "mixture", "parts": [{"weight": weight, **pareto}, {"weight": rest, **lognormal}]}


_FROM: Final[dict[str, Callable[[Json, str], Any]]] = {
    "constant": _constant,
    "gaussian": _gaussian,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "pareto_lognormal": _pareto_lognormal,
}


def _empirical(params: Json, where: str) -> Any:
    pairs = []
    for name, weight in params.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise HeadwayError(f"{where}.params: expected whole numbers of tokens as keys, got {shown(name)}.")
        if weight > 0:
            pairs.append((int(name), plain(weight)))
    pairs.sort()
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    lengths = {"dist": "empirical", "values": values, "weights": weights}
    shapes.parse(lengths, where)
    return lengths


def _round(value: float) -> int | float:
    return plain(float(f"{value:.{DIGITS}g}"))


def theirs(spec: Any, where: str, prefix: int, notes: list[str]) -> Json:
    """Translate a distribution of a workload to a distribution of BLIS, in which every length is `prefix` tokens
    shorter."""
    kind, shape = shapes.parse(spec, where)
    low = 1 if shape.min is None else shape.min
    high = MAX_TOKENS if shape.max is None else shape.max
    if prefix and low <= prefix and kind not in ("constant", "empirical"):
        raise HeadwayError(
            f"{where}: the shortest prompt is not longer than the prefix ({prefix} tokens). Set a higher min."
        )
    if isinstance(shape, shapes.Constant):
        value = min(max(int(shape.value), low), high) - prefix
        _longer(value, where, prefix)
        return {"type": "constant", "params": {"value": value}}
    if isinstance(shape, shapes.Empirical):
        return _write_out(shape, where, prefix, low, high)
    if isinstance(shape, shapes.Uniform):
        if high - low >= MOST_VALUES:
            raise HeadwayError(f"{where}: a uniform length may have at most {MOST_VALUES:,} values in BLIS.")
        return {"type": "empirical", "params": {str(value - prefix): 1 for value in range(low, high + 1)}}
    if kind == "normal" and isinstance(shape, shapes.Spread):
        figures = {"mean": plain(shape.mean - prefix), "std_dev": plain(shape.std), "min": low - prefix}
        return {"type": "gaussian", "params": {**figures, "max": high if high == MAX_TOKENS else high - prefix}}
    if kind == "geometric" or prefix:
        behind = " with a shared prefix" if prefix else ""
        raise HeadwayError(f"{where}: BLIS does not support {kind} lengths{behind}.")
    if (low, high) != (1, MAX_TOKENS):
        notes.append(f"{where}: BLIS ignores the bounds of {kind} lengths.")
    if isinstance(shape, shapes.Exponential):
        return {"type": "exponential", "params": {"mean": plain(shape.mean)}}
    if isinstance(shape, shapes.Mixture):
        return {"type": "pareto_lognormal", "params": _mixture(shape, where)}
    return {"type": "pareto_lognormal", "params": _part(shape)}


def _part(shape: shapes.Shape) -> Json:
    """Return the parameters of BLIS's `pareto_lognormal` mixture for a single Pareto or lognormal distribution. The
    other part of the mixture has weight 0."""
    if isinstance(shape, shapes.Pareto):
        return {"alpha": plain(shape.alpha), "xm": plain(shape.scale), "mu": 0, "sigma": 1, "mix_weight": 1}
    assert isinstance(shape, shapes.Spread)
    variance = log(1.0 + (shape.std / shape.mean) ** 2)
    return {"alpha": 1, "xm": 1, "mu": log(shape.mean) - variance / 2, "sigma": sqrt(variance), "mix_weight": 0}


def _mixture(shape: shapes.Mixture, where: str) -> Json:
    weights: dict[str, float] = {}
    params: dict[str, Json] = {}
    for weight, place, spec in shapes.split_parts(shape, where):
        kind, part = shapes.parse(spec, place)
        bounded = (part.min, part.max) != (None, None)
        if kind not in ("pareto", "lognormal") or kind in params or bounded:
            right = "one pareto and one lognormal part, both without bounds"
            raise HeadwayError(f"{place}: BLIS supports only mixtures of {right}.")
        weights[kind], params[kind] = weight, _part(part)
    if len(params) == 1:
        return next(iter(params.values()))
    share = weights["pareto"] / (weights["pareto"] + weights["lognormal"])
    lognormal = {name: params["lognormal"][name] for name in ("mu", "sigma")}
    return {**params["pareto"], **lognormal, "mix_weight": _round(share)}


def _write_out(shape: shapes.Empirical, where: str, prefix: int, low: int, high: int) -> Json:
    if shape.values is None:
        raise HeadwayError(f"{where}.path: cannot be exported. Write the lengths as values and weights.")
    weights: dict[str, int | float] = {}
    for value, weight in zip(shape.values, shape.weights or [1.0] * len(shape.values), strict=True):
        length = min(max(value, low), high) - prefix
        _longer(length, where, prefix)
        weights[str(length)] = plain(weights.get(str(length), 0) + weight)
    return {"type": "empirical", "params": weights}


def _longer(length: int, where: str, prefix: int) -> None:
    if length < 1:
        raise HeadwayError(f"{where}: must be longer than the shared prefix of {prefix} tokens.")
