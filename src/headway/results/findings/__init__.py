"""Findings: what went wrong in a run, when, whom it concerned and by which figures. Each kind is defined in the module
of its name (saturation: `backlog`) and in docs/findings.md."""

from __future__ import annotations

from typing import Final

from headway.results.findings import (
    backlog,
    cache_thrashing,
    head_of_line_blocking,
    herding,
    hot_spot,
    pd_backpressure,
    preemption_storm,
    priority_inversion,
    scale_oscillation,
    shadow_divergence,
    slo_violation,
    starvation,
)
from headway.results.findings.backlog import saturation
from headway.results.findings.observed import Observed, Run
from headway.results.records import Finding

__all__ = ["KINDS", "find", "saturation"]

_DETECTORS: Final = (
    priority_inversion,
    slo_violation,
    cache_thrashing,
    shadow_divergence,
    scale_oscillation,
    pd_backpressure,
    preemption_storm,
    herding,
    hot_spot,
    head_of_line_blocking,
    starvation,
    backlog,
)
KINDS: Final = tuple(one.KIND for one in _DETECTORS)


def find(result: Run) -> list[Finding]:
    """All of a run, the most severe first; of equals those that began first."""
    seen = Observed(result)
    found = [finding for detector in _DETECTORS for finding in detector.find(seen)]
    return sorted(found, key=lambda one: (-one.severity, one.at_ps, KINDS.index(one.kind)))
