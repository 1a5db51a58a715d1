"""Windows of a trace: the replicates of a check whose requests are the same under every seed.

A window is a part of the trace with consecutive requests, or with all turns of consecutive sessions. Each window is
simulated by itself, from an empty cluster. The first windows that run lie far apart, so that an early verdict is not
one about the morning.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve.suite import is_fixed
from headway.regression.sequential import FIRST
from headway.types import Json
from headway.workload.replay import open_replayed
from headway.workload.trace_spec import parse

LEAST: Final = 200  # requests of a window; fewer have no useful p99
SLICE: Final = "slice"


class Windows(Struct, frozen=True):
    """The windows of a trace in the order in which they run: [first request, request after the last)."""

    bounds: Sequence[tuple[int, int]]
    whole_sessions: bool

    def __len__(self) -> int:
        return len(self.bounds)

    def scenario(self, resolved: Json, number: int) -> Json:
        """Return a scenario with the n-th window of its trace."""
        cut: Json = {"requests": list(self.bounds[number])}
        if self.whole_sessions:
            cut["whole_sessions"] = True
        workload = resolved["workload"]
        trace = workload["trace"]
        steps = [*(trace.get("transforms") or []), {SLICE: cut}]
        return {**resolved, "workload": {**workload, "trace": {**trace, "transforms": steps}}}


def windows_of(name: str, resolved: Json, most: int) -> Windows | None:
    """Return at most `most` windows of a scenario's trace; None if each seed draws other requests."""
    if not is_fixed(resolved["workload"]):
        return None
    reader = open_replayed(parse(resolved["workload"]["trace"]), resolved["seed"]["workload"])
    count = sum(1 for _ in reader.records)
    many = min(most, count // LEAST)
    if many < FIRST:
        need = FIRST * LEAST
        raise HeadwayError(
            f"{name}: the trace has {count:,} requests; {FIRST} windows of {LEAST} need {need}. Use a longer trace."
        )
    edges = [count * place // many for place in range(many + 1)]
    bounds = list(pairwise(edges))
    return Windows([bounds[place] for place in spread_out(many)], reader.info.sessions)


def spread_out(count: int) -> list[int]:
    """Return the numbers below `count` in an order in which each beginning is spread over all of them."""
    bits = max(1, (count - 1).bit_length())
    return sorted(range(count), key=lambda number: int(f"{number:0{bits}b}"[::-1], 2))
