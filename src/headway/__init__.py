"""Headway: a laboratory for LLM-inference routing.

    import headway

    result = headway.simulate("scenario.yaml")
    print(result.summary()["latency"]["ttft"]["p99"])

Names are loaded on first use, so that `import headway` stays light.
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
    from headway.experiment.look import convert_trace, inspect_trace, preview
    from headway.experiment.plan import Plan, plan
    from headway.experiment.run import simulate
    from headway.experiment.sweep import Sweep, sweep
    from headway.experiment.validate import Validation, validate
    from headway.latency.calibration import Calibration
    from headway.policies.bundle import Bundle
    from headway.policies.context import Context
    from headway.policies.queues import Ticket
    from headway.policies.registry import Bounds, policy
    from headway.results.result import Result
    from headway.results.words import summarize
    from headway.scenario.scenario import Scenario
    from headway.types import ADMIT, Admit, Delay, Path, Priority, Reject, Request, Route, Scale, Scorecard
    from headway.views.cluster import ClusterView
    from headway.views.events import Event, Finished, FirstToken, Routed
    from headway.views.instance import InstanceView
    from headway.views.pool import LoadSample, PoolView

__version__ = "0.1.0"

_HOMES = {
    "simulate": "experiment.run",
    "calibrate": "experiment.calibrate",
    "calibrate_run": "experiment.engine_fit",
    "Calibration": "latency.calibration",
    "check_policy": "experiment.check_policy",
    "compare": "experiment.compare",
    "Comparison": "experiment.compare",
    "controls": "experiment.controls",
    "Controls": "experiment.controls",
    "counterfactuals": "experiment.counterfactual",
    "explain": "experiment.explain",
    "hardware": "experiment.hardware",
    **dict.fromkeys(("Plan", "plan"), "experiment.plan"),
    **dict.fromkeys(("Sweep", "sweep"), "experiment.sweep"),
    **dict.fromkeys(("Validation", "validate"), "experiment.validate"),
    **dict.fromkeys(("preview", "inspect_trace", "convert_trace"), "experiment.look"),
    "Result": "results.result",
    "summarize": "results.words",
    "Scenario": "scenario.scenario",
    "Bundle": "policies.bundle",
    "Context": "policies.context",
    "Ticket": "policies.queues",
    **dict.fromkeys(("Bounds", "policy"), "policies.registry"),
    **dict.fromkeys(("ADMIT", "Admit", "Delay", "Priority", "Reject", "Route", "Scale", "Scorecard"), "types"),
    **dict.fromkeys(("Path", "Request"), "types"),
    "ClusterView": "views.cluster",
    "InstanceView": "views.instance",
    **dict.fromkeys(("LoadSample", "PoolView"), "views.pool"),
    **dict.fromkeys(("Event", "Finished", "FirstToken", "Routed"), "views.events"),
    **dict.fromkeys(("HeadwayError", "InvariantError"), "errors"),
}

__all__ = [
    "ADMIT",
    "Admit",
    "Bounds",
    "Bundle",
    "Calibration",
    "ClusterView",
    "Comparison",
    "Context",
    "Controls",
    "Delay",
    "Event",
    "Finished",
    "FirstToken",
    "HeadwayError",
    "InstanceView",
    "InvariantError",
    "LoadSample",
    "Path",
    "Plan",
    "PoolView",
    "Priority",
    "Reject",
    "Request",
    "Result",
    "Route",
    "Routed",
    "Scale",
    "Scenario",
    "Scorecard",
    "Sweep",
    "Ticket",
    "Validation",
    "__version__",
    "calibrate",
    "calibrate_run",
    "check_policy",
    "compare",
    "controls",
    "convert_trace",
    "counterfactuals",
    "evolve",
    "explain",
    "hardware",
    "inspect_trace",
    "latency",
    "plan",
    "policy",
    "preview",
    "simulate",
    "summarize",
    "sweep",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name in ("latency", "evolve"):  # packages; the first can be called
        return importlib.import_module(f"headway.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'headway' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"headway.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
