"""Latency models and hardware tables. A latency model is a pure function that returns the duration of a step.

`build` reads the `latency:` section of a scenario, `{model: NAME, ...}`. `MODELS` maps the name of every model in
`step_models/` to its declaration: its keys with their defaults, and its constructor.
"""

import sys
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Annotated, Any, Final

from headway.config import section
from headway.config.keys import Form, write
from headway.config.schema import Variants
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.latency import step_models
from headway.latency.base import LatencyKind, LatencyModel
from headway.latency.gpus import Gpu, GpuSpec, read_gpu
from headway.latency.kv_memory import KvLayout, kv_layout
from headway.latency.shapes import ModelShape, ModelSpec, read_model
from headway.latency.shards import kv_blocks
from headway.latency.step_models.hardware import step_times
from headway.latency.tables import plain

__all__ = ["MODELS", "Gpu", "GpuSpec", "KvLayout", "LatencyModel", "LatencySpec", "ModelShape", "ModelSpec"]
__all__ += ["build", "dated", "explicit", "kv_blocks", "kv_layout", "read_gpu", "read_model"]

_MODULES: Final = [import_module(f"{step_models.__name__}.{file.name}") for file in iter_modules(step_models.__path__)]
DEFAULT: Final = "hardware"
MODELS: Final[dict[str, LatencyKind]] = {module.MODEL.name: module.MODEL for module in _MODULES}


def _keys_by_name() -> dict[str, Any]:
    """Return the keys of each model, with the default model first."""
    return {name: MODELS[name].keys for name in sorted(MODELS, key=lambda name: name != DEFAULT)}


LatencySpec = Annotated[Any, Form.of(Variants("model", _keys_by_name, bare=False, optional=True))]


def build(
    data: dict[str, Any],
    model: ModelShape,
    gpu: Gpu,
    tp: int,
    where: str = "cluster.latency",
    dp: int = 1,
    ep: bool = False,
) -> LatencyModel:
    """Return the latency model that a `latency:` section describes. The default model is `hardware`. With several
    data-parallel ranks (`dp`), it is the model of all of them; with `ep`, GPUs have whole experts.

    Only `hardware`, `aiconfigurator` and `roofline` use the shape of the model, the GPU and TP. `table` uses only the
    name of the model.
    """
    if not isinstance(data, dict):
        raise HeadwayError(f"{where}: expected a mapping such as {{model: hardware}}, got {shown(data)}.")
    rest = dict(data)
    name = rest.pop("model", DEFAULT)
    kind = MODELS.get(plain(str(name)))
    if kind is None:
        known = suggest(plain(str(name)), MODELS)
        raise HeadwayError(f"{where}.model: no latency model is called {shown(name)}.{known}")
    keys = section.read(kind.keys, rest, where)
    if kind.build_ranks is not None and (dp > 1 or ep):
        return kind.build_ranks(keys, where, model, gpu, tp, dp, ep)
    return kind.build(keys, where, model, gpu, tp)


def explicit(data: dict[str, Any]) -> dict[str, Any]:
    """Return a valid `latency:` section, with the default values of all keys that it does not set."""
    name = plain(str(data.get("model", DEFAULT)))
    return {"model": name, **write(MODELS[name].keys()), **{key: data[key] for key in data if key != "model"}}


def dated(data: Any, engine: str) -> Any:
    """Return a `latency:` section with this `default_engine`, if its model has that key and the section does not set
    it. Other values stay unchanged: the code that reads them reports the errors."""
    rest = {} if data is None else data
    if engine == "auto" or not isinstance(rest, dict) or plain(str(rest.get("model", DEFAULT))) != DEFAULT:
        return data
    return {"model": DEFAULT, **rest} | {"default_engine": rest.get("default_engine", engine)}


class _Callable(ModuleType):
    """A module type that is callable, so that `headway.latency("h200", "llama-3.1-8b")` calls `step_times` with these
    arguments."""

    __call__ = staticmethod(step_times)


sys.modules[__name__].__class__ = _Callable
