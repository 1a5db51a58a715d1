"""The sections `scaling` and `faults` of a scenario: how the autoscaler is asked and obeyed, and what goes wrong."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct

from headway.config.section import read
from headway.config.units import duration_ps, duration_text, exact
from headway.config.wording import shown
from headway.control.autoscaler import Triggers
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload import durations

Share = Annotated[float, Meta(ge=0, le=1)]
Pieces = Annotated[int, Meta(ge=1, le=1000)]
FINE: Final = 1000  # a factor is a whole number of thousandths


class _WarmupKeys(Struct):
    duration: Any
    curve: Literal["linear", "exponential", "step"] = "linear"
    penalty: Any = 1.5
    pieces: Pieces = 10


class _DrainKeys(Struct):
    mode: Literal["wait", "immediate", "redirect"] = "wait"
    timeout: Any = None


class _TriggerKeys(Struct):
    queue_depth: Annotated[float, Meta(ge=0)] | None = None
    attainment: Share | None = None
    high: Annotated[float, Meta(ge=0)] | None = None
    low: Annotated[float, Meta(ge=0)] | None = None
    sustained: Any = "0s"
    rate_change: Annotated[float, Meta(gt=0)] | None = None
    gap: Any = "15s"


class _ScalingKeys(Struct):
    interval: Any = "30s"
    triggers: Any = None
    window: Any = "60s"
    provisioning: Any = "0s"
    model_load: Any = "0s"
    warmup: Any = None
    drain: Any = None
    patience: Any = "5m"


class _FaultKeys(Struct):
    at: Any
    instance: str
    kind: Literal["crash", "slow", "unreachable"]
    duration: Any = None
    factor: Any = None


class Warmup(Struct, frozen=True):
    """An instance that has just come up is slower by a factor that falls from `penalty` to 1."""

    duration_ps: int
    curve: str
    penalty: Fraction
    pieces: int

    def steps(self) -> list[tuple[int, Fraction]]:
        """The curve as a step function: each piece has the curve's value at its middle, the last one is 1."""
        pieces = 1 if self.curve == "step" else self.pieces
        found = []
        for piece in range(pieces):
            middle = Fraction(2 * piece + 1, 2 * pieces)
            left = {"step": Fraction(1), "linear": 1 - middle, "exponential": _falling(middle)}[self.curve]
            found.append((self.duration_ps * piece // pieces, 1 + _thousandths((self.penalty - 1) * left)))
        return [*found, (self.duration_ps, Fraction(1))]

    def explicit(self) -> Json:
        return {
            "duration": duration_text(self.duration_ps),
            "curve": self.curve,
            "penalty": float(self.penalty),
            "pieces": self.pieces,
        }


class Fault(Struct, frozen=True):
    at_ps: int
    instance: str
    kind: str
    duration_ps: int | None  # None: for good
    factor: Fraction  # by which steps take longer, of slow

    def explicit(self) -> Json:
        found: Json = {"at": duration_text(self.at_ps), "instance": self.instance, "kind": self.kind}
        if self.kind == "slow":
            found["factor"] = float(self.factor)
        return found | {"duration": duration_text(self.duration_ps)}


class Scaling(Struct, frozen=True):
    """How the autoscaler is asked, and how long what it decides takes."""

    interval_ps: int | None = 30 * 10**12
    triggers: Triggers | None = None
    window_ps: int = 60 * 10**12
    provisioning: Any = "0s"  # durations or distributions of them
    model_load: Any = "0s"
    warmup: Warmup | None = None
    drain: str = "wait"
    drain_timeout_ps: int | None = None
    patience_ps: int = 300 * 10**12

    def explicit(self) -> Json:
        return {
            "interval": duration_text(self.interval_ps),
            "triggers": None if self.triggers is None else _explicit_triggers(self.triggers),
            "window": duration_text(self.window_ps),
            "provisioning": self.provisioning,
            "model_load": self.model_load,
            "warmup": None if self.warmup is None else self.warmup.explicit(),
            "drain": {"mode": self.drain, "timeout": duration_text(self.drain_timeout_ps)},
            "patience": duration_text(self.patience_ps),
        }


def read_scaling(section: Any) -> Scaling:
    keys = read(_ScalingKeys, {} if section is None else section, "scaling")
    interval = None if keys.interval is None else _some(keys.interval, "scaling.interval")
    drain = read(_DrainKeys, {} if keys.drain is None else keys.drain, "scaling.drain")
    if drain.timeout is not None and drain.mode != "wait":
        raise HeadwayError(f"scaling.drain.timeout: is for 'mode: wait', and the mode is {drain.mode}.")
    for name in ("provisioning", "model_load"):
        durations.parse(getattr(keys, name), f"scaling.{name}")
    return Scaling(
        interval,
        None if keys.triggers is None else _read_triggers(keys.triggers),
        _some(keys.window, "scaling.window"),
        keys.provisioning,
        keys.model_load,
        None if keys.warmup is None else _read_warmup(keys.warmup),
        drain.mode,
        None if drain.timeout is None else duration_ps(drain.timeout, "scaling.drain.timeout"),
        _some(keys.patience, "scaling.patience"),
    )


def _read_triggers(section: Any) -> Triggers:
    where = "scaling.triggers"
    keys = read(_TriggerKeys, section, where)
    if keys.low is not None and keys.high is not None and keys.low >= keys.high:
        raise HeadwayError(f"{where}.low: must be below 'high', {keys.high:g}, got {keys.low:g}.")
    return Triggers(
        keys.queue_depth,
        keys.attainment,
        keys.high,
        keys.low,
        duration_ps(keys.sustained, f"{where}.sustained"),
        keys.rate_change,
        _some(keys.gap, f"{where}.gap"),
    )


def _explicit_triggers(triggers: Triggers) -> Json:
    return {
        "queue_depth": triggers.queue_depth,
        "attainment": triggers.attainment,
        "high": triggers.high,
        "low": triggers.low,
        "sustained": duration_text(triggers.sustained_ps),
        "rate_change": triggers.rate_change,
        "gap": duration_text(triggers.gap_ps),
    }


def _read_warmup(section: Any) -> Warmup:
    where = "scaling.warmup"
    keys = read(_WarmupKeys, section, where)
    return Warmup(
        _some(keys.duration, f"{where}.duration"), keys.curve, factor(keys.penalty, f"{where}.penalty"), keys.pieces
    )


def read_faults(section: Any) -> tuple[Fault, ...]:
    if section is None:
        return ()
    if not isinstance(section, list):
        right = "a list, as in [{at: 60s, instance: instance-3, kind: crash, duration: 2m}]"
        raise HeadwayError(f"faults: expected {right}, got {shown(section)}.")
    found = []
    for number, one in enumerate(section):
        where = f"faults[{number}]"
        keys = read(_FaultKeys, one, where)
        if (keys.factor is None) == (keys.kind == "slow"):
            wrong = (
                "is missing; a slow instance takes so many times as long, as in 3"
                if keys.factor is None
                else (f"is for 'kind: slow', and the kind is {keys.kind}")
            )
            raise HeadwayError(f"{where}.factor: {wrong}.")
        found.append(
            Fault(
                duration_ps(keys.at, f"{where}.at"),
                keys.instance,
                keys.kind,
                None if keys.duration is None else _some(keys.duration, f"{where}.duration"),
                Fraction(1) if keys.factor is None else factor(keys.factor, f"{where}.factor"),
            )
        )
    return tuple(found)


def factor(value: Any, where: str) -> Fraction:
    """How many times as long something takes; in whole thousandths, so that it is the same everywhere."""
    found = exact(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else None
    if found is None or not 1 <= found <= 1000:
        raise HeadwayError(f"{where}: expected a number from 1 to 1000, got {shown(value)}.")
    return _thousandths(found)


def _thousandths(value: Fraction) -> Fraction:
    return Fraction(round(value * FINE), FINE)


def _falling(share: Fraction) -> Fraction:
    """2^(-5·share) by its chord between whole powers: it falls fast at first, to 1/32, and is exact everywhere."""
    whole, rest = divmod(5 * share, 1)
    return Fraction((1 - rest / 2) / 2**whole)


def _some(value: Any, where: str) -> int:
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found
