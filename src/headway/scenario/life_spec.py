"""The sections `scaling` and `faults` of a scenario: how the autoscaler is asked and obeyed, and what goes wrong."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, to_builtins

from headway.config.keys import QUIET, Doc, Duration, PositiveDuration, Unit, write
from headway.config.section import read
from headway.config.units import exact
from headway.config.wording import shown
from headway.control.autoscaler import Triggers
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Json
from headway.workload import durations

FINE: Final = 1000  # a factor is a whole number of thousandths


def factor(value: Any, where: str) -> Fraction:
    """How many times as long something takes; in whole thousandths, so that it is the same everywhere."""
    number = exact(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if number is None or not 1 <= number <= 1000:
        raise HeadwayError(f"{where}: expected a number from 1 to 1000, got {shown(value)}.")
    return _thousandths(number)


def _thousandths(value: Fraction) -> Fraction:
    return Fraction(round(value * FINE), FINE)


def _distribution(value: Any, where: str) -> Any:
    """A duration or a distribution of them, as it is written."""
    durations.parse(value, where)
    return value


Factor = Annotated[Fraction, Unit("number, 1 to 1,000", factor, float)]
Durations = Annotated[Any, Unit("duration or distribution", _distribution, to_builtins)]


class Warmup(Struct, frozen=True):
    """An instance that has just come up is slower by a factor that falls from `penalty` to 1."""

    duration_ps: Annotated[PositiveDuration, "from when requests go to it"]
    curve: Annotated[
        Literal["linear", "exponential", "step"],
        "how the factor falls to 1; exponential is nearly 1/32 of the way up at the end, step falls at the end",
    ] = "linear"
    penalty: Annotated[Factor, "how many times as long steps take at first"] = Fraction(3, 2)
    pieces: Annotated[
        int,
        Meta(ge=1, le=1000),
        "the curve is a step function of so many equal pieces, each with its value in the middle",
    ] = 10

    def steps(self) -> list[tuple[int, Fraction]]:
        """The curve as a step function: each piece has the curve's value at its middle, the last one is 1."""
        pieces = 1 if self.curve == "step" else self.pieces
        steps = []
        for piece in range(pieces):
            middle = Fraction(2 * piece + 1, 2 * pieces)
            left = {"step": Fraction(1), "linear": 1 - middle, "exponential": _falling(middle)}[self.curve]
            steps.append((self.duration_ps * piece // pieces, 1 + _thousandths((self.penalty - 1) * left)))
        return [*steps, (self.duration_ps, Fraction(1))]


class Fault(Struct, frozen=True):
    """Something that goes wrong with an instance."""

    at_ps: Annotated[Duration, "when, from the beginning of simulated time"]
    instance: Annotated[str, "as in instance-3 or chat-decode-0"]
    kind: Annotated[
        Literal["crash", "slow", "unreachable"],
        "all is lost; steps take `factor` times as long; its requests are lost, its cache stays, nothing is sent there",
    ]
    factor: Annotated[Factor | None, Doc("how many times as long", default="required of slow"), QUIET] = None
    duration_ps: Annotated[
        PositiveDuration | None, Doc("after a crash it then loads and warms up again", default="for good")
    ] = None

    def validate(self, where: str) -> Fault:
        if (self.factor is None) == (self.kind == "slow"):
            missing = "is missing; a slow instance takes so many times as long, as in 3"
            wrong = missing if self.factor is None else f"is for 'kind: slow', and the kind is {self.kind}"
            raise HeadwayError(f"{where}.factor: {wrong}.")
        return self


class Drain(Struct, frozen=True):
    """How an instance goes that is no longer wanted."""

    mode: Annotated[
        Literal["wait", "immediate", "redirect"],
        "let the requests end; lose them (they fail, or are sent again: `retries`); or let them go on elsewhere, "
        "computed again",
    ] = "wait"
    timeout_ps: Annotated[Duration | None, "with wait: requests that have not ended by then are lost"] = None

    def validate(self, where: str) -> Drain:
        if self.timeout_ps is not None and self.mode != "wait":
            raise HeadwayError(f"{where}.timeout: is for 'mode: wait', and the mode is {self.mode}.")
        return self


class Scaling(Struct, frozen=True):
    """How the autoscaler is asked, and how long what it decides takes."""

    interval_ps: Annotated[
        PositiveDuration | None, "it looks at every multiple from the start of the run; null: at triggers alone"
    ] = 30 * PS_PER_SECOND
    triggers: Annotated[Triggers | None, "what makes it look in between, below"] = None
    window_ps: Annotated[
        PositiveDuration, "the latencies and attainment that it is shown are of the requests that ended so lately"
    ] = 60 * PS_PER_SECOND
    provisioning: Annotated[Durations, "from the decision until there is a machine"] = "0s"
    model_load: Annotated[Durations, "from then until the weights are there"] = "0s"
    warmup: Annotated[Warmup | None, "how much slower an instance is at first, below"] = None
    drain: Annotated[Drain, "what becomes of the requests of an instance that goes, below"] = Drain()
    patience_ps: Annotated[
        PositiveDuration, "how long a request waits at the router where no instance is up; then it is rejected (503)"
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
    """2^(-5·share) by its chord between whole powers: it falls fast at first, to 1/32, and is exact everywhere."""
    whole, rest = divmod(5 * share, 1)
    return Fraction((1 - rest / 2) / 2**whole)
