"""For each row of the interface that the policies of a router and its engines have: a program that uses it, in the
simulator and, where a gateway has the stage, behind a gateway with the same decisions."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")

import both_worlds

import headway

Json = dict[str, Any]
TENANTS = {"steady": {"weight": 1, "priority": "realtime"}, "bulk": {"weight": 1, "priority": "batch"}}
WORKLOAD: Json = {
    "requests": 60,
    "rate": "150/s",
    "prompt_tokens": {"dist": "uniform", "min": 40, "max": 900},
    "output_tokens": {"dist": "uniform", "min": 4, "max": 60},
    "prefix": {"groups": 3, "tokens": 256},
    "tenants": TENANTS,
}
PLAIN: Json = {
    "seed": 3,
    "workload": WORKLOAD,
    "cluster": {
        "instances": 4,
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "max_batch_size": 6,
        "kv": {"gpu_blocks": 220},
    },
    "signals": {"poll_interval": "50ms"},
}


def scenario(policies: Json, changes: Json | None = None) -> Json:
    return {**PLAIN, **(changes or {}), "policies": policies}


def by_value(expression: str, before: str = "") -> str:
    """A program that sends each request where the expression's value says, so that decisions show the value."""
    lines = "".join(f"    {line}\n" for line in before.splitlines())
    return (
        f"def score(request, instance, cluster):\n{lines}    value = {expression}\n"
        "    value = 0.37 if value is None else value\n"
        "    return (value * 997.3 + 13 * instance.index + request.prompt_tokens) % 11\n"
    )


TIERED = {
    "cluster": {
        **PLAIN["cluster"],
        "kv": {"gpu_blocks": 120, "tiers": {"cpu": {"blocks": 400}}},
    }
}
ADAPTED = {
    "workload": {**WORKLOAD, "adapters": ["a", "b", "c", "d"]},
    "cluster": {**PLAIN["cluster"], "adapters": {"slots": 2, "load_time": "5ms"}},
}
PATIENT = {"workload": {**WORKLOAD, "timeout": "9s"}}
ROOMY = {"cluster": {**PLAIN["cluster"], "kv": {"gpu_blocks": 20_000}}}  # the belief alone evicts
SMALL = {"lru_blocks": 60}
CHATS = {"workload": {**WORKLOAD, "requests": 60, "kind": {"kind": "chat", "turns": 3, "think_time": "200ms"}}}

# Rows of the table of a field: expression, changes of the scenario.
READS: dict[str, tuple[str, Json]] = {
    "tenant: request count": ("tenant(request).requests", {}),
    "tenant: active requests": ("tenant(request).active", {}),
    "tenant: recent rate": ("tenant(request).rate", {}),
    "tenant: class": ("1 if tenant(request).slo_class == 'batch' else 0.2", {}),
    "tenant: burst": ("1 if tenant(request).burst else 0.2", {}),
    "tenants: all of them": ("sum(cluster.tenants[name].active for name in cluster.tenants)", {}),
    "router: in flight": ("cluster.totals.inflight", {}),
    "router: queued": ("cluster.totals.queued + cluster.totals.inflight", {}),
    "router: throughput": ("cluster.totals.throughput", {}),
    "router: request rate": ("cluster.totals.rate", {}),
    "history: a window of the router": ("rate_over(cluster.totals, 0.3) + throughput_over(cluster.totals, 1.7)", {}),
    "history: a window of a tenant": ("rate_over(tenant(request), 0.4)", {}),
    "observed KV: utilization of the GPU": ("instance.kv_utilization", {}),
    "observed KV: utilization of a tier": ("tier_utilization(instance, 'cpu')", TIERED),
    "observed KV: blocks of a tier": ("instance.tier_used.get('cpu', 0) + len(instance.tier_blocks)", TIERED),
    "observed KV: free blocks": ("instance.free_blocks", {}),
    "observed KV: hit rate": ("instance.hit_rate", {}),
    "observed KV: offload rate": ("instance.offload_rate", TIERED),
    "observed KV: reload rate": ("instance.reload_rate", TIERED),
    "shadow KV: cached prefix": ("cached_tokens(instance)", ROOMY),
    "shadow KV: cached prefix by tier": ("cached_within(instance, 'gpu') + cached_within(instance, 'storage')", ROOMY),
    "shadow KV: estimated utilization": ("believed_blocks(instance)", ROOMY),
    "shadow KV: eviction queue": ("sum(blocks * 3 + mine for blocks, mine in eviction_order(instance, 4))", ROOMY),
    "shadow KV: last access": ("cluster.now - (last_access(instance) or 0)", ROOMY),
    "instance: identity": ("instance.index * 0.77", {}),
    "instance: pool, role, state and model": (
        "len([x for x in (instance.pool, instance.role, instance.state, instance.model) if x == 'both'])",
        {},
    ),
    "instance: queue depth": ("instance.queued", {}),
    "instance: batch size": ("instance.running", {}),
    "instance: in flight": ("instance.inflight", {}),
    "instance: tokens in flight": ("instance.inflight_tokens + instance.decode_tokens", {}),
    "instance: recent TTFT": ("instance.recent_ttft", {}),
    "instance: recent TPOT": ("instance.recent_tpot", {}),
    "instance: tokens per second": ("instance.tokens_per_second", {}),
    "instance: available capacity": ("instance.free_sequences + instance.capacity", {}),
    "instance: estimated wait": ("instance.estimated_wait", {}),
    "instance: estimated TTFT": ("estimated_ttft(instance, request.prompt_tokens - cached_tokens(instance))", ROOMY),
    "instance: cost": ("instance.usd_per_hour / (1 + instance.inflight)", {}),
    "instance: watts": ("instance.watts", {}),
    "instance: adapters": ("(request.adapter in instance.adapters) + instance.adapter_slots + 0.5", ADAPTED),
    "instance: age of the report": ("cluster.now - (instance.observed or 0)", {}),
    "instance: expected output": ("instance.expected_output_tokens + instance.expected_kv_tokens", {}),
    "request: session and turn": ("request.turn + (0 if request.session is None else len(request.session))", CHATS),
    "request: deadline": ("(request.deadline or cluster.now) - cluster.now", PATIENT),
    "request: tenant, class and kind": ("len(request.tenant + request.slo_class + request.kind)", {}),
    "request: limit and prefix": ("(request.max_tokens or 7) + request.shared_prefix_tokens", {}),
    "request: expected length": ("cluster.expected_tokens + (cluster.expected_error or 0.3)", {}),
    "routing: the priority score": ("cluster.priority.score", {}),
    "routing: hints": ("cluster.priority.hints.get('weight', 0) + len(cluster.priority.hints)", {}),
}
PRIORITY = (
    "def prioritise(request, cluster):\n"
    "    weight = 2 if request.slo_class == 'realtime' else 1\n"
    "    return (weight * request.prompt_tokens, {'weight': weight, 'tokens': request.prompt_tokens})\n"
)


def alike(policies: Json, changes: Json) -> tuple[list[Any], Any]:
    """Run in both worlds, and return the decisions and the simulation's result."""
    script, result = both_worlds.simulated(scenario(policies, changes))
    decisions = both_worlds.live(script, policies)
    for one, other in zip(decisions, script.decisions, strict=True):
        assert one == other
    return decisions, result


def code(source: str, **keys: Any) -> Json:
    return {"name": "code", "source": source, **keys}


def targets(decisions: list[Any]) -> set[str]:
    return {answer[1] for _, answer in decisions if answer is not None and answer[0] == "route"}


STATIC_ROWS = ("instance: identity", "instance: pool, role, state and model", "request: deadline")


def reading(expression: str) -> Json:
    return {"routing": code(by_value(expression), **SMALL), "priority": code(PRIORITY)}


@cache
def without(changes: str) -> list[Any]:
    """The decisions of a program that reads nothing."""
    script, _ = both_worlds.simulated(scenario(reading("0.37"), json.loads(changes)))
    return script.decisions


@pytest.mark.parametrize("row", READS)
def test_a_program_reads_it_alike_in_both_worlds(row: str) -> None:
    expression, changes = READS[row]
    decisions, _ = alike(reading(expression), changes)
    assert len(decisions) >= 60 and len(targets(decisions)) > 1
    if row not in STATIC_ROWS:
        assert decisions != without(json.dumps(changes))


def test_tiers_that_nothing_reports_are_empty_in_both_worlds() -> None:
    tiers = "tier_utilization(instance, 'cpu') + instance.tier_used.get('cpu', 0) + len(instance.tier_blocks)"
    beliefs = "cached_tokens(instance) - cached_within(instance, 'gpu') + instance.offload_rate + instance.reload_rate"
    decisions, _ = alike(reading(f"0.37 + {tiers} + {beliefs}"), {})
    assert decisions == without("{}")


# Rows of what a stage returns: policies, changes of the scenario.
PAIRS = {
    "cluster": {
        "model": "llama-3.1-8b",
        "gpu": "h200",
        "architecture": "disaggregated",
        "prefill": {"instances": 2},
        "decode": {"instances": 2},
    }
}
ADMITS = "def admit(request, cluster):\n"
ROUTES = "def route(request, instances, cluster):\n"
DECIDES: dict[str, tuple[Json, Json, str]] = {
    "admission: admit or reject": (
        {"admission": code(ADMITS + "    return request.prompt_tokens < 500 or cluster.totals.inflight < 3\n")},
        {},
        "reject",
    ),
    "admission: reject with a reason": (
        {
            "admission": code(
                ADMITS + "    return True if request.turn % 2 or request.prompt_tokens < 300 else reject('429: long')\n"
            )
        },
        {},
        "reject",
    ),
    "admission: delay": (
        {
            "admission": code(
                ADMITS + "    if request.prompt_tokens > 400 and cluster.now - request.arrival < 0.2:\n"
                "        return 0.15\n    return True\n"
            )
        },
        {},
        "None",
    ),
    "routing: reject": (
        {
            "routing": code(
                ROUTES + "    return reject('503: no') if request.prompt_tokens > 700 else request.turn % 4\n"
            )
        },
        {},
        "reject",
    ),
    "routing: priority and reason": (
        {
            "routing": code(
                ROUTES + "    return send(instances[1], priority=request.prompt_tokens / 7, reason='short')\n"
            )
        },
        {},
        "short",
    ),
    "routing: a pair": (
        {
            "routing": code(
                ROUTES + "    first = [one for one in instances if one.role == 'prefill']\n"
                "    then = [one for one in instances if one.role == 'decode']\n"
                "    one = min(first, key=lambda one: (one.inflight, one.index))\n"
                "    return send(then[request.prompt_tokens % 2], prefill=one, reason='pair')\n"
            )
        },
        PAIRS,
        "pair",
    ),
    "decider: split or whole": (
        {
            "decider": code(
                "def apart(request, instance, cluster):\n"
                "    uncached = request.prompt_tokens - cached_tokens(instance)\n"
                "    return uncached > 300 and instance.inflight < 4\n"
            )
        },
        PAIRS,
        "prefill",
    ),
    "decider: whole elsewhere": (
        {
            "decider": code(
                "def apart(request, instance, cluster):\n"
                "    if request.prompt_tokens > 300:\n        return True\n"
                "    others = [one for one in cluster.instances if one.role == 'decode']\n"
                "    return max(others, key=lambda one: one.index)\n"
            )
        },
        PAIRS,
        "kept whole by",
    ),
    "estimator: learned from what ended": (
        {
            "estimator": code(
                "def estimate(request, cluster):\n"
                "    return (recall(request.slo_class, 100), 0.5)\n"
                "def finished(request, instance, tokens, outcome):\n"
                "    if outcome == 'completed':\n"
                "        mean = recall(request.slo_class, tokens)\n"
                "        remember(request.slo_class, mean + 0.3 * (tokens - mean))\n"
            ),
            "routing": code(by_value("cluster.expected_tokens + instance.expected_output_tokens")),
        },
        {},
        "instance",
    ),
    "events: routed, first token, finished": (
        {
            "routing": code(
                by_value("recall(instance.index, 0)")
                + "def routed(request, instance):\n    remember(instance.index, recall(instance.index, 0) + 1)\n"
                "def first_token(request, instance):\n    remember(instance.index, recall(instance.index, 0) + 0.5)\n"
                "def finished(request, instance, tokens, outcome):\n"
                "    remember(instance.index, recall(instance.index, 0) + tokens)\n"
            )
        },
        {},
        "instance",
    ),
}


@pytest.mark.parametrize("row", DECIDES)
def test_a_program_decides_it_alike_in_both_worlds(row: str) -> None:
    policies, changes, word = DECIDES[row]
    decisions, _ = alike({"routing": "least-loaded", **policies}, changes)
    assert any(word in str(answer) for _, answer in decisions)
    assert len({str(answer) for _, answer in decisions}) > 1


SCORES: dict[str, str] = {
    "routing: terms of scores": (
        "def score(request, instance, cluster):\n    warm = score_term('warm', cached_tokens(instance) / 16)\n"
        "    return warm - score_term('load', 40 * instance.inflight)\n"
    ),
    "routing: what was filtered out": (
        ROUTES + "    free = [one if one.inflight < 4 else filtered_out('full', one) for one in instances]\n"
        "    free = [one for one in free if one.inflight < 4]\n"
        "    return max(free or instances, key=lambda one: score_term('idle', -one.inflight, one))\n"
    ),
}


@pytest.mark.parametrize("row", SCORES)
def test_a_program_explains_its_decisions_alike_in_both_worlds(row: str) -> None:
    policies, cards = {"routing": code(SCORES[row], **SMALL)}, both_worlds.Cards()
    script, _ = both_worlds.simulated(scenario(policies), cards)
    live = both_worlds.Cards()
    decisions = both_worlds.live(script, policies, live)
    assert decisions == script.decisions and cards.cards == live.cards
    first = cards.cards[0][1]
    assert len(cards.cards) == len(decisions) and len(first["scores"]) > 1 and len(first["left"]) > 1
    assert any(card["removed"] for _, card in cards.cards) == ("filtered" in row)


# --- the leap, and trees ---------------------------------------------------------------------------------------------


def requests(result: Any) -> Json:
    return {name: result.requests[name] for name in result.requests}


LEAPT: dict[str, tuple[Json, Json]] = {
    **{
        row: DECIDES[row][:2]
        for row in ("decider: whole elsewhere", "estimator: learned from what ended", "routing: a pair")
    },
    "last access": (reading(READS["shadow KV: last access"][0]), ROOMY),
}


@pytest.mark.parametrize("row", LEAPT)
def test_the_leap_equals_the_walk_and_random_cuts(row: str) -> None:
    policies, changes = LEAPT[row]
    found = []
    for leap in (True, False, "random-cuts"):
        given = scenario({"routing": "least-loaded", **policies}, {**changes, "leap": leap})
        result = headway.simulate({**given, "routers": {"count": 2, "sync_interval": "50ms"}})
        found.append((requests(result), result.summary()))
    assert found[0] == found[1] == found[2]


TREES: dict[str, tuple[str, Any, str, Json]] = {
    "decider": (
        "decider",
        {"if": "request.prompt_tokens - cached_tokens(instance) > 300", "then": "split", "else": "whole"},
        "def apart(request, instance, cluster):\n    return request.prompt_tokens - cached_tokens(instance) > 300\n",
        PAIRS,
    ),
    "estimator": (
        "estimator",
        {"if": "request.slo_class == 'batch'", "then": 50, "else": "request.prompt_tokens / 10"},
        "def estimate(request, cluster):\n"
        "    return 50 if request.slo_class == 'batch' else request.prompt_tokens / 10\n",
        {},
    ),
    "scheduler": (
        "scheduler",
        {
            "if": "engine.kv_utilization > 0.6",
            "then": "ticket.request.prompt_tokens",
            "else": "-ticket.request.prompt_tokens + engine.now",
        },
        "def key(ticket, engine):\n    if engine.kv_utilization > 0.6:\n        return ticket.request.prompt_tokens\n"
        "    return -ticket.request.prompt_tokens + engine.now\n",
        {"workload": {**WORKLOAD, "rate": "400/s"}},
    ),
    "routing": (
        "routing",
        {"value": "instance.tier_used.get('cpu', 0) - 3 * instance.inflight - instance.usd_per_hour"},
        "def score(request, instance, cluster):\n"
        "    return instance.tier_used.get('cpu', 0) - 3 * instance.inflight - instance.usd_per_hour\n",
        TIERED,
    ),
}


@pytest.mark.parametrize("row", TREES)
def test_a_tree_has_the_same_signals_and_stages(row: str) -> None:
    stage, tree, source, changes = TREES[row]
    found = []
    for spec in ({"name": "tree", "tree": tree}, code(source)):
        policies = {"routing": "least-loaded", "estimator": "constant", stage: spec}
        found.append(requests(headway.simulate(scenario(policies, changes))))
    found.append(requests(headway.simulate(scenario({"routing": "least-loaded"}, changes))))
    assert found[0] == found[1]
    assert stage == "estimator" or found[0] != found[2]
