"""Conformance suites for authors of plug-ins: inherit one, and pytest collects its tests, or call `check_...`.

A suite tries a plug-in on small fixed scripts and checks that it is deterministic, leaves views alone, reads what it
declares, breaks ties by the lowest index, gives answers of the right kind, and decides when all instances are
saturated, when one is left and after none was.
"""

from headway.testing.engine_suites import LatencyModelSuite, SchedulerSuite, check_latency_model, check_scheduler
from headway.testing.part_suites import FilterSuite, ScorerSuite, check_filter, check_scorer
from headway.testing.router_suites import (
    AdmissionSuite,
    FlowSuite,
    PrioritySuite,
    RoutingSuite,
    check_admission,
    check_flow,
    check_priority,
    check_routing,
)
from headway.testing.scaling_suite import ScalingSuite, check_scaling
from headway.testing.trace_suite import TraceReaderSuite, check_trace_reader

__all__ = [
    "AdmissionSuite",
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
