"""What must be said beside figures that mean nothing: why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway import registry
from headway.cluster_spec import Cluster


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


def lost_prefixes(cluster: Cluster, routing: Mapping[str, Any]) -> str | None:
    """What to say of policies, by name, that send prompts where their prefixes are computed to instances which do not
    keep them; None where there is nothing to say."""
    moved = any(one.architecture == "disaggregated" and not one.transfer.keep_prefill_copy for one in cluster.pools())
    names = [name for name, spec in routing.items() if moved and _seeks_prefixes(spec)]
    if not names:
        return None
    many = len(names) > 1
    lives = f"{', '.join(names)} {'live' if many else 'lives'} on prefixes cached where prompts are computed"
    return f"{lives}; 'transfer.keep_prefill_copy' is off, so that nothing stays there once it has been moved."


def _seeks_prefixes(spec: Any) -> bool:
    made = registry.build("routing", spec, "policies.routing") if isinstance(spec, str | dict) else spec
    return bool(getattr(made, "seeks_prefixes", False))
