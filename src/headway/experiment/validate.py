"""`validate`: how far the latencies of a simulated run are from those of a recorded one."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log
from pathlib import Path
from typing import Final

from msgspec import Struct

from headway.control.journal import Forced
from headway.errors import HeadwayError
from headway.results.recorded import Served, read_recorded, served_requests
from headway.results.result import Result
from headway.results.statistics import Spread, spread_of
from headway.scenario.scenario import Scenario
from headway.types import Json

KINDS: Final = ("ttft", "tpot", "e2e")
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
SIMULATED: Final = "simulated"
RECORDED: Final = "recorded"

Times = dict[str, list[float]]  # picoseconds, by kind


class Validation(Struct):
    run: str
    against: str
    requests: dict[str, tuple[int, int]]  # of either side: answered, and in all
    times: dict[str, Times]
    latency: dict[str, dict[str, Json]]
    notes: list[str]

    @property
    def worst(self) -> tuple[str, str, float] | None:
        """The kind and statistic that is furthest off, and by how much."""
        errors = [
            (kind, name, one["error"])
            for kind, rows in self.latency.items()
            for name, one in rows.items()
            if one["error"] is not None
        ]
        return max(errors, key=lambda one: abs(one[2]), default=None)

    def summary(self) -> Json:
        counts = {side: {"answered": some, "requests": every} for side, (some, every) in self.requests.items()}
        return {
            "run": self.run,
            "against": self.against,
            "requests": counts,
            "latency": self.latency,
            "notes": self.notes,
        }


def validate(run: str | Path | Result, against: str | Path | Result) -> Validation:
    """The error of a run (a folder or a result) at mean and percentiles of TTFT, TPOT and E2E, relative to what was
    recorded: a CSV or JSONL file, or another run. Requests of the run's warm-up are left out of both."""
    result = run if isinstance(run, Result) else Result.load(run)
    other = served_requests(against) if isinstance(against, Result) else read_recorded(against)
    warmup = result.scenario["warmup"]
    return compared(served_requests(result)[warmup:], other[warmup:], _name(run), _name(against))


def compared(ours: list[Served], theirs: list[Served], run: str, against: str) -> Validation:
    """The same of two lists of requests."""
    sides = {SIMULATED: ours, RECORDED: theirs}
    times = {side: _times(requests) for side, requests in sides.items()}
    for side, found in times.items():
        if not found["e2e"]:
            raise HeadwayError(f"the {side} run has no answered request to compare, past the warm-up of the run.")
    latency = {}
    for kind in KINDS:
        mine, other = (spread_of(times[side][kind]) for side in (SIMULATED, RECORDED))
        latency[kind] = {name: _error(mine, other, name) for name in STATISTICS}
    answered = {side: (len(times[side]["e2e"]), len(requests)) for side, requests in sides.items()}
    return Validation(run, against, answered, times, latency, _notes(sides, times))


def _name(given: str | Path | Result) -> str:
    return str(given.scenario["name"]) if isinstance(given, Result) else str(given)


def _times(requests: Sequence[Served]) -> Times:
    return {kind: [value for one in requests if (value := getattr(one, f"{kind}_ps")) is not None] for kind in KINDS}


def _error(ours: Spread, theirs: Spread, name: str) -> Json:
    simulated, recorded = ours[name], theirs[name]
    error = simulated / recorded - 1 if simulated is not None and recorded else None
    return {"simulated_ms": simulated, "recorded_ms": recorded, "error": error}


def _notes(sides: dict[str, list[Served]], times: dict[str, Times]) -> list[str]:
    """What makes the two runs no like with like."""
    ours, theirs = sides[SIMULATED], sides[RECORDED]
    found = []
    if len(ours) != len(theirs):
        found.append(f"The runs are not of the same requests: {len(ours):,} simulated, {len(theirs):,} recorded.")
    else:
        for what in ("prompt_tokens", "output_tokens"):
            mine, other = (sum(getattr(one, what) for one in side) for side in (ours, theirs))
            if mine != other:
                words = what.replace("_", " ")
                found.append(f"The runs are not of the same requests: {mine:,} {words} simulated, {other:,} recorded.")
    for side, requests in sides.items():
        lost = len(requests) - len(times[side]["e2e"])
        if lost:
            found.append(f"{lost:,} {side} requests got no answer; they are left out.")
    return found


# A recorded run beside a simulated one, request by request: those that a fit sees, and every fourth, held out.

HELD_OUT: Final = 4  # every so-manyth request is held out
FEWEST: Final = 40  # requests
SIMULATION: Final = "held-out requests"


def answered(recorded: str | Path) -> list[Served]:
    """What was recorded. Of live traffic those that were completed: the others are not replayed either."""
    found = read_recorded(recorded)
    return [one for one in found if one.e2e_ps is not None] if Path(recorded).is_dir() else found


def placement(recorded: str | Path, scenario: Scenario) -> Forced:
    """Where each request went, as far as a run folder tells; so that a fit is of the engines, and not of the routing.
    Instances are the scenario's in the same order."""
    if not Path(recorded).is_dir():
        return {}
    result = Result.load(recorded)
    names, columns = scenario.cluster.instance_ids(), result.requests.column
    places = [
        place
        for place, outcome in zip(columns("instance"), columns("outcome"), strict=True)
        if outcome == "completed" and place is not None
    ]
    if not places or max(places) >= len(names) or min(places) < 0:
        return {}
    return {number: (names[place], None) for number, place in enumerate(places)}


def check_same(ours: Sequence[Served], real: Sequence[Served], path: str) -> None:
    """Raise where the two are not of the same requests, or of too few."""
    if len(real) < FEWEST:
        raise HeadwayError(f"{path}: {len(real)} requests are too few to fit to; it takes at least {FEWEST}.")
    same = len(ours) == len(real) and all(
        mine.prompt_tokens == other.prompt_tokens and mine.output_tokens == other.output_tokens
        for mine, other in zip(ours, real, strict=True)
    )
    if not same:
        raise HeadwayError(
            f"{path}: its {len(real):,} requests are not the {len(ours):,} of the scenario, in order of arrival and "
            "with the same lengths; replay the engine's workload as a trace."
        )


def errors(ours: Sequence[Served], real: Sequence[Served], path: str | Path) -> Validation:
    """Of those that were held out."""
    places = [place for place in range(len(real)) if place % HELD_OUT == HELD_OUT - 1]
    return compared([ours[place] for place in places], [real[place] for place in places], SIMULATION, str(path))


def seen(ours: Sequence[Served], real: Sequence[Served]) -> list[tuple[Served, Served]]:
    """Pairs of requests that are not held out."""
    pairs = enumerate(zip(ours, real, strict=True))
    return [pair for place, pair in pairs if place % HELD_OUT != HELD_OUT - 1]


def apart(mine: Served, other: Served) -> float:
    """How far off a request's TTFT and TPOT are, as logarithms."""
    pairs = ((mine.ttft_ps, other.ttft_ps), (mine.tpot_ps, other.tpot_ps))
    return fsum(abs(log(one / two)) for one, two in pairs if one and two)


def residuals(pairs: Sequence[tuple[Served, Served]]) -> tuple[list[float], list[float]]:
    """The logarithms by which TTFT and TPOT are off: request by request, and of their means, since the typical request
    says nothing of what only some wait for."""
    each: list[float] = []
    means: list[float] = []
    for name in ("ttft_ps", "tpot_ps"):
        both = [(getattr(mine, name), getattr(other, name)) for mine, other in pairs]
        told = [(one, two) for one, two in both if one and two]
        each += [log(one / two) for one, two in told]
        if told:
            means.append(log(fsum(one for one, _ in told) / fsum(two for _, two in told)))
    return each, means
