"""Fits a profile to the recorded run of an engine: the host time, and one factor.

On one GPU, the factor multiplies all GPU times. If the run's instances have several GPUs, the factor multiplies only
the times of all-reduces, and the constants of the GPU stay as they are. So the profile remains valid for one GPU.

A single run does not show well how much of a latency is host time and how much is GPU time. Therefore a penalty keeps
both parameters near their initial values.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from math import exp, fsum, log
from pathlib import Path
from typing import Any, ClassVar, Final

import yaml
from msgspec import Struct
from msgspec.structs import asdict, replace

from headway.config.arguments import checked
from headway.config.documents import write_text
from headway.display.displayed import Displayed
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError
from headway.experiment.calibrate import NOT_TOLD, check
from headway.experiment.engine_run import EngineRun, log_error
from headway.experiment.linear_fit import LinearFit, fit_linear
from headway.experiment.validate import Validation, before_and_after
from headway.latency.gpus import Gpu
from headway.latency.hardware_times import Hardware
from headway.latency.profiles import HOST, Profile, read_profile
from headway.latency.step_cost import Constants
from headway.results.recorded import Served
from headway.scenario.scenario import Scenario, Source
from headway.types import Json

HOLD: Final = 1e-3  # weight of the penalty for leaving the start point, relative to the weight of the errors
# Step sizes of the search: changes of the logarithm of the host time, and of the logarithm of the factor.
# Entries with zero change only the host time. All-reduces are a small part of a step, so they need large steps.
STEPS: Final = ((0.7, 0.0), (0.2, 0.0), (0.05, 0.0), (0.3, 0.1), (0.1, 0.03), (0.03, 0.01), (0.01, 0.003))
REDUCE_STEPS: Final = ((0.7, 0.7), (0.3, 0.4), (0.1, 0.2), (0.05, 0.1), (0.02, 0.04), (0.01, 0.02))
SPEC_SHEET: Final = "from a spec sheet; the run shows only one factor"
LEAST_HOST_PS: Final = 10**7
ENGINE_KEYS: Final = ("engine", "default_engine", "host", "host_sequence")
LEAST_REDUCE: Final = 0.1  # minimum factor on the times of all-reduces

Point = tuple[float, float]  # logarithm of the host time in picoseconds, and logarithm of the factor


class EngineFit(Displayed, Struct):
    """A fit to a recorded run, and its errors on held-out requests."""

    _view: ClassVar[str] = "headway.report.notebook:fit_view"

    profile: str  # text of the profile's file
    host_ms: float
    scale: float  # factor on all GPU times
    runs: int  # number of simulated runs
    before: Validation  # errors on the held-out requests with the scenario's profile
    after: Validation
    all_reduce_times: float | None = None  # factor on the link's times of all-reduces; None for a run on single GPUs

    def columns(self) -> dict[str, list[Any]]:
        """Return the errors before and after the fit: a row for each latency and statistic."""
        return before_and_after(self.before, self.after)

    def summary(self) -> Json:
        return {
            "host_ms": self.host_ms,
            "scale": self.scale,
            "all_reduce_times": self.all_reduce_times,
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
    """Fit the profile of a scenario: its host time, and a factor for its all-reduces or for all its GPU times."""
    engine = EngineRun(recorded, loaded, progress)
    profile, gpu = _profile(loaded)
    split = loaded.cluster.tp > 1
    least = log(LEAST_REDUCE if split else max(_nearness(profile.constants, gpu), 1e-3))
    origin = (log(max(profile.host_ps, LEAST_HOST_PS)), 0.0)

    def run(at: Point) -> list[Served]:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trial.yaml"
            file.write_text(_document(_fitted(profile, at, split), "", "", profile.error), encoding="utf-8")
            data = loaded.resolved()
            latency = data["cluster"]["latency"]
            # The profile has the times of the engine.
            kept = {key: value for key, value in latency.items() if key not in ENGINE_KEYS}
            data["cluster"]["latency"] = kept | {"profile": str(file)}
            return engine.simulate(Scenario.load(data))

    def loss(ours: list[Served], at: Point) -> float:
        held = HOLD * (abs(at[0] - origin[0]) + abs(at[1] - origin[1]))
        return held + fsum(log_error(mine, other) for mine, other in engine.pairs(ours)) / len(engine.requests)

    first = run(origin)
    at = _search(lambda at: loss(run(at), at), loss(first, origin), origin, least, REDUCE_STEPS if split else STEPS)
    before, after = engine.validate(first), engine.validate(run(at))
    fitted = _fitted(profile, at, split)
    if not profile.calibrated:
        longest = max(request.prompt_tokens + request.output_tokens for request in engine.requests)
        fitted = replace(fitted, tokens=(1, longest), context=(1, longest), shapes=(loaded.cluster.shape().name,))
        assumed = dict.fromkeys(asdict(profile.constants), SPEC_SHEET)
        fitted = replace(fitted, measured="one run of an engine, no steps of the GPU alone", assumed=assumed)
    what = f"all-reduces between {loaded.cluster.tp} GPUs" if split else "all times of the GPU"
    source = f"{profile.source}; matched with the run of an engine ({Path(recorded).name}): {what} × {exp(at[1]):.4g}"
    text = _document(fitted, source, as_of or NOT_TOLD, profile.error | _errors(after))
    if output is not None:
        write_text(output, text)
    times = fitted.all_reduce_times if split else None
    return EngineFit(text, exp(at[0]) / 1e9, 1.0 if split else exp(at[1]), engine.runs, before, after, times)


def _profile(loaded: Scenario) -> tuple[Profile, Gpu]:
    """Return the profile of a scenario, with the host times of the scenario, and the GPU."""
    cluster = loaded.resolved()["cluster"]
    latency = cluster.get("latency", {})
    if latency.get("model") != "hardware":
        raise HeadwayError(
            "cluster.latency: a fit needs one kind of instance, with {model: hardware} or {model: linear}."
        )
    if loaded.cluster.schedules_ahead():
        raise HeadwayError(
            "cluster.async_scheduling: a run of an engine does not show what it hides, so its host time cannot be "
            "fitted. Set 'async_scheduling: false', or use {model: linear}."
        )
    model = loaded.cluster.latency_model()
    assert isinstance(model, Hardware)
    step, sequence = model.host
    gpu, name = loaded.cluster.card(), latency["profile"]
    # Without the kernels of the engine: a profile that names the engine gets them.
    profile = read_profile(gpu.name if name == "auto" else name, gpu, "cluster.latency.profile")
    assumed = {name: reason for name, reason in profile.assumed.items() if name != HOST}  # a run determines it
    named = model.profile.engine
    return replace(profile, host_ps=step, host_sequence_ps=sequence, engine=named, assumed=assumed), gpu


def _nearness(constants: Constants, gpu: Gpu) -> float:
    """Return the highest fraction of a GPU limit (memory bandwidth or FLOPS) that the profile reaches. The factor on
    GPU times must not be smaller than this fraction, because the profile would then exceed the limit."""
    memory = max(constants.weights_tb_s, constants.kv_tb_s, constants.elementwise_tb_s) * 1e12 / gpu.bandwidth
    return max(memory, max(constants.matmul_tflops, constants.prefill_tflops) * 1e12 / float(gpu.flops))


def _search(
    loss: Callable[[Point], float], best: float, at: Point, least: float, steps: Sequence[tuple[float, float]]
) -> Point:
    """Search in decreasing steps for the point with the lowest loss. Gradients would not help, because waiting times
    change in jumps."""
    for far, wide in steps:
        ways = [(far, 0.0), (-far, 0.0)]
        if wide:
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


def _fitted(profile: Profile, at: Point, split: bool) -> Profile:
    """Return the profile with another host time and factor. `split` says whether the factor is for all-reduces."""
    factor = exp(at[1])
    profile = replace(profile, host_ps=round(float(f"{exp(at[0]):.4g}")))
    if split:
        return replace(profile, all_reduce_times=profile.all_reduce_times * factor)
    constants = {}
    for key, value in asdict(profile.constants).items():
        rate = key.endswith(("_tb_s", "_tflops"))
        constants[key] = value / factor if rate else value * factor if key.endswith("_us") else value
    return replace(profile, constants=Constants(**constants))


def _errors(errors: Validation) -> dict[str, str]:
    found = {}
    for kind, rows in errors.latency.items():
        worst = max((abs(row["error"]) for row in rows.values() if row["error"] is not None), default=0.0)
        name = kind.upper().replace("_", " ")
        found[f"{name}, requests held out"] = f"within {100 * worst:.1f} % at mean, p50, p90, p95 and p99"
    return found


def _document(profile: Profile, source: str, as_of: str, error: dict[str, str]) -> str:
    """Return the content of a profile's file."""
    content: dict[str, Any] = {
        "format": 1,
        "gpu": profile.gpu,
        "as_of": as_of,
        "source": source,
        "measured": profile.measured.strip(),
        "error": error,
        "tokens": list(profile.tokens),
        "context": list(profile.context),
        "shapes": list(profile.shapes),
        "covers": list(profile.covers),
        "assumed": profile.assumed,
        "engine": profile.engine,
        "host": f"{profile.host_ps / 1e6:.10g}us",
        "host_sequence": f"{profile.host_sequence_ps / 1e6:.10g}us",
        "all_reduce_times": profile.all_reduce_times,
        "constants": asdict(profile.constants),
    }
    return yaml.safe_dump(content, sort_keys=False, width=120, allow_unicode=True)
