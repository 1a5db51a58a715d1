"""Draws of asynchronous scheduling, on top of any other scenario."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
HOSTED = ("hardware", "table")  # latency models with a time of the host


def ahead(draws: Draws, drawn: Json) -> Json:
    """Schedule asynchronously. Of the host's work, some is hidden and some is longer than the GPU's steps. Some clients
    limit their answers to what these have."""
    cluster = drawn["cluster"]
    cluster["async_scheduling"] = True
    latency = cluster.get("latency", {})
    if latency.get("model") in HOSTED:
        latency["host"] = pick(draws, "0s", "137us", "1ms", "3ms", "20ms")
    return drawn
