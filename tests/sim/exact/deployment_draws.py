"""Deployments for drawn scenarios: one or several, of one model or of two, with limits of their own."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
SMALL = {"layers": 2, "hidden": 32, "heads": 2, "kv_heads": 1, "params": 50_000, "name": "small"}


def deployed(draws: Draws, scenario: Json) -> Json:
    """The scenario, with deployments in a third of all cases. Only synthetic requests can be told to want a model."""
    if pick(draws, True, True, False):
        return scenario
    cluster, workload = scenario["cluster"], scenario["workload"]
    deployments: Json = {"first": {"instances": pick(draws, 1, 2)}}
    if pick(draws, True, False):
        deployments["second"] = limits(draws, cluster)
    if "trace" not in workload and pick(draws, True, True, False):
        deployments["other"] = {**limits(draws, cluster), "model": SMALL, "serves": ["tiny"]}
        model = cluster.get("model", "llama-3.1-8b")
        named = model if isinstance(model, str) else model["name"]
        weights = {named: 2, "small": 1, "tiny": pick(draws, 1, 2)}
        workload = {**workload, "models": weights}
        if pick(draws, True, False):
            deployments["last"] = limits(draws, cluster)
    return {**scenario, "workload": workload, "cluster": {**cluster, "deployments": deployments}}


def limits(draws: Draws, cluster: Json) -> Json:
    blocks = cluster["kv"]["gpu_blocks"]
    return {
        "instances": pick(draws, 1, 2),
        "max_batch_tokens": pick(draws, 3, 40, 2048),
        "max_batch_size": pick(draws, 1, 4, 256),
        "kv": {"gpu_blocks": pick(draws, blocks, 2 * blocks, blocks + 1)},
    }
