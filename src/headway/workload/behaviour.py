"""Behaviour: how a tenant's traffic differs from ordinary sessions at the tenant's rate. The sessions of bursts are
additional to that rate. `docs/workloads.md` lists the types of behaviour and their keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from math import isfinite, log2
from typing import Annotated, Any, Final, get_args

from msgspec import Meta, Struct, field

from headway.config.keys import DURATION, Form
from headway.config.schema import Later, Variants
from headway.config.section import check_range, read, split_kind
from headway.config.units import duration_ps
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.streams import stream
from headway.workload import durations, shapes
from headway.workload.plans import USUAL, Mark
from headway.workload.shapes import PROBABILITY, check_probability

MOST_AT_ONCE: Final = 1_000_000
RAREST: Final = 1e-4
BASE, BURST, FOLLOWER = range(3)
AT_ONCE: Final = Form.of(Annotated[int, Meta(ge=1, le=MOST_AT_ONCE)])
FACTOR: Final = Form.of(Annotated[float, Meta(gt=0, le=1e6)])


class Normal(Struct, frozen=True, tag_field="type", tag="normal"):
    pass


class Bursty(Struct, frozen=True, tag_field="type", tag="bursty"):
    probability: Annotated[float, PROBABILITY, "probability of a burst after each interval"] = 0.5
    size: Annotated[shapes.Lengths, "sessions of a burst"] = field(
        default_factory=lambda: {"dist": "geometric", "mean": 10}
    )
    interval: Annotated[durations.Durations, "time between possible bursts"] = field(
        default_factory=lambda: {"dist": "exponential", "mean": "30s"}
    )

    def validate(self, where: str) -> Bursty:
        check_propensity(self.probability, f"{where}.probability")
        shapes.parse(self.size, f"{where}.size")
        _check_interval(self.interval, f"{where}.interval")
        return self


class Oversized(Struct, frozen=True):
    probability: Annotated[float, PROBABILITY, "share of sessions"] = 0.2
    factor: Annotated[float, FACTOR, "factor by which they are longer"] = 8.0

    def validate(self, where: str) -> Oversized:
        check_probability(self.probability, f"{where}.probability")
        _check_factor(self.factor, f"{where}.factor")
        return self


class Volley(Struct, frozen=True):
    size: Annotated[int, AT_ONCE, "requests of a volley"] = 10
    gap: Annotated[durations.Durations, "time between the requests of a volley"] = "10ms"

    def validate(self, where: str) -> Volley:
        check_range(self.size, 1, MOST_AT_ONCE, f"{where}.size")
        durations.parse(self.gap, f"{where}.gap")
        return self


ABUSES: Final[dict[str, type[Oversized] | type[Volley]]] = {
    "oversized_prompts": Oversized,
    "rapid_fire": Volley,
    "kv_exhaustion": Oversized,
}


class Abusive(Struct, frozen=True, tag_field="type", tag="abusive"):
    oversized_prompts: Annotated[Any, Form.of(bool, Oversized), "some prompts are far longer"] = None
    rapid_fire: Annotated[Any, Form.of(bool, Volley), "each session becomes a volley of sessions"] = None
    kv_exhaustion: Annotated[Any, Form.of(bool, Oversized), "some outputs are far longer, and share no prefix"] = None

    def validate(self, where: str) -> Abusive:
        """Read the settings of each type of abuse. A type that is off becomes False. If the section sets no type, all
        types are on."""
        values = {name: getattr(self, name) for name in ABUSES}
        if all(value is None for value in values.values()):
            values = dict.fromkeys(ABUSES, True)
        abuses = {
            name: read(ABUSES[name], {} if value is True else value, f"{where}.{name}")
            for name, value in values.items()
            if value is not None and value is not False
        }
        return Abusive(**dict.fromkeys(ABUSES, False) | abuses)


class Adversarial(Struct, frozen=True, tag_field="type", tag="adversarial"):
    interval: Annotated[Any, DURATION, "time between bursts"] = "10s"
    size: Annotated[int, AT_ONCE, "sessions of a burst"] = 20
    factor: Annotated[float, FACTOR, "factor by which their first prompts are longer"] = 4.0

    def validate(self, where: str) -> Adversarial:
        duration_ps(self.interval, f"{where}.interval")
        _check_interval(self.interval, f"{where}.interval")
        check_range(self.size, 1, MOST_AT_ONCE, f"{where}.size")
        _check_factor(self.factor, f"{where}.factor")
        return self


Behaviour = Normal | Bursty | Abusive | Adversarial
TYPES: Final[dict[str, type[Behaviour]]] = {kind.__struct_config__.tag: kind for kind in get_args(Behaviour)}


BehaviourSpec = Annotated[Any, Form.of(Later("behaviour", lambda: Variants("type", lambda: TYPES)))]


def parse(spec: object, where: str) -> Behaviour:
    """Read a behaviour from its name or its mapping."""
    name, rest = split_kind(spec, where, "type", TYPES, "behaviour", "behaviour")
    return read(TYPES[name], rest, where)


def check_propensity(probability: float, where: str) -> None:
    """Raise if bursts are so rare that drawing the time of the next burst would take too long."""
    check_probability(probability, where)
    if 0 < probability < RAREST:
        raise HeadwayError(
            f"{where}: must be 0 or at least {RAREST:g}, got {probability:g}. For rarer bursts, set a longer interval."
        )


def _check_interval(interval: object, where: str) -> None:
    figures = durations.parse(interval, where)
    if (figures["dist"] == "constant" and not figures["value"]) or figures.get("max") == 0:
        raise HeadwayError(f"{where}: must be greater than zero, got {shown(interval)}.")


def _check_factor(factor: float, where: str) -> None:
    if not (isfinite(factor) and 0 < factor <= 1e6):
        raise HeadwayError(f"{where}: must be above 0 and at most 1000000, got {factor:g}.")


# --- the starts of sessions -------------------------------------------------------------------------------------------


def starts(base: Iterator[int], behaviour: Behaviour, burst_size: float, seed: int, where: str) -> Iterator[Start]:
    """Yield the start of each session in microseconds, and a `Mark`: how the session differs from an ordinary session.
    `base` yields the starts of ordinary sessions."""
    mark = _marker(behaviour, burst_size, seed)
    if isinstance(behaviour, Normal):
        return ((at, USUAL) for at in base)
    if isinstance(behaviour, Abusive) and not behaviour.rapid_fire:
        return ((at, mark(0)) for at in base)
    return _merge_starts(base, behaviour, mark, seed, where)


def _merge_starts(
    base: Iterator[int], behaviour: Behaviour, mark: Callable[[int], Mark], seed: int, where: str
) -> Iterator[Start]:
    """Yield the starts of all sessions in order of time: ordinary sessions, the rapid-fire sessions that follow each of
    them, and the sessions of bursts."""
    # Entries: (time, type, sequence number, number of sessions). The last number is the size of a burst, or the number
    # of rapid-fire sessions that are still to come.
    heap: list[tuple[int, int, int, int]] = []
    numbers = count()
    bursts = _bursts(behaviour, seed, where)
    volley, gap = 1, None
    if isinstance(behaviour, Abusive):
        volley = behaviour.rapid_fire.size
        gaps = durations.maker(behaviour.rapid_fire.gap, f"{where}.rapid_fire.gap")
        gap = gaps(stream(seed, "workload.behaviour.gap"))

    def push(what: int, at: int | None, size: int = 1) -> None:
        if at is not None:
            heappush(heap, (at, what, next(numbers), size))

    push(BASE, next(base, None))
    push(BURST, *next(bursts, (None, 1)))
    while heap:
        at, what, _, size = heappop(heap)
        if what == BURST:
            for _ in range(size):
                yield at, mark(size)
            push(BURST, *next(bursts, (None, 1)))
            continue
        yield at, mark(0)
        left = volley - 1 if what == BASE else size - 1
        if left:
            assert gap is not None
            push(FOLLOWER, at + gap(), left)
        if what == BASE:
            push(BASE, next(base, None))


def _bursts(behaviour: Behaviour, seed: int, where: str) -> Iterator[tuple[int, int]]:
    """Yield the time of each burst and the number of sessions in it."""
    if isinstance(behaviour, Adversarial):
        every = durations.parse(behaviour.interval, f"{where}.interval")["value"]
        yield from ((number * every, behaviour.size) for number in count(1))
    if not isinstance(behaviour, Bursty):
        return
    interval = durations.maker(behaviour.interval, f"{where}.interval")(stream(seed, "workload.behaviour.interval"))
    size = shapes.maker(behaviour.size, f"{where}.size")(stream(seed, "workload.behaviour.size"))
    uniform, at, probability = stream(seed, "workload.behaviour.burst").random, 0, behaviour.probability
    while probability:
        at += max(1, interval())
        if uniform() < probability:
            yield at, min(size(), MOST_AT_ONCE)


def _marker(behaviour: Behaviour, burst_size: float, seed: int) -> Callable[[int], Mark]:
    """Return a function that maps the size of a burst to the `Mark` of its sessions. Size 0 means no burst.

    In a burst of n sessions, the first prompt of each session is 1 + `burst_size` log2(n) times as long as usual.
    """
    if isinstance(behaviour, Abusive):
        return _abuser(behaviour, seed)
    factor, unique = (behaviour.factor, True) if isinstance(behaviour, Adversarial) else (1.0, False)

    def mark(size: int) -> Mark:
        if not size:
            return USUAL
        return Mark(factor * (1 + burst_size * log2(size)), 1.0, unique)

    return mark


def _abuser(behaviour: Abusive, seed: int) -> Callable[[int], Mark]:
    oversized, hogs = behaviour.oversized_prompts, behaviour.kv_exhaustion
    long_prompt = stream(seed, "workload.behaviour.oversized").random
    long_output = stream(seed, "workload.behaviour.kv_exhaustion").random

    def mark(size: int) -> Mark:
        large = bool(oversized) and long_prompt() < oversized.probability
        hogging = bool(hogs) and long_output() < hogs.probability
        if not large and not hogging:
            return USUAL
        return Mark(oversized.factor if large else 1.0, hogs.factor if hogging else 1.0, hogging)

    return mark


Start = tuple[int, Mark]  # start of a session in microseconds, and its mark
