"""What a drawn scenario turned out to exercise, and what the scenarios of each family must exercise together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import control_draws
import headway
import life_draws
import pd_draws
import rank_draws
from drawn_scenarios import BELIEVING, LOOKING, PLAIN, ROUTESIM, SCHEDULERS, SCORERS
from headway.latency import MODELS
from tier_draws import OFFLOADS

Json = dict[str, Any]


def traits(scenario: Json, result: headway.Result) -> list[str]:
    """What a scenario turned out to exercise."""
    summary, columns = result.summary(), result.requests
    budget = scenario["cluster"]["max_batch_tokens"]
    fresh = [prompt - hit for prompt, hit in zip(columns["prompt_tokens"], columns["cached_tokens"], strict=True)]
    started = [at >= 0 for at in columns["started_ps"]]
    ends = {at for at in columns["finished_ps"] + columns["first_token_ps"] if at > 0}
    routing = scenario["policies"]["routing"]
    facts = {
        "preemption": summary["preemptions"] > 0,
        "eviction": any(one["evicted_blocks"] for one in summary["instances"]),
        "rejection": summary["requests"]["rejected"] > 0,
        "in flight at the horizon": summary["requests"]["in_flight"] > 0,
        "prefill in several chunks": any(one and size > budget for one, size in zip(started, fresh, strict=True)),
        "prefix hit": any(columns["cached_tokens"]),
        "arrival on a step's end": any(at in ends for at in columns["arrival_ps"]),
        "queueing": any(at > came for at, came in zip(columns["started_ps"], columns["arrival_ps"], strict=True)),
        "warm-up": scenario["warmup"] > 0,
        f"latency {scenario['cluster']['latency']['model']}": True,
        f"routing {routing if isinstance(routing, str) else routing['name']}": True,
        "polled signals": "poll_interval" in scenario.get("signals", {}),
        "outstanding load": scenario.get("signals", {}).get("effective_load") == "outstanding",
        "reported evictions": "kv_event_delay" in scenario.get("signals", {}),
        f"belief {scenario.get('signals', {}).get('belief')}": True,
        "several routers": "routers" in scenario,
        "routers that exchange": scenario.get("routers", {}).get("sync_interval") is not None,
        "asynchronous": scenario["cluster"].get("async_scheduling", False),
        "hidden host work": scenario["cluster"].get("latency", {}).get("host", "0s") not in ("0s", "0ms", "auto"),
        f"scheduler {scenario['policies'].get('scheduler', {'name': 'fcfs'})['name']}": True,
    }
    if "adapters" in summary:
        pairs = zip(columns["instance"], columns["adapter"], columns["started_ps"], strict=True)
        cold = {(index, name) for index, name, at in pairs if name and at >= 0}
        facts |= {"adapters": True, "adapter loaded again": summary["adapters"]["loads"] > len(cold)}
    if "tiers" in summary:
        facts |= tier_traits(scenario, result)
    if "transfer" in summary:
        facts |= pd_draws.split_traits(scenario, columns)
    if "dp" in scenario["cluster"]:
        facts |= rank_draws.rank_traits(scenario, result)
    if "scaling" in scenario:
        facts |= life_draws.life_traits(scenario, result)
    if "sessions" in scenario:
        facts |= session_traits(scenario, result)
    if "flow" in scenario["policies"]:
        facts |= control_traits(scenario, result)
    if isinstance(routing, dict) and routing["name"] == "weighted":
        facts |= {f"scorer {one['name']}": True for one in routing["scorers"]}
        facts |= {f"filter {one['name']}": True for one in routing["filters"]}
        facts["picker weighted-random"] = routing["picker"] != "max-score"
    return [name for name, holds in facts.items() if holds]


def session_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    columns = result.requests
    names = list(zip(columns["session"], columns["turn"], strict=True))
    ends = dict(zip(names, columns["finished_ps"], strict=True))
    came = zip(names, columns["arrival_ps"], strict=True)
    return {
        "follow-up at the very instant": any(ends.get((session, turn - 1)) == at for (session, turn), at in came),
        "sent again": len(set(names)) < len(names),
        "not issued": result.summary()["requests"]["not_issued"] > 0,
        "a fixed number of users": any(source["users"] is not None for source in scenario["sessions"]),
        "branches": any(one["after"] is not None for source in scenario["sessions"] for one in source["sessions"]),
        "cut off with turns to come": result.summary()["requests"]["in_flight"] > 0,
    }


def tier_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    summary, columns = result.summary(), result.requests
    tiers = [tier for name, tier in summary["tiers"].items() if name != "gpu"]
    kv = scenario["cluster"]["kv"]
    ends = zip(columns["outcome"], columns["started_ps"], columns["first_token_ps"], strict=True)
    return {
        "offload": any(one["stored_blocks"] for one in tiers),
        "load": any(one["loaded_blocks"] for one in tiers),
        "thrash": any(one["thrashed_blocks"] for one in tiers),
        "two tiers": len(tiers) > 1,
        f"offload {kv['offload']}": any(one["stored_blocks"] for one in tiers),
        "swap": kv["preemption"] == "swap" and summary["preemptions"] > 0,
        f"evict {kv['eviction']}": any(one["evicted_blocks"] for one in summary["instances"]),
        "gave up beside loads": any(one["loaded_blocks"] for one in tiers)
        and any(out == "timed_out" and began >= 0 > first for out, began, first in ends),
    }


def control_traits(scenario: Json, result: headway.Result) -> dict[str, bool]:
    columns, flow = result.requests, scenario["policies"]["flow"]
    arrived, admitted, routed = (columns[name] for name in ("arrival_ps", "admitted_ps", "routed_ps"))
    ends = list(zip(columns["outcome"], admitted, routed, columns["started_ps"], strict=True))
    figures = result.summary()["policy_metrics"]
    senders = scenario["workload"]["tenants"].values()
    facts = {f"{stage} {scenario['policies'][stage]['name']}": True for stage in control_draws.STAGES}
    if flow["name"] == "bands":
        facts |= {f"flow {key} {flow[key]}": True for key in ("by", "order", "fairness", "share", "saturation")}
    return facts | {
        "put off": any(at > came for at, came in zip(admitted, arrived, strict=True)),
        "waited at the router": any(at > came >= 0 for at, came in zip(routed, admitted, strict=True)),
        "time to live over": figures.get("flow_timed_out", 0) > 0,
        "turned away from the queue": figures.get("flow_turned_away", 0) > 0,
        "gave up before admission": any(out == "timed_out" and at < 0 for out, at, _, _ in ends),
        "gave up at the router": any(out == "timed_out" and at >= 0 > on for out, at, on, _ in ends),
        "gave up at an instance": any(out == "timed_out" and on >= 0 > began for out, _, on, began in ends),
        "gave up while it ran": any(out == "timed_out" and began >= 0 for out, _, _, began in ends),
        "sent again": result.summary()["requests"]["retried"] > 0,
        "a closed loop": any("closed_loop" in one for one in senders),
    }


CONTROLLED = (
    *(f"{stage} {name}" for stage, drawn in control_draws.STAGES.items() for name in drawn),
    *(f"flow by {name}" for name in ("class", "score")),
    *(f"flow order {name}" for name in ("fifo", "priority", "deadline")),
    *(f"flow fairness {name}" for name in ("strict", "round-robin", "weighted")),
    *(f"flow share {name}" for name in ("tokens", "requests")),
    *(f"flow saturation {name}" for name in ("never", "utilization", "concurrency")),
    *("put off", "waited at the router", "time to live over", "turned away from the queue", "sent again"),
    *("gave up before admission", "gave up at the router", "gave up at an instance", "gave up while it ran"),
    "a closed loop",
)
COMMON = ("preemption", "eviction", "prefill in several chunks", "prefix hit", "arrival on a step's end", "queueing")
USUAL = ("rejection", "in flight at the horizon", "warm-up")
TALKING = ("follow-up at the very instant", "sent again", "not issued", "a fixed number of users", "branches")
STORED = ("offload", "load", "thrash", "two tiers", *(f"offload {name}" for name in OFFLOADS))
# What is not always installed has a test of its own.
LATENCIES = tuple(f"latency {name}" for name in MODELS if name != "aiconfigurator")


def shares(family: str) -> dict[str, float]:
    """What the scenarios of a family must exercise, and in what share of many."""
    if family == "reporting":
        beliefs = tuple(f"belief {name}" for name in ("routed", "both", "stored"))
        others = ("polled signals", "several routers", "routers that exchange", "offload", "transfer")
        return dict.fromkeys((*COMMON, *beliefs), 0.05) | dict.fromkeys(others, 0.02)
    if family == "ranked":
        return dict.fromkeys((*COMMON, *rank_draws.SHOWN), 0.04)
    if family == "ahead":
        others = ("polled signals", "several routers", "offload", "transfer", "adapter loaded again", "swap")
        return dict.fromkeys((*COMMON, "hidden host work"), 0.05) | dict.fromkeys(others, 0.005)
    if family == "yielding":
        return {"preemption": 0.3, **dict.fromkeys(COMMON, 0.03), "asynchronous": 0.2, "adapters": 0.2}
    if family == "living":
        return dict.fromkeys(life_draws.SHOWN, 0.0075)
    if family == "controlled":
        usual = (*COMMON, "polled signals", "reported evictions", "adapter loaded again")
        return dict.fromkeys(CONTROLLED, 0.015) | dict.fromkeys(usual, 0.02)
    if family == "split":
        deciders = tuple(f"decider {name}" for name in pd_draws.DECIDERS)
        wanted = dict.fromkeys(pd_draws.SHOWN, 0.1) | dict.fromkeys(("handed over and not there", *deciders), 0.05)
        return wanted | dict.fromkeys(COMMON, 0.03) | dict.fromkeys(USUAL, 0.01)
    return {**USUAL_SHARES, **OWN_SHARES[family]}


USUAL_SHARES = {
    **dict.fromkeys(COMMON, 0.05),
    **dict.fromkeys(USUAL, 0.02),
    **dict.fromkeys(("polled signals", "reported evictions", "several routers", "routers that exchange"), 0.2),
    "outstanding load": 0.1,
    "scheduler fcfs": 0.3,
    **{f"scheduler {name}": 0.05 for name in SCHEDULERS},
    **{f"routing {name}": 0.03 for name in LOOKING},
    **{f"scorer {name}": 0.015 for name in SCORERS},
    **dict.fromkeys(("filter kv-below", "filter load-below", "filter load-spread", "picker weighted-random"), 0.015),
}
MODELLED = {
    **dict.fromkeys(LATENCIES, 0.08),
    **{f"routing {name}": 0.01 for name in (*PLAIN, *BELIEVING, *ROUTESIM)},
}
OWN_SHARES: Mapping[str, dict[str, float]] = {
    "synthetic": {**MODELLED, "adapter loaded again": 0.05},
    "traced": MODELLED,
    "coinciding": {"arrival on a step's end": 0.25, "preemption": 0.15},
    "sessions": {
        **dict.fromkeys(TALKING, 0.1),
        "arrival on a step's end": 0.25,
        "cut off with turns to come": 0.05,
    },
    "tiered": {
        **dict.fromkeys(STORED, 0.1),
        **dict.fromkeys(("evict lfu", "evict priority", "gave up beside loads"), 0.03),
        "swap": 0.01,
    },
}


def demand(family: str, seen: Counter[str]) -> None:
    """Raise unless the scenarios of a family have put the promise to the test: each trait has shown in its share of
    them. `seen` counts the scenarios that showed each trait."""
    wanted = {name: share * seen["scenarios"] for name, share in shares(family).items()}
    rare = {name: seen[name] for name, count in wanted.items() if seen[name] < count}
    assert not rare, f"{family}: seen too rarely in {seen['scenarios']} scenarios: {rare}"
