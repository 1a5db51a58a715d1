"""The sections `scaling` and `faults` of a scenario: the autoscaler, starting and stopping instances, and faults."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, to_builtins

from headway.config.keys import QUIET, Doc, Duration, Form, PositiveDuration, Unit, write
from headway.config.section import read
from headway.config.units import exact
from headway.config.wording import shown
from headway.control.autoscaler import Triggers
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Json
from headway.workload import durations

FINE: Final = 1000  # factors are rounded to multiples of 1/FINE, so that results are equal on every machine


def factor(value: Any, where: str) -> Fraction:
    """Parse a slowdown: the factor that multiplies the duration of each step."""
    number = exact(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or not 1 <= number <= 1000:
        raise HeadwayError(f"{where}: expected a number from 1 to 1000, got {shown(value)}.")
    return _thousandths(number)


def _thousandths(value: Fraction) -> Fraction:
    return Fraction(round(value * FINE), FINE)


def _distribution(value: Any, where: str) -> Any:
    """Check a duration or a distribution of durations, and return it unchanged."""
    durations.parse(value, where)
    return value


Factor = Annotated[
    Fraction, Unit("number, 1 to 1,000", factor, float, form=Form.of(Annotated[float, Meta(ge=1, le=1000)]))
]
Durations = Annotated[Any, Unit("duration or distribution", _distribution, to_builtins, form=durations.FORM)]


class Warmup(Struct, frozen=True):
    """The warm-up of a new instance: the duration of its steps is multiplied by a factor that falls from `penalty` to
    1."""

    duration_ps: Annotated[PositiveDuration, "length of the warm-up, from when the instance receives requests"]
    curve: Annotated[
        Literal["linear", "exponential", "step"],
        "how the factor falls to 1; exponential: its excess over 1 halves in each fifth of the time; step: it stays at "
        "`penalty` until the end",
    ] = "linear"
    penalty: Annotated[Factor, "factor by which steps take longer at first"] = Fraction(3, 2)
    pieces: Annotated[
        int,
        Meta(ge=1, le=1000),
        "number of equal pieces of the curve; the factor is constant in each, with the curve's value at its middle",
    ] = 10

    def steps(self) -> list[tuple[int, Fraction]]:
        """Return the curve as a step function: a list of (offset, factor) pairs. The offset is in picoseconds from the
        start of the warm-up. The factor of the last pair is 1."""
        pieces = 1 if self.curve == "step" else self.pieces
        steps = []
        for piece in range(pieces):
            middle = Fraction(2 * piece + 1, 2 * pieces)
            left = {"step": Fraction(1), "linear": 1 - middle, "exponential": _falling(middle)}[self.curve]
            steps.append((self.duration_ps * piece // pieces, 1 + _thousandths((self.penalty - 1) * left)))
        return [*steps, (self.duration_ps, Fraction(1))]


class Fault(Struct, frozen=True):
    """A fault of an instance: its start, its type and its duration."""

    at_ps: Annotated[Duration, "when it strikes, in simulated time"]
    instance: Annotated[str, "id of the instance, such as instance-3 or chat-decode-0"]
    kind: Annotated[
        Literal["crash", "slow", "unreachable"],
        "crash: requests and cache are lost; slow: steps take `factor` times as long; unreachable: requests are lost, "
        "the cache is kept, and the router sends nothing there",
    ]
    factor: Annotated[
        Factor | None, Doc("with slow: how many times as long steps take", default="required with slow"), QUIET
    ] = None
    duration_ps: Annotated[
        PositiveDuration | None,
        Doc("how long it lasts; after a crash, the instance then loads and warms up again", default="permanent"),
    ] = None

    def validate(self, where: str) -> Fault:
        if self.factor is None and self.kind == "slow":
            raise HeadwayError(f"{where}.factor: is missing; a slow instance needs it, as in factor: 3.")
        if self.factor is not None and self.kind != "slow":
            raise HeadwayError(f"{where}.factor: is valid only with 'kind: slow', but the kind is {self.kind}.")
        return self


class Drain(Struct, frozen=True):
    """How an instance stops when the autoscaler removes it."""

    mode: Annotated[
        Literal["wait", "immediate", "redirect"],
        "what happens to its requests: they finish (wait); they are lost, and fail or are retried, see `retries` "
        "(immediate); or they continue on another instance, which computes them again (redirect)",
    ] = "wait"
    timeout_ps: Annotated[Duration | None, "with wait: requests that are unfinished after this time are lost"] = None

    def validate(self, where: str) -> Drain:
        if self.timeout_ps is not None and self.mode != "wait":
            raise HeadwayError(f"{where}.timeout: is valid only with 'mode: wait', but the mode is {self.mode}.")
        return self


class Scaling(Struct, frozen=True):
    """The settings of autoscaling: when the autoscaler decides, and how long instances take to start and stop."""

    interval_ps: Annotated[
        PositiveDuration | None,
        "the autoscaler decides at every multiple of this interval; null: only when a trigger fires",
    ] = 30 * PS_PER_SECOND
    triggers: Annotated[Triggers | None, "conditions under which it also decides in between, see below"] = None
    window_ps: Annotated[
        PositiveDuration, "the autoscaler sees latencies and attainment of the requests that ended within this window"
    ] = 60 * PS_PER_SECOND
    provisioning: Annotated[Durations, "time from the decision until the machine is available"] = "0s"
    model_load: Annotated[Durations, "time to load the weights, after provisioning"] = "0s"
    warmup: Annotated[Warmup | None, "how much slower a new instance is at first, see below"] = None
    drain: Annotated[Drain, "what happens to the requests of an instance that is stopped, see below"] = Drain()
    patience_ps: Annotated[
        PositiveDuration,
        "how long a request waits at the router if no instance is available; then it is rejected (503)",
    ] = 300 * PS_PER_SECOND


def read_faults(section: Any, where: str) -> tuple[Fault, ...]:
    if section is None:
        return ()
    if not isinstance(section, list):
        right = "a list, as in [{at: 60s, instance: instance-3, kind: crash, duration: 2m}]"
        raise HeadwayError(f"{where}: expected {right}, got {shown(section)}.")
    return tuple(read(Fault, fault, f"{where}[{number}]") for number, fault in enumerate(section))


def write_faults(faults: tuple[Fault, ...]) -> list[Json]:
    return [write(fault) for fault in faults]


def _falling(share: Fraction) -> Fraction:
    """Return an approximation of 2^(-5·share), which is exact if 5·share is a whole number. Between these points, the
    approximation is linear, so that the result is a fraction and the same on every machine."""
    whole, rest = divmod(5 * share, 1)
    return Fraction((1 - rest / 2) / 2**whole)
