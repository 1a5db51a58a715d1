"""Fits the durations of the latency model `linear` to the recorded run of an engine.

Use this fit for an engine whose steps were not measured, or whose GPU is unknown. A single run does not show well which
of the durations caused a latency. Therefore a penalty keeps each duration near its initial value, and a duration of
zero stays zero.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import exp, fsum, log, sqrt
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from msgspec import Struct
from msgspec.structs import replace

from headway.config.documents import write_text
from headway.config.units import fine_duration
from headway.display.displayed import Displayed
from headway.errors import HeadwayError
from headway.experiment.engine_run import EngineRun, residuals
from headway.experiment.validate import Validation, before_and_after
from headway.latency.fit import damped_step
from headway.results.recorded import Served
from headway.scenario.scenario import Scenario
from headway.types import Json

HOLD: Final = 3e-3  # weight of the penalty for changing a duration, relative to the weight of the errors
MEANS: Final = 0.5  # weight of the error of each mean; the errors of all requests together have weight 1
USUAL: Final = 0.1  # errors above this value count linearly; smaller errors count quadratically
CYCLES: Final = 6
ROUNDS: Final = 8
ENOUGH: Final = 1e-3  # the search stops if a cycle reduces the loss by less than this fraction
NUDGE: Final = 0.3  # change of a logarithm to measure a slope; large, because the errors change in jumps
FAR: Final = 1.0  # maximum change of a logarithm in one step
MOST_DAMPING: Final = 100.0
STEPS: Final = (0.5, 0.2, 0.07)
UNITS: Final = (("ms", 1e9), ("us", 1e6), ("ns", 1e3))
WHERE: Final = "cluster.latency"
FINE: Final = "prefill_pair"  # the only duration that may be less than a picosecond

Point = dict[str, float]  # key -> logarithm of its duration in picoseconds
Residuals = list[tuple[float, float]]  # (logarithmic error, weight) pairs


class LinearFit(Displayed, Struct):
    """A fit to a recorded run, and its errors on held-out requests."""

    _view: ClassVar[str] = "headway.report.notebook:fit_view"

    latency: Json  # the fitted section `cluster.latency` of a scenario
    document: str  # text of a scenario file with this section; comments list the fit's errors
    runs: int  # number of simulated runs
    before: Validation  # errors on the held-out requests with the scenario's durations
    after: Validation

    def columns(self) -> dict[str, list[Any]]:
        """Return the errors before and after the fit: a row for each latency and statistic."""
        return before_and_after(self.before, self.after)

    def summary(self) -> Json:
        return {
            "latency": self.latency,
            "runs": self.runs,
            "held_out": {"before": self.before.summary()["latency"], "after": self.after.summary()["latency"]},
        }


def fit_linear(
    recorded: str | Path,
    loaded: Scenario,
    output: str | Path | None = None,
    as_of: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> LinearFit:
    """Fit the durations of a scenario that replays the engine's requests, starting from the scenario's durations."""
    if loaded.cluster.deployments is not None or loaded.cluster.disaggregated():
        raise HeadwayError(f"{WHERE}: a fit needs one kind of instance. Remove the deployments.")
    engine = EngineRun(recorded, loaded, progress)
    durations = {key: value for key, value in loaded.resolved()["cluster"]["latency"].items() if key != "model"}
    sizes = {key: float(fine_duration(value, f"{WHERE}.{key}")) for key, value in durations.items()}
    origin = {key: log(size) for key, size in sizes.items() if size}

    def section(at: Point) -> Json:
        return {
            "model": "linear",
            **{key: _duration_text(at[key], key) if key in at else value for key, value in durations.items()},
        }

    def run(at: Point) -> list[Served]:
        return engine.simulate(replace(loaded, cluster=replace(loaded.cluster, latency=section(at))))

    def weigh(at: Point) -> Residuals:
        each, means = residuals(engine.pairs(run(at)))
        return [*((error, 1.0 / len(each)) for error in each), *((error, MEANS) for error in means)]

    at = Search(weigh, origin).run()
    before, after = (engine.validate(run(point)) for point in (origin, at))
    text = _document(section(at), after, Path(recorded).name, as_of)
    if output is not None:
        write_text(output, text)
    return LinearFit(section(at), text, engine.runs, before, after)


class Search:
    """Alternates between gradient steps and a direct search in decreasing steps. Waiting times change in jumps, so
    gradients alone would stop too early."""

    def __init__(self, residuals: Callable[[Point], Residuals], origin: Point) -> None:
        self.residuals, self.origin, self.keys = residuals, origin, list(origin)
        self.at = origin
        self.errors = residuals(origin)
        self.best = self._loss(self.errors, origin)

    def run(self) -> Point:
        for _ in range(CYCLES):
            before = self.best
            self._follow()
            for step in STEPS:
                self._try(step)
            if before - self.best < ENOUGH * before:
                break
        return self.at

    def _loss(self, errors: Residuals, at: Point) -> float:
        held = HOLD * fsum((at[key] - self.origin[key]) ** 2 for key in self.keys)
        return held + fsum(weight * (sqrt(1.0 + (error / USUAL) ** 2) - 1.0) for error, weight in errors)

    def _move(self, to: Point) -> bool:
        """Move to a point if its loss is lower, and return whether it moved."""
        errors = self.residuals(to)
        value = self._loss(errors, to)
        if value >= self.best:
            return False
        self.at, self.errors, self.best = to, errors, value
        return True

    def _follow(self) -> None:
        damping = 1e-2
        for _ in range(ROUNDS):
            before = self.best
            slopes = [self._slope(key) for key in self.keys]
            while damping < MOST_DAMPING and not self._move(self._step(slopes, damping)):
                damping *= 5
            damping = max(damping / 10, 1e-3)
            if before - self.best < ENOUGH * before:
                return

    def _slope(self, key: str) -> list[float]:
        moved = self.residuals(self.at | {key: self.at[key] + NUDGE})
        return [(new - old) / NUDGE for (new, _), (old, _) in zip(moved, self.errors, strict=True)]

    def _step(self, slopes: list[list[float]], damping: float) -> Point:
        """Return the point after one damped, weighted least-squares step. A point has the logarithm of each duration;
        the step changes each logarithm by at most `FAR`."""
        weights = [weight / (USUAL**2 * sqrt(1.0 + (error / USUAL) ** 2)) for error, weight in self.errors]
        moved = [self.at[key] - self.origin[key] for key in self.keys]
        moves = damped_step(slopes, [error for error, _ in self.errors], weights, moved, HOLD, damping).tolist()
        return {key: self.at[key] + min(max(move, -FAR), FAR) for key, move in zip(self.keys, moves, strict=True)}

    def _try(self, step: float) -> None:
        """Try to change all durations together, each alone, and each pair in opposite directions. Keep each change that
        lowers the loss."""
        ways = [dict.fromkeys(self.keys, step), *({key: step} for key in self.keys)]
        ways += [{key: step, other: -step} for key, other in combinations(self.keys, 2)]
        for way in ways:
            for sign in (1, -1):
                while self._move(self.at | {key: self.at[key] + sign * far for key, far in way.items()}):
                    pass


def _duration_text(value: float, key: str) -> str:
    """Return a duration with four significant digits."""
    ps = exp(value)
    for unit, size in UNITS:
        if ps >= size:
            return f"{float(f'{ps / size:.4g}'):.10g}{unit}"
    return f"{ps:.4g}ps" if key == FINE else f"{max(1, round(ps))}ps"


def _document(latency: Json, errors: Validation, name: str, as_of: str | None) -> str:
    lines = [f"# Fitted to the recorded run of an engine ({name})" + (f", as of {as_of}." if as_of else ".")]
    for kind, rows in errors.latency.items():
        known = [f"{name} {100 * row['error']:+.1f} %" for name, row in rows.items() if row["error"] is not None]
        lines.append(f"# {kind.upper()} of held-out requests: {', '.join(known)}")
    return "\n".join(lines) + "\n" + yaml.safe_dump({"cluster": {"latency": latency}}, sort_keys=False)
