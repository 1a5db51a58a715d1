"""Results as tables for people, at home in 80 columns. Everything here reads plain summaries and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.contenders import stage_label
from headway.experiment.notes import note
from headway.experiment.verdict import has_slo, written
from headway.overrides import DEFAULT_POLICIES
from headway.results import ranking

Column = tuple[str, str, Callable[[float | None], str]]  # a figure's path, its heading, how it is written

LATENCIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("ITL", "itl"), ("E2E", "e2e"), ("queue wait", "queue_wait"))
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
GAP = "–"
GROUPS_AT_MOST = 8  # tenants that a terminal shows
NAME_AT_LEAST, NAME_AT_MOST = 12, 28  # characters of its name in a line


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands marked; large ones need no decimals."""
    if value is None:
        return GAP
    return f"{value:,.{0 if abs(value) >= 1000 else digits}f}"


def percent(share: float | None) -> str:
    return GAP if share is None else f"{100 * share:.1f} %"


def table(*headers: str, gap: int = 2) -> Table:
    """A borderless table: words to the left, figures to the right."""
    made = Table(box=None, padding=(0, gap - 1, 0, 1), header_style="bold", pad_edge=True)
    for position, header in enumerate(headers):
        made.add_column(Text(header), justify="left" if position == 0 else "right", no_wrap=True)
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    made = Table(box=None, padding=(0, 1), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(name), Text(value))
    return made


def title(scenario: Mapping[str, Any], but: str = "") -> RenderableType:
    """What was run: the cluster, how its step times are made and who decided, `but` for the stage that is compared."""
    cluster = scenario["cluster"]
    deployments = cluster.get("deployments")
    pools = [cluster] if deployments is None else list(deployments.values())
    pools = [half for pool in pools for half in _halves(pool)]
    gpus = sum(pool["instances"] * pool["tp"] for pool in pools)
    size = f"{'; '.join(map(_pool, pools))} ({gpus:,} GPU{'s' if gpus > 1 else ''})"
    how = f"step times: {', '.join(dict.fromkeys(pool['latency']['model'] for pool in pools))}"
    for stage, spec in scenario["policies"].items():
        label = stage_label(stage, spec)
        if stage != but and (stage == "routing" or label != DEFAULT_POLICIES[stage]):
            how += f"; {stage}: {label}"
    if "routers" in scenario:
        how += f"; {scenario['routers']['count']} routers"
    if scenario.get("signals", {}).get("poll_interval"):
        how += f"; polled every {scenario['signals']['poll_interval']}"
    return Group(Text(f"{scenario['name']}: {size}", style="bold"), Text(how))


def _halves(pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The two kinds of equal instances of a disaggregated deployment, or the one of another."""
    if "prefill" not in pool:
        return [pool]
    return [{**pool[role], "model": pool["model"], "role": f"{role} "} for role in ("prefill", "decode")]


def _pool(pool: Mapping[str, Any]) -> str:
    """Equal instances, in words."""
    model, gpu = (
        each if isinstance(each, str) else each.get("name", "custom") for each in (pool["model"], pool["gpu"])
    )
    count = pool["instances"]
    many = count > 1
    return f"{count:,} {pool.get('role', '')}instance{'s' * many} of {model}, {'each ' * many}on {pool['tp']} × {gpu}"


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
    targets = scenario["slo"]
    if has_slo({**scenario, "slo": {}}):  # a tenant has its own: no one target is everybody's
        targets = dict.fromkeys(targets)
    parts += [latencies, "", facts(run_facts(summary, targets)), ""]
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
    made.columns[0].max_width, made.columns[0].overflow = NAME_AT_MOST - 4, "ellipsis"
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


def run_facts(summary: Mapping[str, Any], targets: Mapping[str, Any]) -> list[tuple[str, str]]:
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
    rows.append(
        (
            "cost",
            f"{number(cost['gpu_seconds_per_request'], 3)} GPU-seconds a request, "
            f"{number(cost['gpu_held_seconds'], 0)} held, ${usd} per million tokens",
        )
    )
    own = [
        f"{name}={number(value, 0 if value == int(value) else 3)}"
        for name, value in (summary.get("policy_metrics") or {}).items()
    ]
    if own:
        rows.append(("policies", " ".join(own)))
    return rows


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


class _Ranking:
    """One row a policy. In a narrow terminal the last figures go, since without its policy no figure says anything."""

    def __init__(self, found: Comparison, fairness: bool = False) -> None:
        self.found = found
        self.fairness = fairness

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.update(max_width=10_000)
        shown = _columns(self.found, self.fairness)
        while len(shown) > 1:
            narrowest = _ranking(self.found, shown, NAME_AT_LEAST)
            if Measurement.get(console, wide, narrowest).maximum <= options.max_width:
                break
            shown.pop()
        yield _ranking(self.found, shown, NAME_AT_MOST)


def _columns(found: Comparison, fairness: bool) -> list[Column]:
    """The figures of a comparison, the one that it is ranked by among them."""
    even: Column = ("fairness.jain_goodput", "tenants'\nJain", lambda share: number(share, 3))
    usual: list[Column] = [
        *figures([summary for _, summary in found.ranked], has_slo(found.scenario)),
        *([even] if fairness else []),
        ("cache.token_hit_ratio", "cache\nhits", percent),
        ("balance.jain", "Jain\nindex", lambda share: number(share, 3)),
    ]
    if found.by is None or any(path == found.by for path, _, _ in usual):
        return usual
    section, _, name = found.by.rpartition(".")
    return [(found.by, f"{section}\n{name}", lambda it: GAP if it is None else written(it)), *usual]


def figures(summaries: Iterable[Mapping[str, Any]], slo: bool) -> list[Column]:
    """The figures of runs, or of groups of requests; how many were lost where any were."""
    outcomes = [summary["requests"] for summary in summaries]
    lost = [name for name in ("rejected", "timed_out", "failed") if any(counts[name] for counts in outcomes)]
    return [
        ("latency.ttft.mean", "TTFT ms\nmean", number),
        ("latency.ttft.p99", "\np99", number),
        ("latency.tpot.p99", "TPOT ms\np99", number),
        ("latency.e2e.mean", "E2E ms\nmean", number),
        ("slo.goodput_ratio", "goodput\nshare" if slo else "served\nshare", percent),
        *((f"requests.{name}", name.replace("_", "\n") if "_" in name else f"\n{name}", _count) for name in lost),
    ]


def _count(value: float | None) -> str:
    return number(value, 0)


def _ranking(found: Comparison, shown: list[Column], name_width: int) -> Table:
    kind = "policy" if found.stage == "routing" else found.stage
    made = table("", kind, *(heading for _, heading, _ in shown), gap=1)
    names = made.columns[1]
    names.justify, names.max_width = "left", name_width
    names.no_wrap, names.overflow = False, "fold"  # parameters may be all that tells two policies apart
    for name, summary in found.ranked:
        best = name == found.best
        row = [write(ranking.value(summary, path)) for path, _, write in shown]
        label = Text(f"{name} (oracle)" if name in found.oracles else name)
        made.add_row("▸" if best else "", label, *row, style="bold" if best else None)
    return made


def comparison_report(found: Comparison, per: str | None = None) -> RenderableType:
    """One row a policy, best first, the winner marked; below, where asked for, one for each policy and tenant or
    class."""
    ranking = _Ranking(found, fairness=per == "tenant" and bool(found.per(per)))
    parts: list[RenderableType] = [title(found.scenario, found.stage), "", ranking, ""]
    if per is not None:
        parts += [_per(found, per), ""]
    return Group(*parts, Text(found.verdict))


def _per(found: Comparison, whom: str) -> RenderableType:
    rows = found.per(whom)
    if not rows:
        return Text(f"All requests are of one {whom}: there is nothing to tell apart.")
    shown = figures(rows, has_slo(found.scenario))
    made = table("policy" if found.stage == "routing" else found.stage, whom, *(head for _, head, _ in shown), gap=1)
    for column in made.columns[:2]:
        column.justify, column.max_width, column.overflow = "left", NAME_AT_MOST - 10, "fold"
        column.no_wrap = False
    before = None
    for row in rows:
        name = "" if row["policy"] == before else row["policy"]
        before = row["policy"]
        made.add_row(Text(name), Text(row["id"]), *(write(ranking.value(row, path)) for path, _, write in shown))
    return made
