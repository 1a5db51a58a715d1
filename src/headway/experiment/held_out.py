"""A recorded run beside a simulated one, request by request: those that a fit sees, and every fourth, held out."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, log
from pathlib import Path
from typing import Final

from headway.control.journal import Forced
from headway.errors import HeadwayError
from headway.experiment.validate import Validation, compared
from headway.results.recorded import Served, read_recorded
from headway.results.result import Result
from headway.scenario.scenario import Scenario

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


def check(ours: Sequence[Served], real: Sequence[Served], path: str) -> None:
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
