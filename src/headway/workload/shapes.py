"""Length distributions: the number of tokens of a prompt or an output. Each sample is a whole number of at least 1.

A plain number is a constant. Other distributions are mappings with `dist` and the keys of that distribution. `mean` and
`std` describe the lengths themselves, not their logarithms, also for lognormal. If a sample is outside `min` and `max`,
it is set to the nearest bound and not drawn again.
"""

from __future__ import annotations

import pathlib
from array import array
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import exp, isfinite, log, log1p, sqrt
from random import Random
from typing import Annotated, Any, Final, cast

from msgspec import Meta, Struct

from headway.config.keys import Form
from headway.config.schema import Later, ListOf, Part, Variants
from headway.config.section import read, split_kind
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import Json

MAX_TOKENS: Final = 2**31 - 1
MOST_LENGTHS: Final = 10_000_000  # maximum number of lengths in a file
LONGEST_LINE: Final = 1000
MAX_RATIO: Final = 1e12  # maximum ratio of std to mean; a larger ratio could overflow when squared
WHOLE: Final = f"a length is a whole number between 1 and {MAX_TOKENS}"

Draw = Callable[[], int]
Maker = Callable[[Random], Draw]  # creates a sampler from a random stream


PROBABILITY: Final = Form.of(Annotated[float, Meta(ge=0, le=1)])
Tokens = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Positive = Annotated[float, Meta(gt=0)]


PARTS_FORM: Final = Form.of(Later("mixture-parts", lambda: ListOf(_part_form())))


def _part_form() -> Variants:
    """Return the schema of one part of a mixture: a distribution that is not itself a mixture, with a weight."""
    weight = Annotated[float, Form.of(Positive), "share of the draws, relative to the other parts"]
    plain = {name: kind for name, kind in KINDS.items() if kind is not Mixture}
    return Variants(
        "dist", lambda: {name: Part(kind, more={"weight": weight}) for name, kind in plain.items()}, bare=False
    )


class Bounded(Struct, frozen=True, kw_only=True):
    min: Annotated[int | None, Form.of(Tokens), "shorter draws become this length"] = None
    max: Annotated[int | None, Form.of(Tokens), "longer draws become this length"] = None


class Constant(Bounded, frozen=True):
    value: Annotated[float, Form.of(Tokens), "the length of every draw"]


class Spread(Bounded, frozen=True):
    """The keys of normal and lognormal distributions."""

    mean: Annotated[float, Form.of(Positive), "mean length"]
    std: Annotated[float, Form.of(Annotated[float, Meta(ge=0)]), "standard deviation of the lengths"]


class Exponential(Bounded, frozen=True):
    mean: Annotated[float, Form.of(Positive), "mean length"]


class Empirical(Bounded, frozen=True):
    values: Annotated[list[int] | None, Form.of(list[Tokens]), "lengths to draw from"] = None
    weights: Annotated[list[float] | None, Form.of(list[Positive]), "weight of each of `values`"] = None
    path: Annotated[str | None, "text file with one length per line; excludes `values`"] = None


class Uniform(Struct, frozen=True):
    min: Annotated[int, Form.of(Tokens), "shortest length"]
    max: Annotated[int, Form.of(Tokens), "longest length"]


class Pareto(Bounded, frozen=True):
    """A power law: a length exceeds x with probability (scale / x) ** alpha, for x of at least `scale`."""

    alpha: Annotated[float, Form.of(Positive), "exponent; if it is at most 1, the mean is infinite"]
    scale: Annotated[float, Form.of(Positive), "shortest length before rounding"]


class Mixture(Bounded, frozen=True):
    """Draws from one of several distributions, chosen by weight. The bounds apply to the result."""

    parts: Annotated[list[dict[str, Any]], PARTS_FORM, "distributions, each with a `weight`"]


Shape = Constant | Spread | Exponential | Uniform | Empirical | Pareto | Mixture

KINDS: Final[dict[str, type[Shape]]] = {
    "constant": Constant,
    "uniform": Uniform,
    "normal": Spread,
    "exponential": Exponential,
    "geometric": Exponential,
    "lognormal": Spread,
    "empirical": Empirical,
    "pareto": Pareto,
    "mixture": Mixture,
}


# Valid values of a length in a file: a number, or a distribution.
Lengths = Annotated[Any, Form.of(Later("length", lambda: Form.of(Tokens, Variants("dist", lambda: KINDS, bare=False))))]


def parse(spec: object, where: str) -> tuple[str, Shape]:
    """Return the name and the checked keys of a length distribution."""
    kind, shape, value_at = "constant", cast(Shape, Constant(1)), where
    if isinstance(spec, (int, float)) and not isinstance(spec, bool):
        shape = Constant(spec)
    elif isinstance(spec, dict):
        kind, rest = split_kind(spec, where, "dist", KINDS, "distribution", "distribution")
        shape, value_at = read(KINDS[kind], rest, where), f"{where}.value"
    else:
        raise HeadwayError(f"{where}: expected a number or a mapping with 'dist', got {shown(spec)}.")
    _check_bounds(shape, where)
    _check_figures(shape, where, value_at)
    if kind == "lognormal" and isinstance(shape, Spread) and shape.std > MAX_RATIO * shape.mean:
        wrong = f"must be at most {MAX_RATIO:g} times the mean ({figure_text(shape.mean)})"
        raise HeadwayError(f"{where}.std: {wrong}, got {figure_text(shape.std)}.")
    if kind == "geometric" and isinstance(shape, Exponential) and shape.mean < 1:
        raise HeadwayError(
            f"{where}.mean: the mean of a geometric distribution is at least 1, got {figure_text(shape.mean)}."
        )
    return kind, shape


def _check_bounds(shape: Shape, where: str) -> None:
    for name in ("min", "max"):
        bound = getattr(shape, name)
        if bound is not None and not 1 <= bound <= MAX_TOKENS:
            raise HeadwayError(f"{where}.{name}: must lie between 1 and {MAX_TOKENS}, got {figure_text(bound)}.")
    if shape.min is not None and shape.max is not None and shape.min > shape.max:
        raise HeadwayError(f"{where}.min: {shape.min} is above the max, {shape.max}.")


def _check_figures(shape: Shape, where: str, value_at: str) -> None:
    if isinstance(shape, Empirical):
        _check_empirical(shape, where)
        return
    if isinstance(shape, Constant):
        if not (1 <= shape.value <= MAX_TOKENS and shape.value == int(shape.value)):
            raise HeadwayError(f"{value_at}: {WHOLE}, got {figure_text(shape.value)}.")
        return
    if isinstance(shape, Uniform):
        return
    if isinstance(shape, Mixture):
        split_parts(shape, where)
        return
    if isinstance(shape, Pareto):
        if not 0.01 <= shape.alpha <= 1000:
            raise HeadwayError(f"{where}.alpha: must lie between 0.01 and 1000, got {figure_text(shape.alpha)}.")
        if not 0 < shape.scale <= MAX_TOKENS:
            wrong = f"must be above 0 and at most {MAX_TOKENS}, got {figure_text(shape.scale)}"
            raise HeadwayError(f"{where}.scale: {wrong}.")
        return
    if not 0 < shape.mean <= MAX_TOKENS:
        raise HeadwayError(f"{where}.mean: must be above 0 and at most {MAX_TOKENS}, got {figure_text(shape.mean)}.")
    if isinstance(shape, Spread) and not 0 <= shape.std <= MAX_TOKENS:
        raise HeadwayError(f"{where}.std: must lie between 0 and {MAX_TOKENS}, got {figure_text(shape.std)}.")


def _check_empirical(shape: Empirical, where: str) -> None:
    if (shape.values is None) == (shape.path is None):
        raise HeadwayError(f"{where}: an empirical distribution needs either 'values' or the 'path' of a file.")
    if shape.values is None:
        if shape.weights is not None:
            raise HeadwayError(f"{where}.weights: weights need 'values'. Repeat lengths in the file instead.")
        return
    if not shape.values:
        raise HeadwayError(f"{where}.values: list at least one length.")
    for value in shape.values:
        if not 1 <= value <= MAX_TOKENS:
            raise HeadwayError(f"{where}.values: {WHOLE}, got {figure_text(value)}.")
    if shape.weights is not None:
        check_weights(shape.weights, len(shape.values), "values", f"{where}.weights")


def split_parts(shape: Mixture, where: str) -> list[tuple[float, str, Json]]:
    """Check the parts of a mixture. Return the weight, the path in the scenario and the distribution of each part."""
    if not shape.parts:
        raise HeadwayError(f"{where}.parts: list at least one distribution.")
    parts: list[tuple[float, str, Json]] = []
    for at, keys in enumerate(shape.parts):
        place = f"{where}.parts[{at}]"
        rest = dict(keys)
        weight = rest.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise HeadwayError(f"{place}.weight: expected a number, got {shown(weight)}.")
        if parse(rest, place)[0] == "mixture":
            raise HeadwayError(f"{place}.dist: a part cannot be a mixture. List its parts in {where}.parts.")
        parts.append((weight, place, rest))
    check_weights([weight for weight, _, _ in parts], len(parts), "parts", f"{where}.parts")
    return parts


def check_weights(weights: Sequence[float], count: int, of: str, where: str) -> None:
    """Raise unless there are `count` positive weights. `of` names the items that the weights belong to."""
    if len(weights) != count:
        raise HeadwayError(f"{where}: {len(weights)} weights for {count} {of}. List one weight for each.")
    for weight in weights:
        if not (isfinite(weight) and weight > 0):
            raise HeadwayError(f"{where}: a weight is a positive number, got {weight:g}.")
    if not isfinite(list(accumulate(weights))[-1]):
        raise HeadwayError(f"{where}: the sum of the weights is too large. Divide all weights by the same number.")


def check_probability(value: float, where: str) -> None:
    if not 0 <= value <= 1:
        raise HeadwayError(f"{where}: a probability lies between 0 and 1, got {value:g}.")


def figure_text(value: float) -> str:
    """Format a number for an error message. If an integer has too many digits, return a description instead."""
    return "a number of too many digits" if isinstance(value, int) and abs(value) > 10**18 else f"{value:.15g}"


def maker(spec: object, where: str) -> Maker:
    """Parse a distribution, and return a function that creates a sampler from a random stream."""
    kind, shape = parse(spec, where)
    low = 1 if shape.min is None else shape.min
    high = MAX_TOKENS if shape.max is None else shape.max
    if isinstance(shape, Constant):
        value = min(max(int(shape.value), low), high)
        return lambda _: lambda: value
    if isinstance(shape, Empirical):
        values = shape.values or _read_lengths(pathlib.Path(str(shape.path)), f"{where}.path")
        return pickers(array("i", (min(max(value, low), high) for value in values)), shape.weights)
    if isinstance(shape, Mixture):
        return _mixers(split_parts(shape, where), low, high)
    if isinstance(shape, Pareto):
        alpha, scale = shape.alpha, shape.scale
        return lambda rng: clamp(_pareto(alpha, scale, rng), low, high)
    mean = 0.0 if isinstance(shape, Uniform) else shape.mean
    std = shape.std if isinstance(shape, Spread) else 0.0
    return lambda rng: clamp(continuous(kind, mean, std, low, high, rng), low, high)


def continuous(kind: str, mean: float, std: float, low: int, high: int, rng: Random) -> Callable[[], float]:
    """Return a function that draws values of the distribution `kind`. The caller must round each value and limit it to
    `low` and `high`."""
    uniform, gauss = rng.random, rng.gauss
    if kind == "uniform":  # uniform over the whole numbers from `low` to `high`
        return lambda: low + int(uniform() * (high - low + 1))
    if kind == "exponential":
        return lambda: -mean * log(1.0 - uniform())
    if kind == "geometric":
        if mean == 1:
            return lambda: 1
        rest = log1p(-1.0 / mean)
        return lambda: 1 + int(log(1.0 - uniform()) / rest)
    if kind == "normal":
        return lambda: gauss(mean, std)
    variance = log(1.0 + (std / mean) ** 2)
    mu, sigma = log(mean) - variance / 2, sqrt(variance)
    return lambda: exp(gauss(mu, sigma))


def _pareto(alpha: float, scale: float, rng: Random) -> Callable[[], float]:
    uniform, limit = rng.random, log(MAX_TOKENS / scale)

    def draw() -> float:
        growth = -log(1.0 - uniform()) / alpha
        return scale * exp(growth) if growth < limit else MAX_TOKENS

    return draw


def _mixers(parts: list[tuple[float, str, Json]], low: int, high: int) -> Maker:
    makers = [maker(spec, place) for _, place, spec in parts]
    choosers = pickers(range(len(parts)), [weight for weight, _, _ in parts])

    def mix(rng: Random) -> Draw:
        choose, draws = choosers(rng), [make(rng) for make in makers]
        return lambda: min(max(draws[choose()](), low), high)

    return mix


def clamp(draw: Callable[[], float], low: int, high: int) -> Draw:
    def length() -> int:
        value = draw()
        if value <= low:
            return low
        return int(value + 0.5) if value < high else high

    return length


def pickers(values: Sequence[int], weights: Iterable[float] | None) -> Maker:
    """Return a function that creates a sampler from a random stream. A sampler draws from `values` by weight. All
    samplers share one table of cumulative weights."""
    size, last = len(values), len(values) - 1
    if weights is None:

        def evenly(rng: Random) -> Draw:
            uniform = rng.random
            return lambda: values[int(uniform() * size)]

        return evenly
    steps = array("d", accumulate(weights))
    total = steps[-1]

    def by_weight(rng: Random) -> Draw:
        uniform = rng.random
        return lambda: values[min(bisect(steps, uniform() * total), last)]

    return by_weight


def _read_lengths(path: pathlib.Path, where: str) -> array[int]:
    values = array("i")
    try:
        if path.exists() and not path.is_file():  # reading a pipe or a device could block forever
            raise OSError
        with path.open(encoding="utf-8") as file:
            number = 0
            while line := file.readline(LONGEST_LINE):
                number += 1
                text = line.strip()
                if text:
                    values.append(_length(text, f"{path.name} line {number}"))
                if len(values) > MOST_LENGTHS:
                    raise HeadwayError(f"{where}: {str(path)!r} has over {MOST_LENGTHS:,} lengths. Use a sample.")
    except (OSError, ValueError):
        raise HeadwayError(f"{where}: {str(path)!r} is not a readable text file with one length per line.") from None
    if not values:
        raise HeadwayError(f"{where}: {str(path)!r} has no lengths.")
    return values


def _length(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and 1 <= int(text) <= MAX_TOKENS):
        raise HeadwayError(f"{place}: {WHOLE}, got {text[:40]!r}.")
    return int(text)
