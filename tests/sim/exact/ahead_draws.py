"""Draws of asynchronous scheduling, of preemption by priority and of CUDA graphs, on top of other scenarios."""

from __future__ import annotations

from typing import Any

import control_draws
from draw_sources import Draws, pick

Json = dict[str, Any]
HOSTED = ("hardware", "table")  # latency models with a time of the host


def ahead(draws: Draws, drawn: Json) -> Json:
    """Schedule asynchronously. Of the host's work, some is hidden and some is longer than the GPU's steps."""
    cluster = drawn["cluster"]
    cluster["async_scheduling"] = True
    latency = cluster.get("latency", {})
    if latency.get("model") in HOSTED:
        latency["host"] = pick(draws, "0s", "137us", "1ms", "3ms", "20ms")
    return with_graphs(draws, drawn)


def with_graphs(draws: Draws, drawn: Json) -> Json:
    """Sometimes pad the steps to sizes of captured graphs."""
    latency = drawn["cluster"].get("latency", {})
    if latency.get("model") == "hardware":
        latency["graph_sizes"] = pick(draws, "none", "vllm", [1, 4, 16], [3])
    return drawn


def yielding(draws: Draws, drawn: Json) -> Json:
    """Let running requests yield to waiting ones of a higher priority. Sometimes also schedule asynchronously."""
    scores = {"realtime": pick(draws, 5, 2, 1), "standard": pick(draws, 0, 1), "batch": pick(draws, -3, 0)}
    drawn["policies"]["priority"] = {"name": "by-class", "scores": scores, "other": pick(draws, 0, 1.5)}
    limits = {"aging": pick(draws, 0, 0, 10), "preempts": pick(draws, 0, 0, 0.5, 3), **control_draws.chunks(draws)}
    drawn["policies"]["scheduler"] = {"name": "priority", **limits}
    return ahead(draws, drawn) if pick(draws, True, False, False) else with_graphs(draws, drawn)
