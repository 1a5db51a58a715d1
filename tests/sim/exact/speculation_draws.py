"""Speculative decoding for drawn scenarios: few drafts and many, accepted hardly ever and always, by SLO class."""

from __future__ import annotations

from typing import Any

import headway
from control_draws import CLASSES
from draw_sources import Draws, pick
from drawn_scenarios import draw_priced

Json = dict[str, Any]
RATES = (0, 0.1, 0.5, 0.7, 0.83, 1)


def draw_rate(draws: Draws, tokens: int) -> Any:
    if pick(draws, True, False):
        return pick(draws, *RATES)
    return [pick(draws, *RATES) for _ in range(tokens)]


def draw_speculation(draws: Draws, scenario: Json, tokens: int) -> Json:
    drawn: Json = {"tokens": tokens}
    if pick(draws, False, False, True):
        drawn["length"] = pick(draws, 1, 1.37, tokens + 1, 1 + tokens / 2)
    else:
        drawn["acceptance"] = draw_rate(draws, tokens)
    name = "length" if "length" in drawn else "acceptance"
    if pick(draws, True, False):
        some = [each for each in CLASSES if pick(draws, True, False)]
        drawn[name] = {"default": drawn[name]} | dict.fromkeys(some, drawn[name])
        if name == "acceptance":
            drawn[name] |= {each: draw_rate(draws, tokens) for each in some}
    drafts: list[Any] = ["ngram", "ngram", "1ms", "137us"]
    if scenario["cluster"]["latency"]["model"] == "hardware":
        drafts += [{"layers": 1}, {"layers": 2}, {"model": scenario["cluster"]["model"]}] * 2
    drawn["draft"] = pick(draws, *drafts)
    return drawn


def speculating(draws: Draws, scenario: Json) -> Json:
    """The scenario with speculation. Where a step has few tokens, it has as few drafts."""
    cluster = scenario["cluster"]
    halves = [cluster[role] for role in ("prefill", "decode") if isinstance(cluster.get(role), dict)]
    pools = [*cluster.get("deployments", {}).values(), *halves]
    budgets = [pool["max_batch_tokens"] for pool in (cluster, *pools) if "max_batch_tokens" in pool]
    for pool in cluster.get("deployments", {}).values():
        budgets += [
            half["max_batch_tokens"] for half in pool.values() if isinstance(half, dict) and "max_batch_tokens" in half
        ]
    tokens = min(pick(draws, 1, 2, 3, 3, 5, 8), min(budgets) - 1)
    if not tokens:
        return scenario
    if "models" not in scenario["workload"] and pick(draws, False, False, True):
        cluster = {**cluster, **draw_priced(draws)}
    own = draw_speculation(draws, {**scenario, "cluster": cluster}, tokens)
    return {**scenario, "cluster": {**cluster, "speculation": own}}


def speculation_traits(scenario: Json, result: headway.Result) -> list[str]:
    """What a scenario turned out to exercise."""
    own, summary = scenario["cluster"].get("speculation"), result.summary()
    if own is None or not summary.get("speculation", {}).get("drafted_tokens"):
        return []
    value = own.get("acceptance", own.get("length"))
    facts = {
        "drafts": True,
        "accepted": summary["speculation"]["accepted_tokens"] > 0,
        "all accepted": summary["speculation"]["acceptance_rate"] == 1,
        "by class": isinstance(value, dict) and len(value) > 1,
        "by position": "acceptance" in own and isinstance(value, list),
        "draft model": isinstance(own["draft"], dict),
        "preemption": summary["preemptions"] > 0,
        "polled signals": "poll_interval" in scenario.get("signals", {}),
        "tiers": "tiers" in summary,
        "split": "transfer" in summary,
        "evictions": any(one["evicted_blocks"] for one in summary["instances"]),
        "timed out": summary["requests"]["timed_out"] > 0,
        "in flight": summary["requests"]["in_flight"] > 0,
    }
    return [name for name, holds in facts.items() if holds]
