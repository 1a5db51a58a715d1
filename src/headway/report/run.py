"""What one run gave, as a page for people: latencies, then what they cost and how they were reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.experiment.notes import note
from headway.experiment.verdict import has_slo, written
from headway.report.terminal import GAP, facts, hours, money, number, percent, span, table, title

LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"), ("queue wait", "queue_wait"))
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
GROUPS_AT_MOST = 8  # tenants that a terminal shows
GROUP_WIDTH = 24  # characters of a tenant's name


def run_report(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> RenderableType:
    """What one run gave: latencies, then what they cost and how they were reached."""
    latencies = table("ms", *STATISTICS)
    for name, key in LATENCIES:
        values = summary["latency"][key]
        latencies.add_row(Text(name), *(number(values[statistic]) for statistic in STATISTICS))
    parts: list[RenderableType] = [title(scenario), ""]
    said = note(summary, scenario["warmup"])
    if said is not None:
        parts.extend((Text(said), ""))
    parts += [latencies, "", facts(run_facts(summary, scenario)), ""]
    for name in ("tenants", "classes", "kinds", "models"):
        if name in summary:
            parts += [groups(name, summary[name], has_slo(scenario)), ""]
    return Group(*parts)


def groups(name: str, found: Sequence[Mapping[str, Any]], slo: bool) -> RenderableType:
    """The tenants, classes, kinds or models with the most requests, a line each."""
    shown = sorted(found, key=lambda one: -one["requests"]["arrived"])[:GROUPS_AT_MOST]
    served = "goodput\nshare" if slo else "served\nshare"
    headings = ("requests\n", "TTFT ms\nmean", "\np99", "TPOT ms\np99", "E2E ms\nmean", served, "cache\nhits")
    made = table(name, *headings, gap=1)
    made.columns[0].max_width, made.columns[0].overflow = GROUP_WIDTH, "ellipsis"
    for one in shown:
        latency = one["latency"]
        made.add_row(
            Text(one["id"]),
            number(one["requests"]["arrived"], 0),
            number(latency["ttft"]["mean"]),
            number(latency["ttft"]["p99"]),
            number(latency["tpot"]["p99"]),
            number(latency["e2e"]["mean"]),
            percent(one["slo"]["goodput_ratio"]),
            percent(one["cache"]["token_hit_ratio"]),
        )
    left = len(found) - len(shown)
    return Group(made, Text(f" and {left:,} more, with --json")) if left else made


def run_facts(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> list[tuple[str, str]]:
    targets = scenario["slo"]
    if has_slo({**scenario, "slo": {}}):  # a tenant has its own: no one target is everybody's
        targets = dict.fromkeys(targets)
    requests, throughput, cache = summary["requests"], summary["throughput"], summary["cache"]
    balance, slo, cost = summary["balance"], summary["slo"], summary["cost"]
    usd = GAP if cost["usd_per_1k_tokens"] is None else number(1000 * cost["usd_per_1k_tokens"], 3)
    ends = [f"{number(requests['completed'], 0)} completed"]
    for outcome in ("rejected", "timed_out", "failed", "in_flight"):
        if requests[outcome]:
            ends.append(f"{number(requests[outcome], 0)} {outcome.replace('_', ' ')}")
    rest = ""
    if requests["retried"]:
        rest += f"; {number(requests['retried'], 0)} of them sent again"
    if requests["not_issued"]:
        rest += f"; {number(requests['not_issued'], 0)} turns of sessions never came"
    rows = [
        ("requests", f"{number(requests['arrived'], 0)} arrived: {', '.join(ends)}{rest}"),
        (
            "throughput",
            f"{number(throughput['requests_per_s'], 2)} requests/s, tokens/s: "
            f"{number(throughput['input_tokens_per_s'], 0)} in, {number(throughput['output_tokens_per_s'], 0)} out",
        ),
    ]
    if "sessions" in summary:
        rows.append(("sessions", _sessions(summary["sessions"])))
    met = []
    for name, target in targets.items():
        share = slo[f"{name}_attainment"]
        if target is not None:
            met.append(f"{name.upper()} ≤ {target} {percent(share)}")
        elif share is not None:
            met.append(f"{name.upper()} by tenant {percent(share)}")
    if met:
        rows.append(("goodput", f"{number(slo['goodput_requests_per_s'], 2)} requests/s within the SLO"))
        rows.append(("SLO met", ", ".join(met)))
    rows.append(
        (
            "cache hits",
            f"{percent(cache['token_hit_ratio'])} of prompt tokens, {percent(cache['block_hit_ratio'])} of blocks, "
            f"{percent(cache['request_hit_ratio'])} of requests",
        )
    )
    rows.append(("preemptions", number(summary["preemptions"], 0)))
    rows.append(("balance", f"Jain {number(balance['jain'], 3)}, coefficient of variation {number(balance['cv'], 3)}"))
    if "adapters" in summary:
        found = summary["adapters"]
        loads = f"{number(found['loads'], 0)} loads, {number(found['load_s'])} s of steps"
        rows.append(("adapters", f"{number(found['requests'], 0)} requests with one, {loads}"))
    for name, tier in summary.get("tiers", {}).items():
        rows.append((f"{name} tier", _gpu_tier(tier) if name == "gpu" else _tier(tier)))
    if "loads" in summary:
        count, wait = summary["loads"]["count"], summary["loads"]["wait"]
        took = f", {number(wait['mean'])} ms on average, p99 {number(wait['p99'])} ms" if count else ""
        rows.append(("KV loads", f"{number(count, 0)}{took}"))
    if "transfer" in summary:
        rows.append(("KV transfers", _transfers(summary["transfer"])))
    if "fairness" in summary:
        even = summary["fairness"]
        tokens, goodput = number(even["jain_tokens"], 3), number(even["jain_goodput"], 3)
        rows.append(("fairness", f"Jain {tokens} of tenants' tokens, {goodput} of their goodput shares"))
    if "scaling" in summary:
        rows += _scaling(summary["scaling"])
    rows.append(
        (
            "cost",
            f"{number(cost['gpu_seconds_per_request'], 3)} GPU-seconds a request, "
            f"{number(cost['gpu_held_seconds'], 0)} held, ${usd} per million tokens",
        )
    )
    rows.append(("spent", _spent(cost["usd"], summary["energy"])))
    own = [
        f"{name}={number(value, 0 if value == int(value) else 3)}"
        for name, value in (summary.get("policy_metrics") or {}).items()
    ]
    if own:
        rows.append(("policies", " ".join(own)))
    return rows


def _scaling(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What came and went, a line a pool; and what became of the requests of those that went."""
    rows = []
    pools = found["pools"]
    for pool in pools:
        name = "replicas" if len(pools) == 1 else f"{pool['id']} replicas"
        bounds = span(pool["min_replicas"], pool["max_replicas"])
        said = f"{number(pool['mean_replicas'], 2)} on average ({bounds})"
        said += f", {hours(pool['replica_seconds'])} replica-hours"
        if pool["scale_ups"] or pool["scale_downs"]:
            many = "s" * (pool["oscillations"] != 1)
            said += f"; {number(pool['scale_ups'], 0)} × up, {number(pool['scale_downs'], 0)} × down, "
            said += f"{number(pool['oscillations'], 0)} oscillation{many}"
        if (ready := pool["time_to_ready"]["mean"]) is not None:
            said += f"; ready in {number(ready / 1000)} s"
        rows.append((name, said))
    struck = [f"{count} {kind}" for kind, count in found["faults"].items() if count]
    words = (("failed", "failed"), ("retried", "sent again"), ("redirected", "sent on"))
    lost = [f"{number(found[key], 0)} {word}" for key, word in words if found[key]]
    if struck:
        rows.append(("faults", ", ".join(struck)))
    if lost:
        rows.append(("interrupted", f"{', '.join(lost)}"))
    return rows


def _spent(usd: float, energy: Mapping[str, Any]) -> str:
    said = f"${money(usd)}"
    if energy["kwh"] is not None:
        said += f" and {written(energy['kwh'])} kWh"
    return said if energy["wh_per_request"] is None else f"{said}, {written(energy['wh_per_request'])} Wh a request"


def _transfers(found: Mapping[str, Any]) -> str:
    took = ""
    if found["count"]:
        wait, time = found["wait"], found["time"]
        took = f"; mean {number(wait['mean'])} ms before they begin, {number(time['mean'])} ms on the way"
        took += f" (p99 {number(wait['p99'])}, {number(time['p99'])}); links {percent(found['link_utilization'])} busy"
    return f"{number(found['count'], 0)}, {number(found['bytes'] / 1e9)} GB{took}"


def _gpu_tier(tier: Mapping[str, Any]) -> str:
    return f"{percent(tier['hit_ratio'])} of prompt tokens, found without a load, {percent(tier['utilization'])} full"


def _tier(found: Mapping[str, Any]) -> str:
    thrashed = f" ({number(found['thrashed_blocks'], 0)} thrashed)" if found["thrashed_blocks"] else ""
    return (
        f"{percent(found['hit_ratio'])} of prompt tokens; blocks: {number(found['stored_blocks'], 0)} stored, "
        f"{number(found['loaded_blocks'], 0)} loaded{thrashed}; {percent(found['utilization'])} full, "
        f"{percent(found['peak_utilization'])} at most; link {percent(found['link_utilization'])} busy"
    )


def _sessions(found: Mapping[str, Any]) -> str:
    duration = found["duration"]
    lasting = "" if duration["mean"] is None else f", lasting {number(duration['mean'] / 1000)} s on average"
    turns = f"{number(found['turns'])} turns each"
    return f"{number(found['count'], 0)} of {turns}, {number(found['completed'], 0)} completed{lasting}"
