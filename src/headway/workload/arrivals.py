"""Arrival processes: when requests come, as whole microseconds in order.

`arrival: poisson`, `constant` or `gamma`, or a mapping, `{process: gamma, cv: 2}`. A gamma process has gaps with the
coefficient of variation `cv`: above 1 it is burstier than Poisson, below 1 more even.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from itertools import count
from math import isfinite, log
from random import Random
from typing import Final

from msgspec import Struct

from headway.section import read
from headway.types import HeadwayError
from headway.wording import suggest

PROCESSES: Final = ("poisson", "gamma", "constant")
GAMMA_CV: Final = 2.0
US_PER_SECOND: Final = 1_000_000
# Gaps are drawn with mean 1 and kept in 2^-20 of it: their sum is an exact integer, and coarse enough that the last
# bit of a machine's logarithm does not show.
UNIT: Final = 1 << 20


class Arrival(Struct, frozen=True):
    """The `arrival` key as a mapping."""

    process: str
    cv: float | None = None


def parse(spec: object, where: str) -> Arrival:
    """An arrival process from its bare name or its mapping."""
    arrival = Arrival(spec) if isinstance(spec, str) else read(Arrival, spec, where)
    place = where if isinstance(spec, str) else f"{where}.process"
    if arrival.process not in PROCESSES:
        known = suggest(arrival.process, PROCESSES)
        raise HeadwayError(f"{place}: no arrival process is called {arrival.process!r}.{known}")
    if arrival.process != "gamma":
        if arrival.cv is not None:
            raise HeadwayError(f"{where}.cv: only the gamma process takes a cv, {arrival.process} has its own.")
        return arrival
    cv = GAMMA_CV if arrival.cv is None else arrival.cv
    if not (isfinite(cv) and 0.01 <= cv <= 100):
        raise HeadwayError(f"{where}.cv: must lie between 0.01 and 100 (for equal gaps use constant), got {cv!r}.")
    return Arrival("gamma", cv)


def microseconds(arrival: Arrival, rate: Fraction, rng: Random) -> Iterator[int]:
    """Arrival times without end. A constant process starts at 0, the others after their first gap."""
    if arrival.process == "constant":
        numerator, denominator = US_PER_SECOND * rate.denominator, rate.numerator
        return ((2 * number * numerator + denominator) // (2 * denominator) for number in count())
    return _renewals(_gaps(arrival, rng), rate)


def _gaps(arrival: Arrival, rng: Random) -> Callable[[], float]:
    """Draws of mean `UNIT`."""
    if arrival.process == "gamma":
        assert arrival.cv is not None
        shape, scale, gamma = arrival.cv**-2, UNIT * arrival.cv**2, rng.gammavariate
        return lambda: gamma(shape, scale)
    uniform = rng.random
    return lambda: -UNIT * log(1.0 - uniform())


def _renewals(gap: Callable[[], float], rate: Fraction) -> Iterator[int]:
    numerator, denominator = US_PER_SECOND * rate.denominator, UNIT * rate.numerator
    half, total = denominator // 2, 0
    while True:
        total += int(gap() + 0.5)
        yield (total * numerator + half) // denominator
