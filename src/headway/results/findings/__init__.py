"""Findings: problems of a run, with their time, the requests and instances affected, and the figures.

Each module except `observed` detects one kind of finding, which the module's docstring and docs/findings.md define. A
module declares `KIND`, `AREA`, one sentence of `ADVICE`, the function `find`, and `ORDER`, its position among findings
of equal severity and start. To add a kind, add a module.
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
    """Return all findings of a run, most severe first; findings of equal severity are in order of their start."""
    run = Observed(result)
    findings = [finding for detector in DETECTORS for finding in detector.find(run)]
    return sorted(findings, key=lambda finding: (-finding.severity, finding.at_ps, KINDS.index(finding.kind)))
