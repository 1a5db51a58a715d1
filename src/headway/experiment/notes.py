"""What must be said beside figures that mean nothing: why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def note(summary: Mapping[str, Any], warmup: int) -> str | None:
    """Why a run has no figures; None where it has some."""
    requests = summary["requests"]
    arrived = requests["arrived"]
    if not arrived:
        return "No request arrived, so there is nothing to count."
    if warmup >= arrived:
        return f"No request is left to count: warmup is {warmup:,} and {arrived:,} arrived."
    if summary["latency"]["e2e"]["mean"] is None:
        ends = ("rejected", "timed_out", "failed", "in_flight")
        what = ", ".join(f"{requests[end]:,} {end.replace('_', ' ')}" for end in ends if requests[end])
        counted = " that counts" if requests["completed"] else ""
        return f"No request{counted} was completed: of {arrived:,}, {what}."
    return None
