"""What a router does and does not, as a page for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from headway.conformance.conformance_run import Report
from headway.conformance.router_checks import FAILED, PASSED

SIGNS = {PASSED: "✓", FAILED: "✗"}


def report(found: Report) -> RenderableType:
    parts: list[RenderableType] = [Text(found.router, style="bold"), ""]
    for finding in found.findings:
        parts.append(Text(f"{SIGNS.get(finding.outcome, '–')} {finding.check}"))
        parts.append(Text(f"  {finding.detail}"))
    passed = sum(one.outcome == PASSED for one in found.findings)
    return Group(*parts, "", Text(f"{passed} of {len(found.findings)} passed"))
