"""Step-time models and hardware tables: pure functions of the step's make-up, used by the simulator and by estimators.

`build` reads the `latency:` section of a scenario, `{model: NAME, ...}`. `MODELS` has every model of `step_models/`
by its name; its other keys and their defaults are declared by the model's `keys`.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, Final

from headway.config import section
from headway.config.keys import write
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency import step_models
from headway.latency.base import LatencyKind, LatencyModel
from headway.latency.gpus import Gpu, read_gpu
from headway.latency.shapes import ModelShape, read_model
from headway.latency.shards import kv_blocks
from headway.latency.step_models.hardware import StepTimes, step_times
from headway.latency.tables import plain

__all__ = ["MODELS", "Gpu", "LatencyModel", "ModelShape", "build", "explicit", "kv_blocks", "read_gpu", "read_model"]

_KINDS: Final[list[LatencyKind]] = [
    import_module(f"{step_models.__name__}.{module.name}").MODEL for module in iter_modules(step_models.__path__)
]
MODELS: Final = {kind.name: kind for kind in _KINDS}


def build(data: dict[str, Any], model: ModelShape, gpu: Gpu, tp: int, where: str = "cluster.latency") -> LatencyModel:
    """The latency model of a section; without `model` it is `hardware`. Only `hardware`,
    `aiconfigurator` and `roofline` look at shape, GPU and TP, and `table` at the model's name."""
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping with 'model', as in {{model: hardware}}, got {shown(data)}.")
    rest = dict(data)
    name = rest.pop("model", "hardware")
    kind = MODELS.get(plain(str(name)))
    if kind is None:
        known = suggest(plain(str(name)), MODELS)
        raise HeadwayError(f"{where}.model: no latency model is called {shown(name)}.{known}")
    return kind.build(section.read(kind.keys, rest, where), where, model, gpu, tp)


def explicit(data: dict[str, Any]) -> dict[str, Any]:
    """A section that `build` takes, with its model's defaults written out."""
    name = plain(str(data.get("model", "hardware")))
    return {"model": name, **write(MODELS[name].keys()), **{key: data[key] for key in data if key != "model"}}


class _Callable(ModuleType):
    """`headway.latency("h200", "llama-3.1-8b")` is `step_times` under the name that one looks for first."""

    def __call__(self, gpu: object, model: object, tp: int = 1, host: str | None = None) -> StepTimes:
        return step_times(gpu, model, tp, host)


sys.modules[__name__].__class__ = _Callable
