"""Fits a profile to the recorded run of an engine: the host time, and one factor for all GPU times.

A single run does not show well how much of a latency is host time and how much is GPU time. Therefore a penalty keeps
both parameters near their initial values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from math import exp, fsum, log
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config.arguments import checked
from headway.config.documents import write_text
from headway.config.units import duration_ps
from headway.display.displayed import Displayed
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError
from headway.experiment.calibrate import NOT_TOLD, check
from headway.experiment.engine_run import EngineRun, log_error
from headway.experiment.linear_fit import LinearFit, fit_linear
from headway.experiment.validate import Validation, before_and_after
from headway.latency.gpus import Gpu, read_gpu
from headway.latency.profiles import Profile, read_profile
from headway.latency.step_cost import Constants
from headway.results.recorded import Served
from headway.scenario.scenario import Scenario, Source
from headway.types import Json

HOLD: Final = 1e-3  # weight of the penalty for leaving the start point, relative to the weight of the errors
# Step sizes of the search: changes of the logarithm of the host time, and of the logarithm of the factor.
# The first HOST_ALONE entries change only the host time.
STEPS: Final = ((0.7, 0.0), (0.2, 0.0), (0.05, 0.0), (0.3, 0.1), (0.1, 0.03), (0.03, 0.01), (0.01, 0.003))
HOST_ALONE: Final = 3
LEAST_HOST_PS: Final = 10**7

Point = tuple[float, float]  # logarithm of the host time in picoseconds, and logarithm of the factor


class EngineFit(Displayed, Struct):
    """A fit to a recorded run, and its errors on held-out requests."""

    _view: ClassVar[str] = "headway.report.notebook:fit_view"

    profile: str  # text of the profile's file
    host_ms: float
    scale: float
    runs: int  # number of simulated runs
    before: Validation  # errors on the held-out requests with the scenario's profile
    after: Validation

    def columns(self) -> dict[str, list[Any]]:
        """Return the errors before and after the fit: a row for each latency and statistic."""
        return before_and_after(self.before, self.after)

    def summary(self) -> Json:
        return {
            "host_ms": self.host_ms,
            "scale": self.scale,
            "runs": self.runs,
            "held_out": {"before": self.before.summary()["latency"], "after": self.after.summary()["latency"]},
        }


@checked
def calibrate_run(
    recorded: str | Path,
    scenario: Source,
    output: str | Path | None = None,
    as_of: str | None = None,
    progress: Callable[[int], None] | bool = True,
) -> EngineFit | LinearFit:
    """Fit the profile of a scenario to the recorded run of an engine. The scenario replays the engine's requests. If
    the scenario's latency model is `linear`, fit the durations of that model instead."""
    if output is not None:
        check(Path(output))
    loaded = Scenario.load(scenario)
    linear = loaded.cluster.latency_section().get("model") == "linear"
    fit: Callable[..., EngineFit | LinearFit] = fit_linear if linear else fit_profile
    with watch(progress, lambda: Bar(None, "runs")) as report:
        return fit(recorded, loaded, output, as_of, report)


def fit_profile(
    recorded: str | Path,
    loaded: Scenario,
    output: str | Path | None = None,
    as_of: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> EngineFit:
    """Fit the profile of a scenario: its host time, and a common factor for all its GPU times."""
    engine = EngineRun(recorded, loaded, progress)
    profile, gpu = _profile(loaded)
    least = log(max(_nearness(profile.constants, gpu), 1e-3))
    origin = (log(max(profile.host_ps, LEAST_HOST_PS)), 0.0)

    def run(at: Point) -> list[Served]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trial.yaml"
            file.write_text(_document(profile, at, None, "", NOT_TOLD), encoding="utf-8")
            data = loaded.resolved()
            data["cluster"]["latency"] = {"model": "hardware", "profile": str(file)}
            return engine.simulate(Scenario.load(data))

    def loss(ours: list[Served], at: Point) -> float:
        held = HOLD * (abs(at[0] - origin[0]) + abs(at[1] - origin[1]))
        return held + fsum(log_error(mine, other) for mine, other in engine.pairs(ours)) / len(engine.requests)

    first = run(origin)
    at = _search(lambda at: loss(run(at), at), loss(first, origin), origin, least)
    before, after = engine.validate(first), engine.validate(run(at))
    longest = max(request.prompt_tokens + request.output_tokens for request in engine.requests)
    model = loaded.cluster.shape().name
    text = _document(profile, at, after, Path(recorded).name, as_of or NOT_TOLD, longest, (model,))
    if output is not None:
        write_text(output, text)
    return EngineFit(text, exp(at[0]) / 1e9, exp(at[1]), engine.runs, before, after)


def _profile(loaded: Scenario) -> tuple[Profile, Gpu]:
    cluster = loaded.resolved()["cluster"]
    latency = cluster.get("latency", {})
    if latency.get("model") != "hardware":
        raise HeadwayError(
            "cluster.latency: a fit needs one kind of instance, with {model: hardware} or {model: linear}."
        )
    gpu = read_gpu(cluster["gpu"], "cluster.gpu")
    named = latency.get("profile", "auto")
    profile = read_profile(gpu.name if named == "auto" else named, gpu, "cluster.latency.profile")
    host = latency.get("host", "auto")
    return (profile if host == "auto" else replace(profile, host_ps=duration_ps(host, "cluster.latency.host"))), gpu


def _nearness(constants: Constants, gpu: Gpu) -> float:
    """Return the highest fraction of a GPU limit (memory bandwidth or FLOPS) that the profile reaches. The factor on
    GPU times must not be smaller than this fraction, because the profile would then exceed the limit."""
    memory = max(constants.weights_tb_s, constants.kv_tb_s, constants.elementwise_tb_s) * 1e12 / gpu.bandwidth
    return max(memory, max(constants.matmul_tflops, constants.prefill_tflops) * 1e12 / float(gpu.flops))


def _search(loss: Callable[[Point], float], best: float, at: Point, least: float) -> Point:
    """Search in decreasing steps for the point with the lowest loss. Gradients would not help, because waiting times
    change in jumps."""
    for turns, (far, wide) in enumerate(STEPS):
        ways = [(far, 0.0), (-far, 0.0)]
        if turns >= HOST_ALONE:
            ways += [(0.0, wide), (0.0, -wide), (far, -wide), (-far, wide)]
        better = True
        while better:
            better = False
            for host, scale in ways:
                candidate = (at[0] + host, max(at[1] + scale, least))
                value = loss(candidate)
                if value < best:
                    at, best, better = candidate, value, True
                    break
    return at


def _document(
    profile: Profile,
    at: Point,
    errors: Validation | None,
    name: str,
    as_of: str,
    longest: int = 1,
    models: tuple[str, ...] = (),
) -> str:
    """Return the content of the fitted profile's file. If the initial profile was not calibrated, the file says that
    the fitted profile is valid for 1 to `longest` tokens."""
    scale = exp(at[1])
    constants = {}
    for key, value in asdict(profile.constants).items():
        rate = key.endswith(("_tb_s", "_tflops"))
        constants[key] = value / scale if rate else value * scale if key.endswith("_us") else value
    error = dict(profile.error)
    if errors is not None:
        for kind, rows in errors.latency.items():
            worst = max((abs(row["error"]) for row in rows.values() if row["error"] is not None), default=0.0)
            error[f"{kind.upper()}, requests held out"] = f"within {100 * worst:.1f} % at mean, p50, p90, p95 and p99"
    content: dict[str, Any] = {
        "format": 1,
        "gpu": profile.gpu,
        "as_of": as_of,
        "source": f"{profile.source}; matched with the run of an engine ({name}): all times of the GPU × {scale:.4g}",
        "measured": profile.measured.strip()
        if profile.calibrated
        else "one run of an engine, no steps of the GPU alone",
        "error": error,
        "tokens": list(profile.tokens if profile.calibrated else (1, longest)),
        "context": list(profile.context if profile.calibrated else (1, longest)),
        "shapes": list(profile.shapes if profile.calibrated else models),
        "host": f"{exp(at[0]) / 1e6:.4g}us",
        "constants": constants,
    }
    return yaml.safe_dump(content, sort_keys=False, width=120)
