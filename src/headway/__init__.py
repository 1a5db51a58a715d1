"""Headway: a laboratory for LLM-inference routing.

    import headway

    result = headway.simulate("scenario.yaml")
    print(result.summary()["latency"]["ttft"]["p99"])

Each name is imported on first use, so that `import headway` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headway import evolve, latency
    from headway.errors import HeadwayError, InvariantError
    from headway.experiment.calibrate import calibrate
    from headway.experiment.check_policy import check_policy
    from headway.experiment.compare import Comparison, compare
    from headway.experiment.controls import Controls, controls
    from headway.experiment.counterfactual import counterfactuals
    from headway.experiment.engine_fit import calibrate_run
    from headway.experiment.explain import explain
    from headway.experiment.hardware import hardware
    from headway.experiment.look import convert_trace, inspect_trace, preview, write_workload
    from headway.experiment.plan import Plan, plan
    from headway.experiment.run import simulate
    from headway.experiment.sweep import Sweep, sweep
    from headway.experiment.validate import Validation, validate
    from headway.latency.calibration import Calibration
    from headway.policies.bundle import Bundle
    from headway.policies.context import Context
    from headway.policies.queues import Ticket
    from headway.policies.registry import Bounds, policy
    from headway.regression.check import check
    from headway.regression.verdict import Check
    from headway.results.result import Result
    from headway.results.words import summarize
    from headway.scenario.scenario import Scenario
    from headway.schemas import schema, schema_file
    from headway.schemas.starters import write_starter
    from headway.types import ADMIT, Admit, Delay, Estimate, Path, Priority, Reject, Request, Route, Scale, Scorecard
    from headway.views.cluster import ClusterView
    from headway.views.events import (
        Arrived,
        BatchRan,
        BlocksMoved,
        Delayed,
        Event,
        Finished,
        FirstToken,
        Handed,
        InstanceChanged,
        Preempted,
        Rejected,
        Routed,
        TransferBegan,
        TransferEnded,
    )
    from headway.views.instance import InstanceView
    from headway.views.pool import LoadSample, PoolView

__version__ = "0.1.0"

_NAMES_BY_MODULE = {
    "errors": "HeadwayError InvariantError",
    "experiment.calibrate": "calibrate",
    "experiment.check_policy": "check_policy",
    "experiment.compare": "Comparison compare",
    "experiment.controls": "Controls controls",
    "experiment.counterfactual": "counterfactuals",
    "experiment.engine_fit": "calibrate_run",
    "experiment.explain": "explain",
    "experiment.hardware": "hardware",
    "experiment.look": "convert_trace inspect_trace preview write_workload",
    "experiment.plan": "Plan plan",
    "experiment.run": "simulate",
    "experiment.sweep": "Sweep sweep",
    "experiment.validate": "Validation validate",
    "latency.calibration": "Calibration",
    "policies.bundle": "Bundle",
    "policies.context": "Context",
    "policies.queues": "Ticket",
    "policies.registry": "Bounds policy",
    "regression.check": "check",
    "regression.verdict": "Check",
    "results.result": "Result",
    "results.words": "summarize",
    "scenario.scenario": "Scenario",
    "schemas": "schema schema_file",
    "schemas.starters": "write_starter",
    "types": "ADMIT Admit Delay Estimate Path Priority Reject Request Route Scale Scorecard",
    "views.cluster": "ClusterView",
    "views.events": "Arrived BatchRan BlocksMoved Delayed Event Finished FirstToken Handed InstanceChanged Preempted "
    "Rejected Routed TransferBegan TransferEnded",
    "views.instance": "InstanceView",
    "views.pool": "LoadSample PoolView",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

__all__ = ["__version__", "evolve", "latency"]
__all__ += ["HeadwayError", "InvariantError"]
__all__ += ["Comparison", "Controls", "Plan", "Sweep", "Validation", "compare", "controls", "plan", "simulate", "sweep"]
__all__ += ["Check", "check"]
__all__ += ["calibrate", "calibrate_run", "check_policy", "counterfactuals", "explain", "hardware", "validate"]
__all__ += ["Calibration", "Result", "Scenario", "summarize"]
__all__ += ["convert_trace", "inspect_trace", "preview", "write_workload"]
__all__ += ["schema", "schema_file", "write_starter"]
__all__ += ["Bounds", "Bundle", "Context", "Ticket", "policy"]
__all__ += [
    "ADMIT",
    "Admit",
    "Delay",
    "Estimate",
    "Path",
    "Priority",
    "Reject",
    "Request",
    "Route",
    "Scale",
    "Scorecard",
]
__all__ += ["ClusterView", "InstanceView", "LoadSample", "PoolView"]
__all__ += ["Event", "Finished", "FirstToken", "Handed", "InstanceChanged", "Routed"]
__all__ += ["Arrived", "BatchRan", "BlocksMoved", "Delayed", "Preempted", "Rejected", "TransferBegan", "TransferEnded"]


def __getattr__(name: str) -> Any:
    if name in ("latency", "evolve"):  # these names are packages, so import them as modules
        return importlib.import_module(f"headway.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headway.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
