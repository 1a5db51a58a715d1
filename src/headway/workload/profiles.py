"""Load profiles: the rate over time, as a multiplier of the base rate. `docs/scenario.md` lists their keys.

The multiplier is 1 before the first level, and outside spikes and segments. The last level lasts forever, and so does
the value at the end of a ramp. Every profile has a `Curve`, which rescales the time of an arrival process: the n-th
request arrives when the integral of the rate reaches the n-th arrival time of the process at rate 1.
"""

from __future__ import annotations

from fractions import Fraction
from math import cos, pi
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct, field
from msgspec.structs import replace

from headway.config.keys import DURATION, Doc, Form
from headway.config.schema import Later, Part, Variants
from headway.config.section import read, split_kind
from headway.config.units import duration_ps, duration_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_US
from headway.workload.curve import Curve, Piece
from headway.workload.durations import microseconds

MILLION: Final = 1_000_000
ONE: Final = Fraction(1)
MULTIPLIER: Final = Form.of(Annotated[float, Meta(ge=0, le=1e6)])
HALF_DAY: Final = 48  # number of samples of the cosine in half a diurnal period


class Profile(Struct, frozen=True, tag_field="type"):
    """A profile as the scenario writes it, with defaults for keys that are not set."""

    def curve(self, where: str = "profile") -> Curve:
        """Return the multiplier over time. If a value is invalid, raise an error that names its key."""
        raise NotImplementedError

    def arrivals_before(self, rate: Fraction, until_ps: int) -> Fraction:
        """Return the exact expected number of arrivals before `until_ps` at the base `rate` per second."""
        return rate * self.curve().integral(until_ps)


class Constant(Profile, frozen=True, tag="constant"):
    def curve(self, where: str = "profile") -> Curve:
        return Curve([], ONE)


class Diurnal(Profile, frozen=True, tag="diurnal"):
    """A cosine between `low` and `high` with its peak at `peak_at` (default: half a period). A period has 96 samples.

    The mean of a period is exactly (low + high) / 2. By default `high` is 2 - `low`, so that the mean is the base rate.
    """

    period: Annotated[Any, DURATION, "length of one wave"] = "24h"
    low: Annotated[float, MULTIPLIER, "lowest multiplier of the rate"] = 0.3
    high: Annotated[
        float | None, MULTIPLIER, Doc("highest multiplier", default="2 - `low`, so that the mean is the rate")
    ] = None
    peak_at: Annotated[Any, DURATION, Doc("time of the first peak", default="half a period")] = None

    def validate(self, where: str) -> Diurnal:
        high = self.high
        if high is None:
            if not self.low <= 1:
                raise HeadwayError(f"{where}.high: is missing. Set the highest multiplier if 'low' is above 1.")
            high = round(2 - self.low, 6)
        peak = self.peak_at
        if peak is None:
            peak = duration_text(duration_ps(self.period, f"{where}.period") // 2)
        return replace(self, high=high, peak_at=peak)

    def curve(self, where: str = "profile") -> Curve:
        assert self.high is not None
        half = microseconds(self.period, f"{where}.period") // 2
        if half < 500:
            raise HeadwayError(f"{where}.period: must be at least 1ms, got {shown(self.period)}.")
        low, high = multiplier(self.low, f"{where}.low"), multiplier(self.high, f"{where}.high")
        if high < low:
            raise HeadwayError(f"{where}.high: must be at least 'low' ({self.low:g}), got {self.high:g}.")
        peak = Fraction(microseconds(self.peak_at, f"{where}.peak_at"), half) % 2
        # Rounding to millionths hides differences between machines.
        # The second half of the samples is the negative of the first half, so that the mean is exact.
        turns = [float(Fraction(sample, HALF_DAY) - peak) for sample in range(HALF_DAY)]
        waves = [Fraction(round(cos(pi * turn) * MILLION), MILLION) for turn in turns]
        levels = [(low + high + (high - low) * wave) / 2 for wave in (*waves, *(-wave for wave in waves), waves[0])]
        times = [sample * half // HALF_DAY for sample in range(HALF_DAY)]
        times += [half + time for time in times] + [2 * half]
        pieces = [Piece(*ends) for ends in zip(times, times[1:], levels, levels[1:], strict=False)]
        return Curve(pieces, None)


class Repeatable(Profile, frozen=True, kw_only=True):
    """A profile that may repeat."""

    repeat: Annotated[Any, DURATION, "period after which the profile starts again"] = UNSET

    def pieces(self, where: str) -> tuple[list[Piece], Fraction]:
        """Return the pieces from time 0 on and the level after the last piece. Some pieces may be empty."""
        raise NotImplementedError

    def curve(self, where: str = "profile") -> Curve:
        pieces, level = self.pieces(where)
        pieces = [piece for piece in pieces if piece.start < piece.end]
        if self.repeat is UNSET or self.repeat is None:
            return Curve(pieces, level)
        place, end = f"{where}.repeat", pieces[-1].end if pieces else 0
        period = microseconds(self.repeat, place)
        if not period and not end:
            raise HeadwayError(f"{place}: must be greater than zero, got {shown(self.repeat)}.")
        if period < end:
            least = f"must be at least {duration_text(end * PS_PER_US)}, the length of the profile"
            raise HeadwayError(f"{place}: {least}, got {shown(self.repeat)}.")
        if period > end:
            pieces.append(Piece(end, period, level, level))
        return Curve(pieces, None)


class Level(Struct, frozen=True):
    at: Annotated[Any, DURATION, "when the level begins"]
    multiplier: Annotated[float, MULTIPLIER, "multiplier of the rate from then on"]


class Step(Repeatable, frozen=True, tag="step"):
    levels: Annotated[list[Any], Form.of(list[Level]), "levels in order of time"]

    def validate(self, where: str) -> Step:
        return replace(self, levels=read_each(Level, self.levels, f"{where}.levels"))

    def pieces(self, where: str) -> tuple[list[Piece], Fraction]:
        pieces: list[Piece] = []
        since, level = 0, ONE
        for number, entry in enumerate(self.levels):
            place = f"{where}.levels[{number}]"
            at = microseconds(entry.at, f"{place}.at")
            if at < since or (number and at == since):
                raise HeadwayError(f"{place}.at: must be later than the previous level, got {shown(entry.at)}.")
            pieces.append(Piece(since, at, level, level))
            since, level = at, multiplier(entry.multiplier, f"{place}.multiplier")
        return pieces, level


class Ramp(Repeatable, frozen=True, tag="ramp"):
    """The multiplier is `from` until `start`, then changes linearly to `to` at `end`."""

    from_: Annotated[float, MULTIPLIER, "multiplier until `start`"] = field(name="from")
    to: Annotated[float, MULTIPLIER, "multiplier from `end` on"]
    end: Annotated[Any, DURATION, "when the ramp ends"]
    start: Annotated[Any, DURATION, "when the ramp begins"] = "0s"

    def pieces(self, where: str) -> tuple[list[Piece], Fraction]:
        first, last = multiplier(self.from_, f"{where}.from"), multiplier(self.to, f"{where}.to")
        start, end = microseconds(self.start, f"{where}.start"), microseconds(self.end, f"{where}.end")
        if end <= start:
            raise HeadwayError(f"{where}.end: must be later than 'start' ({self.start}), got {shown(self.end)}.")
        return [Piece(0, start, first, first), Piece(start, end, first, last)], last


class Spike(Repeatable, frozen=True, tag="spike"):
    """The multiplier is `multiplier` from `at` for `duration`, and then returns linearly to 1 within `recovery`."""

    at: Annotated[Any, DURATION, "when the spike begins"]
    multiplier: Annotated[float, MULTIPLIER, "multiplier of the rate in the spike"]
    duration: Annotated[Any, DURATION, "how long the spike lasts"]
    recovery: Annotated[Any, DURATION, "time in which the rate returns to normal"] = "0s"

    def pieces(self, where: str) -> tuple[list[Piece], Fraction]:
        level = multiplier(self.multiplier, f"{where}.multiplier")
        at = microseconds(self.at, f"{where}.at")
        stays = at + microseconds(self.duration, f"{where}.duration")
        over = stays + microseconds(self.recovery, f"{where}.recovery")
        if over == at:
            raise HeadwayError(f"{where}.duration: must be greater than zero, got {shown(self.duration)}.")
        return [Piece(0, at, ONE, ONE), Piece(at, stays, level, level), Piece(stays, over, level, ONE)], ONE


class Segment(Struct, frozen=True):
    start: Annotated[Any, DURATION, "when the segment begins"]
    end: Annotated[Any, DURATION, "when the segment ends"]
    multiplier: Annotated[float, MULTIPLIER, "multiplier of the rate in between"]


class Segments(Repeatable, frozen=True, tag="segments"):
    segments: Annotated[list[Any], Form.of(list[Segment]), "segments in order of time"]

    def validate(self, where: str) -> Segments:
        return replace(self, segments=read_each(Segment, self.segments, f"{where}.segments"))

    def pieces(self, where: str) -> tuple[list[Piece], Fraction]:
        pieces: list[Piece] = []
        since = 0
        for number, entry in enumerate(self.segments):
            place = f"{where}.segments[{number}]"
            start, end = microseconds(entry.start, f"{place}.start"), microseconds(entry.end, f"{place}.end")
            if start < since:
                wrong = f"must not be before the end of the previous segment ({self.segments[number - 1].end})"
                raise HeadwayError(f"{place}.start: {wrong}, got {shown(entry.start)}.")
            if end <= start:
                raise HeadwayError(f"{place}.end: must be later than 'start' ({entry.start}), got {shown(entry.end)}.")
            level = multiplier(entry.multiplier, f"{place}.multiplier")
            pieces += [Piece(since, start, ONE, ONE), Piece(start, end, level, level)]
            since = end
        return pieces, ONE


KINDS: Final[dict[str, type[Profile]]] = {
    str(kind.__struct_config__.tag): kind for kind in (Constant, Step, Ramp, Diurnal, Spike, Segments)
}


# Valid values of a profile in a file. A mapping with `segments` needs no `type`.
ProfileSpec = Annotated[
    Any, Form.of(Later("profile", lambda: Form.of(Variants("type", lambda: KINDS), Part(Segments))))
]


def parse(spec: object, where: str) -> Profile:
    """Read a profile from its name or its mapping."""
    if isinstance(spec, dict) and "segments" in spec:
        spec = {"type": "segments", **spec}
    name, rest = split_kind(spec, where, "type", KINDS, "profile", "load profile")
    profile = read(KINDS[name], rest, where)
    profile.curve(where)
    return profile


def read_each(kind: type[Level] | type[Segment], entries: list[Any], where: str) -> list[Level | Segment]:
    if not entries:
        raise HeadwayError(f"{where}: list at least one entry.")
    return [read(kind, entry, f"{where}[{number}]") for number, entry in enumerate(entries)]


def multiplier(value: float, where: str) -> Fraction:
    if not (value == 0 or 1e-6 <= value <= 1e6):
        raise HeadwayError(f"{where}: a multiplier is 0 or lies between 0.000001 and 1000000, got {value:g}.")
    return Fraction(round(value * MILLION), MILLION)
