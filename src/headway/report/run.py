"""The results of one run for the terminal: latencies, then throughput, cache, scaling and cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.errors import worded
from headway.experiment.notes import note_no_figures
from headway.experiment.verdict import format_figure, has_slo
from headway.report.number_format import (
    GAP,
    count,
    figure_cells,
    figure_columns,
    hours,
    index,
    money,
    number,
    percent,
    share_column,
    span,
)
from headway.report.terminal import facts, latency_table, table, title
from headway.types import Json

LATENCIES = {"TTFT": "ttft", "TPOT": "tpot", "ITL": "itl", "E2E": "e2e", "queue wait": "queue_wait"}
GROUPS_AT_MOST = 8  # maximum number of groups, such as tenants, that a table shows
GROUP_WIDTH = 24  # maximum number of characters that are shown of a group's name


def run_report(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> RenderableType:
    """Return the results of one run."""
    parts: list[RenderableType] = [title(scenario), ""]
    if (warning := note_no_figures(summary, scenario["warmup"])) is not None:
        parts.extend((Text(warning), ""))
    parts += [latency_table(summary["latency"], LATENCIES), "", facts(run_facts(summary, scenario)), ""]
    for part in group_tables(summary, has_slo(scenario)):
        parts += [part, ""]
    return Group(*parts)


def group_tables(summary: Mapping[str, Any], slo: bool) -> list[RenderableType]:
    """Return tables of the largest tenants, classes, kinds and models, each only if there are several."""
    return [_groups(name, summary[name], slo) for name in ("tenants", "classes", "kinds", "models") if name in summary]


def _groups(name: str, groups: Sequence[Json], slo: bool) -> RenderableType:
    columns = figure_columns(
        "requests.arrived", "latency.ttft.mean", "latency.ttft.p99", "latency.tpot.p99", "latency.e2e.mean"
    )
    columns += [share_column(slo), *figure_columns("cache.token_hit_ratio")]
    largest = sorted(groups, key=lambda group: -group["requests"]["arrived"])[:GROUPS_AT_MOST]
    rows = [[group["id"], *figure_cells(group, columns)] for group in largest]
    grid = table(name, *(heading for _, heading, _ in columns), rows=rows, gap=1)
    grid.columns[0].max_width, grid.columns[0].overflow = GROUP_WIDTH, "ellipsis"
    left = len(groups) - len(largest)
    return (
        Group(grid, Text(f" and {left:,} more; {worded('use --json to see all', 'summary() has all')}"))
        if left
        else grid
    )


def run_facts(summary: Mapping[str, Any], scenario: Mapping[str, Any]) -> list[tuple[str, str]]:
    targets = scenario["slo"]
    if has_slo({**scenario, "slo": {}}):  # some tenants have their own targets, so no target applies to all requests
        targets = dict.fromkeys(targets)
    requests, throughput, cache = summary["requests"], summary["throughput"], summary["cache"]
    balance, slo, cost = summary["balance"], summary["slo"], summary["cost"]
    usd = GAP if cost["usd_per_1k_tokens"] is None else number(1000 * cost["usd_per_1k_tokens"], 3)
    ends = [f"{count(requests['completed'])} completed"]
    for outcome in ("rejected", "timed_out", "failed", "in_flight"):
        if requests[outcome]:
            ends.append(f"{count(requests[outcome])} {outcome.replace('_', ' ')}")
    rest = ""
    if requests["retried"]:
        rest += f"; {count(requests['retried'])} of them client retries"
    if requests["not_issued"]:
        rest += f"; {count(requests['not_issued'])} planned turns never sent"
    tokens = f"{count(throughput['input_tokens_per_s'])} in, {count(throughput['output_tokens_per_s'])} out"
    rows = [
        ("requests", f"{count(requests['arrived'])} arrived: {', '.join(ends)}{rest}"),
        ("throughput", f"{number(throughput['requests_per_s'], 2)} requests/s, tokens/s: {tokens}"),
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
    parts = {"prompt tokens": "token_hit_ratio", "blocks": "block_hit_ratio", "requests": "request_hit_ratio"}
    rows += [
        ("cache hits", ", ".join(f"{percent(cache[ratio])} of {part}" for part, ratio in parts.items())),
        ("preemptions", count(summary["preemptions"])),
        ("balance", f"Jain {index(balance['jain'])}, coefficient of variation {index(balance['cv'])}"),
    ]
    if "adapters" in summary:
        adapters = summary["adapters"]
        loads = f"{count(adapters['loads'])} loads, {number(adapters['load_s'])} s of step time"
        rows.append(("adapters", f"{count(adapters['requests'])} requests with an adapter, {loads}"))
    if (speculation := summary.get("speculation")) is not None and speculation["drafted_tokens"]:
        share, rate = percent(speculation["acceptance_rate"]), number(speculation["tokens_per_step"], 2)
        rows.append(("speculation", f"{share} of drafts accepted, {rate} tokens per decode and step"))
    for name, tier in summary.get("tiers", {}).items():
        rows.append((f"{name} tier", _tier(name, tier)))
    if "loads" in summary:
        loaded, wait = summary["loads"]["count"], summary["loads"]["wait"]
        took = f", {number(wait['mean'])} ms on average, p99 {number(wait['p99'])} ms" if loaded else ""
        rows.append(("KV loads", f"{count(loaded)}{took}"))
    if "transfer" in summary:
        rows.append(("KV transfers", _transfers(summary["transfer"])))
    if "fairness" in summary:
        even = summary["fairness"]
        tokens, goodput = index(even["jain_tokens"]), index(even["jain_goodput"])
        rows.append(("fairness", f"Jain {tokens} for tenants' tokens, {goodput} for their goodput shares"))
    if "scaling" in summary:
        rows += _scaling(summary["scaling"])
    busy, held = number(cost["gpu_seconds_per_request"], 3), count(cost["gpu_held_seconds"])
    rows.append(("cost", f"{busy} GPU-seconds per request, {held} held, ${usd} per 1M tokens"))
    rows.append(("spent", _spent(cost["usd"], summary["energy"])))
    own = [
        f"{name}={number(value, 0 if value == int(value) else 3)}"
        for name, value in (summary.get("policy_metrics") or {}).items()
    ]
    if own:
        rows.append(("policies", " ".join(own)))
    return rows


def _scaling(scaling: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return a row per pool with its replicas, and rows of faults and interrupted requests."""
    rows = []
    pools = scaling["pools"]
    for pool in pools:
        name = "replicas" if len(pools) == 1 else f"{pool['id']} replicas"
        bounds = span(pool["min_replicas"], pool["max_replicas"])
        text = (
            f"{number(pool['mean_replicas'], 2)} on average ({bounds}), {hours(pool['replica_seconds'])} replica-hours"
        )
        if pool["scale_ups"] or pool["scale_downs"]:
            plural = "s" * (pool["oscillations"] != 1)
            text += f"; {count(pool['scale_ups'])} × up, {count(pool['scale_downs'])} × down, "
            text += f"{count(pool['oscillations'])} oscillation{plural}"
        if (ready := pool["time_to_ready"]["mean"]) is not None:
            text += f"; ready in {number(ready / 1000)} s"
        rows.append((name, text))
    faults = [f"{times} {kind}" for kind, times in scaling["faults"].items() if times]
    words = (("failed", "failed"), ("retried", "retried"), ("redirected", "redirected"))
    lost = [f"{count(scaling[key])} {word}" for key, word in words if scaling[key]]
    return rows + [(name, ", ".join(parts)) for name, parts in (("faults", faults), ("interrupted", lost)) if parts]


def _spent(usd: float, energy: Mapping[str, Any]) -> str:
    text = f"${money(usd)}"
    if energy["kwh"] is not None:
        text += f" and {format_figure(energy['kwh'])} kWh"
    if energy["wh_per_request"] is not None:
        text += f", {format_figure(energy['wh_per_request'])} Wh per request"
    return text


def _transfers(section: Mapping[str, Any]) -> str:
    took = ""
    if section["count"]:
        wait, time = section["wait"], section["time"]
        took = f"; mean {number(wait['mean'])} ms before the transfer, {number(time['mean'])} ms transfer"
        took += (
            f" (p99 {number(wait['p99'])}, {number(time['p99'])}); links {percent(section['link_utilization'])} busy"
        )
    return f"{count(section['count'])}, {number(section['bytes'] / 1e9)} GB{took}"


def _tier(name: str, section: Mapping[str, Any]) -> str:
    hits, full = percent(section["hit_ratio"]), percent(section["utilization"])
    if name == "gpu":
        return f"{hits} of prompt tokens, without a load, {full} full"
    thrashed = f" ({count(section['thrashed_blocks'])} thrashed)" if section["thrashed_blocks"] else ""
    return (
        f"{hits} of prompt tokens; blocks: {count(section['stored_blocks'])} stored, "
        f"{count(section['loaded_blocks'])} loaded{thrashed}; {full} full, "
        f"{percent(section['peak_utilization'])} at most; link {percent(section['link_utilization'])} busy"
    )


def _sessions(section: Mapping[str, Any]) -> str:
    duration = section["duration"]
    lasting = "" if duration["mean"] is None else f", lasting {number(duration['mean'] / 1000)} s on average"
    turns = f"{number(section['turns'])} turns each"
    return f"{count(section['count'])} of {turns}, {count(section['completed'])} completed{lasting}"
