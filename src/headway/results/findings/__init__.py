"""Findings: what went wrong in a run, when, whom it concerned and by which figures.

Each module here but `observed` detects one kind, defined in its docstring and in docs/findings.md. It declares the
`KIND`, the `AREA` that it belongs to, one sentence of `ADVICE`, its `ORDER` among findings that are equally severe and
began together, and `find`. A new kind is a new module and nothing else.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from headway.results.findings.backlog import saturation
from headway.results.findings.observed import Observed, Run
from headway.results.records import Finding

__all__ = ["DETECTORS", "KINDS", "find", "saturation"]

_MODULES: Final = [module.name for module in iter_modules(__path__) if module.name != "observed"]
DETECTORS: Final = sorted((import_module(f"{__name__}.{name}") for name in _MODULES), key=lambda module: module.ORDER)
KINDS: Final = tuple(detector.KIND for detector in DETECTORS)


def find(result: Run) -> list[Finding]:
    """All findings of a run, the most severe first; of equals those that began first."""
    run = Observed(result)
    findings = [finding for detector in DETECTORS for finding in detector.find(run)]
    return sorted(findings, key=lambda finding: (-finding.severity, finding.at_ps, KINDS.index(finding.kind)))
