"""The recorded run of an engine, and simulations of the same requests. Every fourth request is held out of the fit."""

from collections.abc import Callable, Sequence
from math import fsum, log
from pathlib import Path
from typing import Final

from headway.control.journal import Forced
from headway.errors import HeadwayError
from headway.experiment.request_ids import place_recorded
from headway.experiment.run import prepare, run_prepared
from headway.experiment.validate import Validation, compare_requests
from headway.results.recorded import Served, read_recorded, served_requests
from headway.results.result import Result
from headway.scenario.scenario import Scenario

HELD_OUT: Final = 4  # every HELD_OUT-th request is held out of the fit
FEWEST: Final = 40  # minimum number of requests for a fit
SIMULATION: Final = "held-out requests"
Pairs = list[tuple[Served, Served]]  # (simulated, recorded) pair of each request


class EngineRun:
    """The requests of a recorded run, and the number of simulations so far."""

    def __init__(self, path: str | Path, scenario: Scenario, progress: Callable[[int], None] | None) -> None:
        requests = read_recorded(path)
        is_folder = Path(path).is_dir()  # a folder is a recorded live run; replay only its completed requests
        self.requests = [each for each in requests if each.e2e_ps is not None] if is_folder else requests
        self.path, self.progress, self.scenario = path, progress, scenario.resolved()
        self.forced = placement(path, scenario)
        self.runs = 0

    def simulate(self, scenario: Scenario) -> list[Served]:
        """Simulate the recorded requests, each on its recorded instance."""
        ours = served_requests(run_prepared(prepare(scenario), forced=self.forced))
        if not self.runs:
            self.requests = [request for _, request in place_recorded(ours, self.requests, self.scenario)]
        self._check_same(ours)
        self.runs += 1
        if self.progress is not None:
            self.progress(self.runs)
        return ours

    def _check_same(self, ours: Sequence[Served]) -> None:
        real = self.requests
        if len(real) < FEWEST:
            raise HeadwayError(f"{self.path}: {len(real)} requests are too few; a fit needs at least {FEWEST}.")
        same = len(ours) == len(real) and all(
            mine.prompt_tokens == other.prompt_tokens and mine.output_tokens == other.output_tokens
            for mine, other in zip(ours, real, strict=True)
        )
        if not same:
            raise HeadwayError(
                f"{self.path}: the {len(real):,} recorded requests differ from the {len(ours):,} requests of the "
                "scenario in number, order of arrival or length. Replay the engine's workload as a trace."
            )

    def validate(self, ours: list[Served]) -> Validation:
        """Compare the simulated and the recorded latencies of the held-out requests."""
        mine, real = ours[HELD_OUT - 1 :: HELD_OUT], self.requests[HELD_OUT - 1 :: HELD_OUT]
        return compare_requests(mine, real, SIMULATION, str(self.path))

    def pairs(self, ours: list[Served]) -> Pairs:
        """Return the requests to fit to, which are all except the held-out requests."""
        both = enumerate(zip(ours, self.requests, strict=True))
        return [pair for place, pair in both if place % HELD_OUT != HELD_OUT - 1]


def placement(recorded: str | Path, scenario: Scenario) -> Forced:
    """Return the recorded instance of each request, so that routing does not affect the fit. The scenario must list its
    instances in the order of the recording. If the recording has no instances, return an empty mapping."""
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


def log_error(mine: Served, other: Served) -> float:
    """Return the sum of the absolute log errors of a request's TTFT and TPOT."""
    both = ((mine.ttft_ps, other.ttft_ps), (mine.tpot_ps, other.tpot_ps))
    return fsum(abs(log(ours / real)) for ours, real in both if ours and real)


def residuals(pairs: Pairs) -> tuple[list[float], list[float]]:
    """Return two lists: the log error of each request's TTFT and TPOT, and the log error of the mean TTFT and of the
    mean TPOT. A few long waits affect the means much more than the first list."""
    each: list[float] = []
    means: list[float] = []
    for name in ("ttft_ps", "tpot_ps"):
        both = [(getattr(mine, name), getattr(other, name)) for mine, other in pairs]
        known = [(ours, real) for ours, real in both if ours and real]
        each += [log(ours / real) for ours, real in known]
        if known:
            means.append(log(fsum(ours for ours, _ in known) / fsum(real for _, real in known)))
    return each, means
