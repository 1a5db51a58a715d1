"""Checks of the policies in force: whether engines report the signals that they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from headway.errors import HeadwayError
from headway.gateway.doctor.problems import Report
from headway.gateway.live_policies import build_policies, without_canary
from headway.policies import registry
from headway.types import Json
from headway.views.instance import MEAN_IF_MISSING, REPORTED_LIVE

CANARY: Final = "canary"


def entries(policies: Json) -> Iterator[tuple[str, registry.Entry]]:
    """Yield each stage and the catalogue entry of its policy, also of a canary. Skip policies that cannot be built
    here, such as those of a file on another machine."""
    canary = policies.get(CANARY)
    blocks = {"policies": without_canary(policies)}
    if isinstance(canary, dict) and isinstance(canary.get("policies"), dict):
        blocks["canary.policies"] = canary["policies"]
    for where, block in blocks.items():
        for stage, spec in block.items():
            try:
                built = build_policies({stage: spec}, where)
            except HeadwayError:
                continue
            for policy in built.values():
                yield f"{where}.{stage}", registry.entry_of(policy, stage)


def seeks_prefixes(policies: Json) -> bool:
    """Return whether a policy reads which engine holds which prefix."""
    return any("prefix_index" in entry.exact for _, entry in entries(policies))


def check_signals(policies: Json, reported: Collection[str], report: Report) -> None:
    """Report policies that read signals which no engine reports."""
    for where, entry in entries(policies):
        if entry.exact == registry.EVERYTHING:  # it declares nothing, so nothing is known
            continue
        missing = [signal for signal in entry.reported if signal not in reported]
        never = [signal for signal in missing if signal not in REPORTED_LIVE]
        loads = [signal for signal in missing if signal in REPORTED_LIVE and signal not in MEAN_IF_MISSING]
        others = [signal for signal in missing if signal in MEAN_IF_MISSING]
        if never:
            what = f"{entry.name} reads {', '.join(never)}, which no live engine reports."
            report.warn(where, what, "Choose a policy for live traffic; see `headway policies`.")
        if loads:
            what = f"{entry.name} reads {', '.join(loads)}, but no engine reports it."
            remedy = "Check `metrics` and `signals`, or run agents. Until then the gateway uses its own counts."
            report.warn(where, what, remedy)
        if others:
            what = f"{entry.name} can use {', '.join(others)}, but no engine reports it."
            report.note(where, what, "Put a GPU exporter's series on the metrics page, or run agents.")
