"""Arrival processes: they yield arrival times in whole microseconds, in ascending order.

Every process except trace and adversarial needs a rate, the inverse of its mean gap. A trace without a rate plays once,
as recorded. A trace with a rate is stretched to that rate and repeated, with one mean gap between repetitions. The
adversarial process needs a rate or an interval. The processes constant, periodic, trace and adversarial have their
first arrival at time 0. In the other processes, the first arrival comes after the first gap.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count
from math import exp, lgamma, log
from random import Random
from typing import Annotated, Any, Final

from msgspec import Meta, Struct, to_builtins
from msgspec.structs import replace

from headway.config.keys import DURATION, Form
from headway.config.schema import Later, Part, Variants
from headway.config.section import read
from headway.config.units import duration_ps, exact, positive_duration_ps
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Json
from headway.workload.curve import US_PER_SECOND
from headway.workload.profiles import Profile
from headway.workload.traces import FORMAT_NAME, find_format, open_trace
from headway.workload.traces.source import head, lines

KEYS: Final[dict[str, tuple[str, ...]]] = {
    "poisson": (),
    "constant": (),
    "gamma": ("cv",),
    "weibull": ("cv",),
    "bursty": ("alpha",),
    "periodic": ("jitter",),
    "trace": ("path", "format"),
    "adversarial": ("size", "interval"),
}
PROCESSES: Final = tuple(KEYS)
FIGURES: Final[dict[str, tuple[float, float, float, str]]] = {  # key -> (default, minimum, maximum, hint for errors)
    "cv": (2.0, 0.01, 100, " (for equal gaps use constant)"),
    "alpha": (1.5, 1.05, 100, " (the mean gap is infinite at 1)"),
    "jitter": (0.1, 0, 1, ", as a share of the mean gap"),
    "size": (20, 1, 1_000_000, ""),
}
HELD: Final = 100_000  # if a repeated trace has more timestamps than this, its file is read again for each repetition
# Gaps have mean 1 and are rounded to multiples of 2^-20, so that their sum is exact.
# The rounding also hides the last bit of a logarithm, which differs between machines.
UNIT: Final = 1 << 20
SECONDS: Final = re.compile(rb"[+-]?[0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?")


def _range(name: str, kind: type = float) -> Form:
    """Return the schema of a numeric key: its type and its limits, which `FIGURES` lists."""
    return Form.of(Annotated[kind, Meta(ge=FIGURES[name][1], le=FIGURES[name][2])])


class Arrival(Struct, frozen=True, omit_defaults=True):
    """The `arrival` key as a mapping. If the process does not use a key, the key is None."""

    process: Annotated[str, "name of the process"]
    cv: Annotated[
        float | None, _range("cv"), "coefficient of variation of the gaps: a value above 1 is burstier than Poisson"
    ] = None
    alpha: Annotated[
        float | None, _range("alpha"), "shape of Pareto gaps: if it is at most 2, their variance is infinite"
    ] = None
    jitter: Annotated[
        float | None, _range("jitter"), "maximum delay of a request, as a fraction of the mean gap; delays are uniform"
    ] = None
    path: Annotated[str | None, "file with the times: plain text with one time in seconds per line, or any trace"] = (
        None
    )
    format: Annotated[str | None, FORMAT_NAME, "format of that trace, if it cannot be detected"] = None
    size: Annotated[
        int | None, _range("size", int), "number of requests per burst, which all arrive at the same time"
    ] = None
    interval: Annotated[Any, DURATION, "time between two bursts"] = None


def _forms() -> dict[str, Part]:
    return {process: Part(Arrival, only=keys) for process, keys in KEYS.items()}


ArrivalSpec = Annotated[Any, Form.of(Later("arrival", lambda: Variants("process", _forms)))]


def parse(spec: object, where: str) -> Arrival:
    """Read an arrival process from its name or its mapping, without opening the file of a trace."""
    arrival = Arrival(spec) if isinstance(spec, str) else read(Arrival, spec, where)
    place = where if isinstance(spec, str) else f"{where}.process"
    if arrival.process not in KEYS:
        known = suggest(arrival.process, PROCESSES)
        raise HeadwayError(f"{place}: no arrival process is called {shown(arrival.process)}.{known}")
    for name in Arrival.__struct_fields__[1:]:
        if getattr(arrival, name) is not None and name not in KEYS[arrival.process]:
            takers = " or ".join(f"the {process} process" for process, keys in KEYS.items() if name in keys)
            raise HeadwayError(f"{where}.{name}: only {takers} has this key, not {arrival.process}. Remove it.")
    for name in KEYS[arrival.process]:
        if name in FIGURES:
            default, least, most, hint = FIGURES[name]
            value = default if getattr(arrival, name) is None else getattr(arrival, name)
            if not least <= value <= most:
                wrong = f"must lie between {least} and {most}{hint}, got {shown(value)}"
                raise HeadwayError(f"{where}.{name}: {wrong}.")
            arrival = replace(arrival, **{name: value})
    if arrival.interval is not None:
        positive_duration_ps(arrival.interval, f"{where}.interval")
    if arrival.process == "trace" and not arrival.path:
        raise HeadwayError(f"{where}: 'path' is missing. Name the file whose times to replay.")
    if arrival.format is not None:
        find_format(arrival.format, f"{where}.format")
    return arrival


def explicit(arrival: Arrival) -> str | Json:
    """Return an arrival process as a scenario writes it: its name, or a mapping if it has other keys."""
    plain: Json = to_builtins(arrival)
    return plain if len(plain) > 1 else arrival.process


def base_rate(arrival: Arrival, rate: Fraction | None, where: str = "arrival") -> Fraction | None:
    """Return `rate`. If the process has an interval instead of a rate, return its `size` divided by the interval. For a
    trace without a rate, return None."""
    if arrival.interval is not None:
        if rate is not None:
            raise HeadwayError(
                f"{where}.interval: the rate and the size already give the interval. Remove this key or the rate."
            )
        assert arrival.size is not None
        return Fraction(arrival.size * PS_PER_SECOND, duration_ps(arrival.interval, f"{where}.interval"))
    if rate is None and arrival.process != "trace":
        also = " or an interval" if arrival.process == "adversarial" else ""
        raise HeadwayError(f"{where}: the {arrival.process} process needs a rate{also}, as in 40/s.")
    return rate


def microseconds(arrival: Arrival, rate: Fraction | None, rng: Random, profile: Profile | None = None) -> Iterator[int]:
    """Yield arrival times in ascending order. `arrival` is a result of `parse`, and `rate` a result of `base_rate`.

    The times never end, unless a trace plays as recorded or the profile stays at 0 from some time on.
    """
    if rate is None:
        rate = base_rate(arrival, None)
    if arrival.process == "trace":
        totals, unit = _recorded_instants(pathlib.Path(str(arrival.path)), arrival.format, rate is not None)
    else:
        totals, unit = _totals(arrival, rng)
    rate = Fraction(1) if rate is None else rate
    return _even(totals, unit, rate) if profile is None else profile.curve().change(totals, unit, rate)


def _even(totals: Iterator[int], unit: int, rate: Fraction) -> Iterator[int]:
    numerator, denominator = US_PER_SECOND * rate.denominator, unit * rate.numerator
    half = denominator // 2
    for total in totals:
        yield (total * numerator + half) // denominator


def _totals(arrival: Arrival, rng: Random) -> tuple[Iterator[int], int]:
    """Return the arrival times as whole numbers, and the number that stands for one mean gap."""
    uniform = rng.random
    match arrival.process:
        case "constant":
            return count(), 1
        case "adversarial":
            assert arrival.size is not None
            size = arrival.size
            return (number - number % size for number in count()), 1
        case "periodic":
            late = UNIT * (arrival.jitter or 0.0)
            return (tick + int(late * uniform()) for tick in count(0, UNIT)), UNIT
    return _renewals(_gaps(arrival, rng)), UNIT


def _renewals(gap: Callable[[], float]) -> Iterator[int]:
    total = 0
    while True:
        total += int(gap() + 0.5)
        yield total


def _gaps(arrival: Arrival, rng: Random) -> Callable[[], float]:
    """Return a function that draws gaps of mean `UNIT`."""
    uniform = rng.random
    if arrival.alpha is not None:  # a Pareto gap is least / U^(1 / alpha), with U uniform
        least, power = UNIT * (arrival.alpha - 1) / arrival.alpha, -1 / arrival.alpha
        return lambda: least * (1.0 - uniform()) ** power
    if arrival.cv is None:
        return lambda: -UNIT * log(1.0 - uniform())
    if arrival.process == "weibull":
        shape, mean = weibull(arrival.cv)
        scale, power = UNIT / mean, 1 / shape
        return lambda: scale * (-log(1.0 - uniform())) ** power
    shape, scale, gamma = arrival.cv**-2, UNIT * arrival.cv**2, rng.gammavariate
    return lambda: gamma(shape, scale)


def weibull(cv: float) -> tuple[float, float]:
    """Return the shape k of a Weibull distribution with this coefficient of variation, and its mean at scale 1.

    Both are rounded, so that they are the same on every machine. k solves 1 + cv^2 = G(1 + 2/k) / G(1 + 1/k)^2, where
    G is the gamma function. The right side falls as k rises, so bisection finds k.
    """
    target = log(1 + cv * cv)
    low, high = 0.01, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        if lgamma(1 + 2 / middle) - 2 * lgamma(1 + 1 / middle) > target:
            low = middle
        else:
            high = middle
    shape = float(f"{low:.7g}")
    return shape, float(f"{exp(lgamma(1 + 1 / shape)):.10g}")


def _recorded_instants(path: pathlib.Path, format: str | None, stretched: bool) -> tuple[Iterator[int], int]:
    """Return the times of a file, counted from the first time, and the number that stands for one unit of time.

    The unit is one second. If `stretched` is set, the unit is one mean gap, and the times repeat without end. In that
    case the file is first read once to find its span and its number of times.
    """
    if not stretched:
        return _instants(path, format), PS_PER_SECOND
    number = last = -1
    held: list[int] = []
    for number, last in enumerate(_instants(path, format)):
        if number < HELD:
            held.append(last)
    if last <= 0:
        wrong = "has fewer than two times" if number < 1 else "all times are the same"
        raise HeadwayError(f"{path.name}: {wrong}. Remove the rate, or use the adversarial process.")

    # Each repetition has `number` + 1 timestamps and, including the gap to the next repetition, `number` + 1 gaps.
    # The mean gap is `last` / `number`. All timestamps are multiplied by `number`, so that they are integers.
    def pattern() -> Iterator[int]:
        for begin in count(0, (number + 1) * last):
            for at in held if number < HELD else _instants(path, format):
                yield begin + at * number

    return pattern(), last


def _instants(path: pathlib.Path, format: str | None) -> Iterator[int]:
    """Yield the recorded times in picoseconds, counted from the first time."""
    first, last = None, 0
    for place, at in _times(path, format):
        first = at if first is None else first
        if at - first < last:
            raise HeadwayError(f"{place}: the time is earlier than a previous one. Sort the file by time.")
        last = at - first
        yield last
    if first is None:
        raise HeadwayError(f"{path.name}: the file has no times.")


def _times(path: pathlib.Path, format: str | None) -> Iterator[tuple[str, int]]:
    first = head(path) if format is None else []
    if first and SECONDS.fullmatch(first[0]):
        for line, text in lines(path):
            place = f"{path.name} line {line}"
            at = exact(text.decode()) if SECONDS.fullmatch(text) else None
            if at is None:
                line_text = cut(text.decode(errors="replace"), 40)
                raise HeadwayError(f"{place}: expected a time in seconds, as in 12.5, got {line_text!r}.")
            yield place, round(at * PS_PER_SECOND)
        return
    reader = open_trace(path, format, ask="arrival.format")
    if reader.info.clock != "trace":
        wrong = "its times count from the start of each session, not of the trace"
        raise HeadwayError(f"{path.name}: {wrong}. Choose another process.")
    for number, record in enumerate(reader.records):
        if record.at_ps is None:
            raise HeadwayError(f"{path.name}: request {number} has no recorded time. Choose another process or file.")
        yield f"{path.name} request {number}", record.at_ps
