"""Step-time models and hardware tables: pure functions of the step's make-up, used by the simulator and by estimators.

`build` reads the `latency:` section of a scenario, `{model: NAME, ...}`. `MODELS` has every model by its name; its
other keys and their defaults are the fields of the model's `keys`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, Final

from msgspec.structs import fields

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency.aiconfigurator import Aiconfigurator
from headway.latency.base import FOREVER, Chunk, Estimator, LatencyModel, Run
from headway.latency.fixed import Fixed
from headway.latency.gpus import Gpu, gpus, read_gpu
from headway.latency.hardware import Hardware, StepTimes, step_times
from headway.latency.linear import Linear
from headway.latency.links import LinkProfile, links
from headway.latency.piecewise import Piecewise
from headway.latency.profiles import Profile, read_profile, shipped
from headway.latency.roofline import Roofline
from headway.latency.shapes import ModelShape, models, read_model
from headway.latency.shards import capacity_score, kv_blocks
from headway.latency.step_table import StepTable
from headway.latency.tables import plain

AnyModel = (
    type[Roofline]
    | type[Linear]
    | type[Piecewise]
    | type[Fixed]
    | type[Hardware]
    | type[StepTable]
    | type[Aiconfigurator]
)
MODELS: Final[dict[str, AnyModel]] = {
    "hardware": Hardware,
    "roofline": Roofline,
    "linear": Linear,
    "piecewise": Piecewise,
    "fixed": Fixed,
    "table": StepTable,
    "aiconfigurator": Aiconfigurator,
}
NAMES: Final = tuple(MODELS)


def build(data: dict[str, Any], model: ModelShape, gpu: Gpu, tp: int, where: str = "cluster.latency") -> LatencyModel:
    """The latency model of a section; without `model` it is `hardware`. Only `hardware`,
    `aiconfigurator` and `roofline` look at shape, GPU and TP, and `table` at the model's name."""
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping with 'model', as in {{model: hardware}}, got {shown(data)}.")
    rest = dict(data)
    name = rest.pop("model", "hardware")
    kind = MODELS.get(plain(str(name)))
    if kind is None:
        known = suggest(plain(str(name)), NAMES)
        raise HeadwayError(f"{where}.model: no latency model is called {shown(name)}.{known}")
    return kind.read(rest, where, model, gpu, tp)


def explicit(data: dict[str, Any]) -> dict[str, Any]:
    """A section that `build` takes, with its model's defaults written out."""
    name = plain(str(data.get("model", "hardware")))
    defaults = {field.name: field.default for field in fields(MODELS[name].keys)}
    return {"model": name, **defaults, **{key: value for key, value in data.items() if key != "model"}}


class _Callable(ModuleType):
    """`headway.latency("h200", "llama-3.1-8b")` is `step_times` under the name that one looks for first."""

    def __call__(self, gpu: object, model: object, tp: int = 1, host: str | None = None) -> StepTimes:
        return step_times(gpu, model, tp, host)


sys.modules[__name__].__class__ = _Callable


__all__ = [
    "FOREVER",
    "MODELS",
    "NAMES",
    "Aiconfigurator",
    "Chunk",
    "Estimator",
    "Fixed",
    "Gpu",
    "Hardware",
    "LatencyModel",
    "Linear",
    "LinkProfile",
    "ModelShape",
    "Piecewise",
    "Profile",
    "Roofline",
    "Run",
    "StepTable",
    "StepTimes",
    "build",
    "capacity_score",
    "explicit",
    "gpus",
    "kv_blocks",
    "links",
    "models",
    "plain",
    "read_gpu",
    "read_model",
    "read_profile",
    "shipped",
    "step_times",
]
