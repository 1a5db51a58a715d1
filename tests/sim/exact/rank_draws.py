"""Random clusters whose engines have data-parallel ranks, for the exactness tests: any other, with ranks that wait for
each other (a mixture of experts) or do not, and whose rank the engine chooses, or the router."""

from __future__ import annotations

from typing import Any

from draw_sources import Draws, pick

Json = dict[str, Any]
EXPERTS = {
    "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000,
    "experts": 8, "experts_per_token": 2, "expert_intermediate": 32, "dense_layers": 1,
}  # fmt: skip
DENSE = {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 1, "params": 100_000}


def ranked(draws: Draws, drawn: Json) -> Json:
    """The scenario with ranks. Disaggregated deployments have none."""
    cluster = drawn["cluster"]
    ranks = draw_ranks(draws, scaled="scaling" in drawn)
    if cluster.get("architecture") == "disaggregated":
        return drawn
    cluster |= draw_model(draws, cluster.get("model", "llama-3.1-8b"))
    cluster |= ranks if cluster["model"].get("experts") else {**ranks, "ep": False}
    for deployment in cluster.get("deployments", {}).values():
        if deployment.get("architecture") == "disaggregated":
            deployment |= {"dp": 1, "ep": False}
        elif "model" in deployment:
            deployment |= {"ep": False}  # its model is dense
        if pick(draws, False, False, True):
            deployment["dp"] = 1
    return drawn


def draw_model(draws: Draws, model: Any) -> Json:
    """A model that keeps the name by which requests ask for it."""
    name = model if isinstance(model, str) else model["name"]
    return {"model": {**pick(draws, EXPERTS, EXPERTS, DENSE), "name": name}}


def draw_ranks(draws: Draws, scaled: bool) -> Json:
    ranks: Json = {"dp": pick(draws, 2, 2, 3), "ep": pick(draws, True, False), "tp": pick(draws, 1, 1, 2)}
    ranks["dp_balance"] = "vllm" if scaled else pick(draws, "vllm", "direct")
    if pick(draws, False, True):
        ranks["api_servers"] = pick(draws, 1, 2, 5)
    return ranks


def rank_traits(scenario: Json, result: Any) -> dict[str, bool]:
    cluster = scenario["cluster"]
    if cluster.get("dp", 1) == 1:
        return {}
    columns, experts = result.requests, "experts" in cluster["model"]
    used = {index for index in columns["instance"] if index >= 0}
    steps = [one["steps"] for one in result.summary()["instances"] if "-rank-" in one["id"]]
    return {
        "several ranks used": len(used) > 1,
        "ranks in lockstep": experts,
        "ranks apart": not experts,
        "dummy steps": experts and len(used) < len(steps) and any(steps),
        "whole experts": cluster["ep"],
        f"balance {cluster['dp_balance']}": True,
        "several servers": cluster["dp_balance"] == "vllm" and cluster.get("api_servers", 2) > 1,
    }


SHOWN = (
    *("several ranks used", "ranks in lockstep", "ranks apart", "dummy steps", "whole experts", "balance vllm"),
    *("balance direct", "several servers"),
)
