"""Step-time models and hardware tables: pure functions of the step's make-up, used by the simulator and by estimators.

`build` reads the `latency:` section of a scenario, `{model: NAME, ...}`. The keys of each model and their defaults are
the fields of `FixedParameters`, `LinearParameters`, `PiecewiseParameters` and `RooflineParameters`.
"""

from __future__ import annotations

from typing import Any, Final

from headway.latency.base import FOREVER, Chunk, LatencyModel, Run
from headway.latency.capacity import capacity_score, kv_blocks
from headway.latency.estimator import Estimator
from headway.latency.fixed import Fixed
from headway.latency.hardware import Gpu, gpus, read_gpu, watts
from headway.latency.linear import Linear
from headway.latency.piecewise import Piecewise
from headway.latency.roofline import Roofline
from headway.latency.shapes import ModelShape, models, read_model
from headway.latency.tables import plain
from headway.types import HeadwayError
from headway.wording import shown, suggest

NAMES: Final = ("roofline", "linear", "piecewise", "fixed")


def build(data: dict[str, Any], model: ModelShape, gpu: Gpu, tp: int, where: str = "cluster.latency") -> LatencyModel:
    """The latency model of a section; without `model` it is a roofline. Only a roofline looks at shape, GPU and TP."""
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping with 'model', as in {{model: roofline}}, got {shown(data)}.")
    rest = dict(data)
    name = rest.pop("model", "roofline")
    match plain(str(name)):
        case "roofline":
            return Roofline.read(rest, where, model, gpu, tp)
        case "linear":
            return Linear.read(rest, where)
        case "piecewise":
            return Piecewise.read(rest, where)
        case "fixed":
            return Fixed.read(rest, where)
    raise HeadwayError(f"{where}.model: no latency model is called {shown(name)}.{suggest(plain(str(name)), NAMES)}")


__all__ = [
    "FOREVER",
    "NAMES",
    "Chunk",
    "Estimator",
    "Fixed",
    "Gpu",
    "LatencyModel",
    "Linear",
    "ModelShape",
    "Piecewise",
    "Roofline",
    "Run",
    "build",
    "capacity_score",
    "gpus",
    "kv_blocks",
    "models",
    "plain",
    "read_gpu",
    "read_model",
    "watts",
]
