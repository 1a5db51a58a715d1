"""The durations of the latency model `linear`, fitted to the recorded run of an engine.

For engines of which no steps were measured and no card is known. One run cannot tell all durations apart, so each is
held near where it was, and one that is nothing stays so.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import exp, fsum, log, sqrt
from pathlib import Path
from typing import Final

import yaml
from msgspec import Struct
from msgspec.structs import replace

from headway.config.units import fine_duration
from headway.errors import HeadwayError
from headway.experiment.calibrate import write
from headway.experiment.engine_run import EngineRun, residuals
from headway.experiment.validate import Validation
from headway.latency.fit import damped_step
from headway.results.recorded import Served
from headway.scenario.scenario import Scenario
from headway.types import Json

HOLD: Final = 3e-3  # of each logarithm, beside the errors
MEANS: Final = 0.5  # what the error of a mean counts, beside that of all requests together
USUAL: Final = 0.1  # an error, beyond which it counts as it is, and no longer squared
CYCLES: Final = 6
ROUNDS: Final = 8
ENOUGH: Final = 1e-3  # of the loss, that a round must gain
NUDGE: Final = 0.3  # of a logarithm, to find a slope across the leaps
FAR: Final = 1.0  # that one goes at once
MOST_DAMPING: Final = 100.0
STEPS: Final = (0.5, 0.2, 0.07)
UNITS: Final = (("ms", 1e9), ("us", 1e6), ("ns", 1e3))
WHERE: Final = "cluster.latency"
FINE: Final = "prefill_pair"  # which alone may be part of a picosecond

Point = dict[str, float]  # logarithms of picoseconds, by key
Residuals = list[tuple[float, float]]  # logarithms, and what each counts


class LinearFit(Struct):
    latency: Json  # a scenario's section
    document: str  # the same as a file, with what is known of it
    runs: int  # that were simulated
    before: Validation  # of the requests that were held out, with what the scenario had
    after: Validation

    def summary(self) -> Json:
        return {
            "latency": self.latency,
            "runs": self.runs,
            "held_out": {"before": self.before.summary()["latency"], "after": self.after.summary()["latency"]},
        }


def fit(
    recorded: str | Path,
    loaded: Scenario,
    output: str | Path | None = None,
    as_of: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> LinearFit:
    """The scenario simulates what the engine served, and its durations are where the search starts."""
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
        write(Path(output), text)
    return LinearFit(section(at), text, engine.runs, before, after)


class Search:
    """Follows the slopes until they lead no further, then tries each way in ever smaller steps, and so on: what a
    request waits for changes by leaps, so that slopes alone would end too early."""

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
        """Go there if that is better, and say whether it is."""
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
        """Where a weighted least-squares fit of the slopes would have it, at most so far away."""
        weights = [weight / (USUAL**2 * sqrt(1.0 + (error / USUAL) ** 2)) for error, weight in self.errors]
        moved = [self.at[key] - self.origin[key] for key in self.keys]
        moves = damped_step(slopes, [error for error, _ in self.errors], weights, moved, HOLD, damping).tolist()
        return {key: self.at[key] + min(max(move, -FAR), FAR) for key, move in zip(self.keys, moves, strict=True)}

    def _try(self, step: float) -> None:
        """All together, each for itself, and one more where another is less."""
        ways = [dict.fromkeys(self.keys, step), *({key: step} for key in self.keys)]
        ways += [{key: step, other: -step} for key, other in combinations(self.keys, 2)]
        for way in ways:
            for sign in (1, -1):
                while self._move(self.at | {key: self.at[key] + sign * far for key, far in way.items()}):
                    pass


def _duration_text(value: float, key: str) -> str:
    """A duration of four digits."""
    ps = exp(value)
    for unit, size in UNITS:
        if ps >= size:
            return f"{float(f'{ps / size:.4g}'):.10g}{unit}"
    return f"{ps:.4g}ps" if key == FINE else f"{max(1, round(ps))}ps"


def _document(latency: Json, errors: Validation, name: str, as_of: str | None) -> str:
    lines = [f"# Fitted to the recorded run of an engine ({name})" + (f", as of {as_of}." if as_of else ".")]
    for kind, rows in errors.latency.items():
        known = [f"{name} {100 * row['error']:+.1f} %" for name, row in rows.items() if row["error"] is not None]
        lines.append(f"# {kind.upper()} of requests that were held out: {', '.join(known)}")
    return "\n".join(lines) + "\n" + yaml.safe_dump({"cluster": {"latency": latency}}, sort_keys=False)


def check(loaded: Scenario) -> None:
    """Raise where there is not one kind of instance that the model describes."""
    if loaded.cluster.deployments is not None or loaded.cluster.disaggregated():
        raise HeadwayError(f"{WHERE}: is fitted for one kind of instance; leave deployments out.")
