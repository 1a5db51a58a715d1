"""A row of a trace as a turn: its time on the run's clock, its lengths and labels, what its client declares."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from fractions import Fraction
from typing import Final

from headway import hashing
from headway.errors import HeadwayError
from headway.types import Path, Request
from headway.workload.adapters import salted
from headway.workload.sessions import Numbered, Turn
from headway.workload.trace_spec import PLACE
from headway.workload.traces.record import Record
from headway.workload.traces.table import LAST_PS, NONE, Labels, too_late
from headway.workload.traffic import Planned

TENANT: Final = "default"
SLO_CLASS: Final = "standard"
KIND: Final = "completion"


def stamp(row: int, at_ps: int | None) -> int:
    if at_ps is None or at_ps == NONE:
        wrong = f"request {row} of the trace has no time of its own, only a delay"
        raise HeadwayError(f"{PLACE}.replay: {wrong}; say replay: think.")
    return at_ps


def planned(number: int, at_ps: int, turn: Turn, said: Labels | Record, name: str | None, place: int) -> Planned:
    request = Request(
        number,
        at_ps,
        turn.prompt_tokens,
        turn.path,
        turn.model,
        said.tenant or TENANT,
        said.slo_class or SLO_CLASS,
        name,
        place,
        turn.max_tokens,
        adapter=turn.adapter,
        shared_prefix_tokens=turn.shared_prefix_tokens,
        kind=turn.kind,
    )
    return Planned(request, turn.output_tokens, turn.output_key)


class Clock:
    """The trace's time as the run's: divided by the speed, rounded to the picosecond, up to an end."""

    __slots__ = ("_by", "_half", "_over", "stop_ps")

    def __init__(self, speed: float, stop_ps: int) -> None:
        exact = Fraction(str(speed))
        self._by, self._over, self._half = 2 * exact.denominator, 2 * exact.numerator, exact.numerator
        self.stop_ps = stop_ps

    def scaled(self, ps: int) -> int:
        return (ps * self._by + self._half) // self._over

    def over(self, at_ps: int, row: int, key: str = "speed") -> bool:
        """Whether arrivals end before this; an error where it is the clock that ends, which `key` would help."""
        if at_ps > LAST_PS and self.stop_ps > LAST_PS:
            raise HeadwayError(f"{PLACE}.{key}: request {row} would come {too_late(at_ps)}; raise it.")
        return at_ps >= self.stop_ps


class Limits:
    """What clients declare, drawn in the order of the trace whichever order it is asked for in."""

    __slots__ = ("_drawn", "_next")

    def __init__(self, draw: Callable[[], int]) -> None:
        self._next = draw
        self._drawn = array("q")

    def of(self, row: int) -> int:
        while len(self._drawn) <= row:
            self._drawn.append(self._next())
        return self._drawn[row]


class Maker:
    """Turns out of rows."""

    __slots__ = ("_limits", "_model")

    def __init__(self, model: str, limits: Limits | None) -> None:
        self._model = model
        self._limits = limits

    def turn(
        self, row: int, prompt_tokens: int, output_tokens: int, path: Path, said: Labels | Record, delay_ps: int = 0
    ) -> Turn:
        limit = said.max_tokens
        if self._limits is not None:
            limit = self._limits.of(row)
            output_tokens = min(output_tokens, limit)
        output_key, adapter = hashing.key(hashing.OUTPUT, row), said.adapter
        if adapter is not None:
            path, output_key = salted(path, output_key, adapter)
        return Turn(
            prompt_tokens,
            max(1, output_tokens),  # some traces have answers of nothing, but an engine makes one token at the least
            path,
            output_key,
            delay_ps,
            said.model or self._model,
            said.kind or KIND,
            limit,
            said.shared_prefix_tokens,
            adapter,
        )


class One:
    """A session of one request, whichever turn of another it may be."""

    __slots__ = ("_left", "_numbered", "name", "slo_class", "tenant")

    def __init__(self, name: str | None, tenant: str, slo_class: str, number: int, turn: Turn) -> None:
        self.name = name
        self.tenant = tenant
        self.slo_class = slo_class
        self._numbered = (number, turn)
        self._left = 1

    def begin(self) -> tuple[Numbered, ...]:
        self._left = 0
        return (self._numbered,)

    def ended(self, number: int) -> tuple[Numbered, ...]:
        return ()

    def left(self) -> int:
        return self._left
