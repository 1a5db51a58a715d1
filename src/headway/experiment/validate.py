"""`validate`: the errors of a simulated run's latencies relative to a recorded run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from msgspec import Struct

from headway.config.arguments import checked
from headway.display.displayed import Displayed, columns_of
from headway.errors import HeadwayError
from headway.experiment.request_ids import place_recorded
from headway.results.recorded import Served, read_recorded, served_requests
from headway.results.result import Result
from headway.results.statistics import Spread, spread_of
from headway.types import Json

# TTFT counts from the arrival, and `ttft_queued` from the time at which the engine queues the request. In a simulation,
# that is when the request reaches its instance.
QUEUED: Final = "ttft_queued"
KINDS: Final = ("ttft", QUEUED, "tpot", "e2e")
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99")
SIMULATED: Final = "simulated"
RECORDED: Final = "recorded"

Times = dict[str, list[float]]  # kind of latency -> values in picoseconds


class Validation(Displayed, Struct):
    """The errors of a run's latencies relative to a recording."""

    _view: ClassVar[str] = "headway.report.notebook:validation_view"

    run: str
    against: str
    requests: dict[str, tuple[int, int]]  # for each of the two runs: (answered requests, all requests)
    times: dict[str, Times]
    latency: dict[str, dict[str, Json]]
    notes: list[str]

    @property
    def worst(self) -> tuple[str, str, float] | None:
        """The latency and the statistic with the largest error, and this error. None if no error is known."""
        errors = [
            (kind, name, row["error"])
            for kind, rows in self.latency.items()
            for name, row in rows.items()
            if row["error"] is not None
        ]
        return max(errors, key=lambda error: abs(error[2]), default=None)

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each latency and statistic. `error` is a fraction of the recorded value."""
        return columns_of(
            {"latency": kind, "statistic": name, **row}
            for kind, rows in self.latency.items()
            for name, row in rows.items()
        )

    def summary(self) -> Json:
        counts = {side: {"answered": some, "requests": every} for side, (some, every) in self.requests.items()}
        return {
            "run": self.run,
            "against": self.against,
            "requests": counts,
            "latency": self.latency,
            "notes": self.notes,
        }


@checked
def validate(run: str | Path | Result, against: str | Path | Result) -> Validation:
    """Compare the latencies of a run (a folder or a result) with a recording: a CSV or JSONL file, or another run.
    Return the relative errors of the mean and the percentiles of TTFT, TPOT and E2E. The first `warmup` requests of
    both are skipped, where `warmup` is a key of the run's scenario. If the recording has times of arrival and of
    queueing, also compare the TTFT from queueing."""
    result = run if isinstance(run, Result) else Result.load(run)
    ours, warmup = served_requests(result), result.scenario["warmup"]
    theirs = served_requests(against) if isinstance(against, Result) else read_recorded(against)
    other = [request for place, request in place_recorded(ours, theirs, result.scenario) if place >= warmup]
    return compare_requests(ours[warmup:], other, _name(run), _name(against))


def compare_requests(ours: list[Served], theirs: list[Served], run: str, against: str) -> Validation:
    """Return the errors of the simulated latencies relative to the recorded ones."""
    sides = {SIMULATED: ours, RECORDED: theirs}
    times = {side: _times(requests) for side, requests in sides.items()}
    for side, latencies in times.items():
        if not latencies["e2e"]:
            raise HeadwayError(f"the {side} run has no answered request after the warm-up to compare.")
    latency = {}
    for kind in KINDS:
        if kind == QUEUED and not any(request.queued_ps for request in theirs):
            continue  # the recording has one time for both
        mine, other = (spread_of(times[side][kind]) for side in (SIMULATED, RECORDED))
        latency[kind] = {name: _error(mine, other, name) for name in STATISTICS}
    answered = {side: (len(times[side]["e2e"]), len(requests)) for side, requests in sides.items()}
    return Validation(run, against, answered, times, latency, _notes(sides, times))


def before_and_after(before: Validation, after: Validation) -> dict[str, list[Any]]:
    """Return the errors before and after a fit as one table."""
    sides = {"before": before.columns(), "after": after.columns()}
    names = {"fit": [side for side, table in sides.items() for _ in table["latency"]]}
    return names | {name: [each for table in sides.values() for each in table[name]] for name in before.columns()}


def _name(run: str | Path | Result) -> str:
    return str(run.scenario["name"]) if isinstance(run, Result) else str(run)


def _times(requests: Sequence[Served]) -> Times:
    times = {kind: [getattr(request, f"{kind}_ps") for request in requests] for kind in KINDS}
    return {kind: [value for value in values if value is not None] for kind, values in times.items()}


def _error(ours: Spread, theirs: Spread, name: str) -> Json:
    simulated, recorded = ours[name], theirs[name]
    error = simulated / recorded - 1 if simulated is not None and recorded else None
    return {"simulated_ms": simulated, "recorded_ms": recorded, "error": error}


def _notes(sides: dict[str, list[Served]], times: dict[str, Times]) -> list[str]:
    """Return the reasons why the two runs are not comparable."""
    ours, theirs = sides[SIMULATED], sides[RECORDED]
    notes = []
    if len(ours) != len(theirs):
        notes.append(f"The runs have different requests: {len(ours):,} simulated, {len(theirs):,} recorded.")
    else:
        for what in ("prompt_tokens", "output_tokens"):
            mine, other = (sum(getattr(request, what) for request in side) for side in (ours, theirs))
            if mine != other:
                words = what.replace("_", " ")
                notes.append(f"The runs have different requests: {mine:,} {words} simulated, {other:,} recorded.")
    for side, requests in sides.items():
        lost = len(requests) - len(times[side]["e2e"])
        if lost:
            notes.append(f"{lost:,} {side} requests got no answer. The comparison leaves them out.")
    return notes
