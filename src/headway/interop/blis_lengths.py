"""Translate length distributions between BLIS and a workload.

In BLIS, the length of an input excludes its shared prefix. In a workload, the length of a prompt includes the prefix.
So the translation shifts the distribution of a prompt by the length of the prefix, and only some distributions can be
shifted.
"""

from collections.abc import Callable
from math import exp, isfinite, log, sqrt
from typing import Any, Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload import shapes
from headway.workload.shapes import MAX_TOKENS

MOST_VALUES: Final = 4096  # maximum number of values of a uniform distribution that becomes an empirical one
DIGITS: Final = 10  # number of significant digits of a mean or a standard deviation computed from logarithms
PARAMETERS: Final = {
    "gaussian": ("mean", "std_dev", "min", "max"),
    "exponential": ("mean",),
    "lognormal": ("mu", "sigma"),
    "pareto_lognormal": ("alpha", "xm", "mu", "sigma", "mix_weight"),
    "constant": ("value",),
}


class Dist(Struct):
    type: str
    params: dict[str | int, float] = {}
    file: str = ""


def ours(dist: Dist, where: str, prefix: int = 0) -> Any:
    """Translate a distribution of BLIS to one of a workload, with lengths `prefix` tokens longer."""
    if dist.file:
        raise HeadwayError(f"{where}.file: is not supported. Write the lengths and their weights as params.")
    params = {str(name): value for name, value in dist.params.items()}
    for name, value in params.items():
        if not isfinite(value):
            raise HeadwayError(f"{where}.params.{name}: expected a number, got {shown(value)}.")
    if dist.type == "empirical":
        return _empirical(params, where, prefix)
    if dist.type not in PARAMETERS:
        known = ", ".join((*PARAMETERS, "empirical"))
        raise HeadwayError(f"{where}.type: {shown(dist.type)} is unknown. Known: {known}.")
    bounds = ("min", "max") if dist.type == "lognormal" else ()
    for name in params:
        if name not in (*PARAMETERS[dist.type], *bounds):
            raise HeadwayError(f"{where}.params.{name}: {dist.type} has no such parameter.")
    for name in PARAMETERS[dist.type]:
        if name not in params:
            raise HeadwayError(f"{where}.params: {name!r} is missing.")
    if prefix and dist.type not in ("constant", "gaussian"):
        raise HeadwayError(
            f"{where}: {dist.type} is not supported with a shared prefix. Use constant, gaussian or empirical."
        )
    lengths = _FROM[dist.type](params, where, prefix)
    shapes.parse(lengths, where)
    return lengths


def _constant(params: Json, where: str, prefix: int) -> Any:
    return max(1, int(params["value"])) + prefix


def _gaussian(params: Json, where: str, prefix: int) -> Any:
    lengths: Json = {"dist": "normal", "mean": plain(params["mean"] + prefix), "std": plain(params["std_dev"])}
    low, high = max(1, int(params["min"])) + prefix, max(1, int(params["max"])) + prefix
    if low == high:
        return low
    if low > 1:
        lengths["min"] = low
    if high < MAX_TOKENS:
        lengths["max"] = high
    return lengths


def _exponential(params: Json, where: str, prefix: int) -> Any:
    return {"dist": "exponential", "mean": plain(params["mean"])}


def _lognormal(params: Json, where: str, prefix: int) -> Any:
    mu, sigma = params["mu"], params["sigma"]
    try:
        mean = exp(mu + sigma * sigma / 2)
        std = mean * sqrt(exp(sigma * sigma) - 1)
    except OverflowError:
        raise HeadwayError(f"{where}.params: mu and sigma are too large.") from None
    lengths: Json = {"dist": "lognormal", "mean": _round(mean), "std": _round(std)}
    return lengths | {name: int(params[name]) for name in ("min", "max") if name in params}


def _pareto_lognormal(params: Json, where: str, prefix: int) -> Any:
    if params["mix_weight"] != 0:
        raise HeadwayError(f"{where}: only a mix_weight of 0, which means lognormal, is supported.")
    return _lognormal({"mu": params["mu"], "sigma": params["sigma"]}, where, prefix)


_FROM: Final[dict[str, Callable[[Json, str, int], Any]]] = {
    "constant": _constant,
    "gaussian": _gaussian,
    "exponential": _exponential,
    "lognormal": _lognormal,
    "pareto_lognormal": _pareto_lognormal,
}


def _empirical(params: Json, where: str, prefix: int) -> Any:
    pairs = []
    for name, weight in params.items():
        if not (name.isascii() and name.isdigit() and len(name) <= 10):
            raise HeadwayError(f"{where}.params: expected whole numbers of tokens as keys, got {shown(name)}.")
        if weight > 0:
            pairs.append((int(name) + prefix, plain(weight)))
    pairs.sort()
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    lengths = {"dist": "empirical", "values": values, "weights": weights}
    shapes.parse(lengths, where)
    return lengths


def _round(value: float) -> int | float:
    return plain(float(f"{value:.{DIGITS}g}"))


def plain(value: float) -> int | float:
    """Return a whole number as an int, and any other number as it is."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else value


def theirs(spec: Any, where: str, prefix: int, notes: list[str]) -> Json:
    """Translate a distribution of a workload to one of BLIS, with lengths `prefix` tokens shorter."""
    kind, shape = shapes.parse(spec, where)
    low = 1 if shape.min is None else shape.min
    high = MAX_TOKENS if shape.max is None else shape.max
    if prefix and low <= prefix and kind not in ("constant", "empirical"):
        raise HeadwayError(f"{where}: may be as short as the prefix of {prefix} tokens. Set a higher min.")
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
    if kind == "exponential":
        return {"type": "exponential", "params": {"mean": plain(shape.mean)}}
    assert isinstance(shape, shapes.Spread)
    variance = log(1.0 + (shape.std / shape.mean) ** 2)
    params = {"alpha": 1, "xm": 1, "mu": log(shape.mean) - variance / 2, "sigma": sqrt(variance), "mix_weight": 0}
    return {"type": "pareto_lognormal", "params": params}


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
