"""Conformance suites for authors of plug-ins. Inherit a suite, so that pytest collects its tests, or call `check_...`.

A suite runs a plug-in on small fixed scripts. It checks that the plug-in is deterministic, does not write to views,
reads only the signals that it declares, breaks ties by the lowest index, and returns answers of the right type. The
plug-in must also decide when all instances are saturated, when only one instance still serves requests, and after a
time in which no instance served requests.
"""

from functools import partial
from pathlib import Path

from headway.latency.base import LatencyModel
from headway.testing.engine_suites import LatencyModelSuite, SchedulerSuite
from headway.testing.part_suites import FilterSuite, ScorerSuite
from headway.testing.router_suites import (
    AdmissionSuite,
    DeciderSuite,
    EstimatorSuite,
    FlowSuite,
    PrioritySuite,
    RoutingSuite,
)
from headway.testing.scaling_suite import ScalingSuite
from headway.testing.suite import check_policy, run_tests
from headway.testing.trace_suite import TraceReaderSuite
from headway.workload.traces.record import Format

__all__ = [
    "AdmissionSuite",
    "DeciderSuite",
    "EstimatorSuite",
    "FilterSuite",
    "FlowSuite",
    "LatencyModelSuite",
    "PrioritySuite",
    "RoutingSuite",
    "ScalingSuite",
    "SchedulerSuite",
    "ScorerSuite",
    "TraceReaderSuite",
    "check_admission",
    "check_decider",
    "check_estimator",
    "check_filter",
    "check_flow",
    "check_latency_model",
    "check_priority",
    "check_routing",
    "check_scaling",
    "check_scheduler",
    "check_scorer",
    "check_trace_reader",
]

check_admission = partial(check_policy, AdmissionSuite)
check_decider = partial(check_policy, DeciderSuite)
check_estimator = partial(check_policy, EstimatorSuite)
check_filter = partial(check_policy, FilterSuite)
check_flow = partial(check_policy, FlowSuite)
check_priority = partial(check_policy, PrioritySuite)
check_routing = partial(check_policy, RoutingSuite)
check_scaling = partial(check_policy, ScalingSuite)
check_scheduler = partial(check_policy, SchedulerSuite)
check_scorer = partial(check_policy, ScorerSuite)


def check_latency_model(model: LatencyModel) -> None:
    run_tests(LatencyModelSuite, model=model)


def check_trace_reader(format: Format, sample: Path) -> None:
    run_tests(TraceReaderSuite, format=format, sample=sample)
