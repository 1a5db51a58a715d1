"""What came of a run, against what was promised: the first section of every summary."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from headway.results.groups import KINDS
from headway.results.recorder import Targets
from headway.results.statistics import PS_PER_MS
from headway.results.words.material import MISSED, UNCOUNTED, Material, policies, setting
from headway.results.words.phrases import (
    FEWEST_TOKENS,
    Fact,
    Line,
    Parts,
    Section,
    amount,
    count,
    joined,
    ms,
    ms_of,
    name,
    percent,
    ratio,
    said,
    text_of,
    tokens,
)
from headway.types import Json

TENANTS_SHOWN: Final = 5
LABELS: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
GOOD, BAD = "✓ met", "✗ missed"
ENDS: Final = ("completed", "rejected", "timed_out", "failed", "in_flight")


def outcome(run: Material) -> Section:
    lines = [Line(verdict(run), 0), Line(setting(run), 10), Line(policies(run), 3), Line(_requests(run), 6)]
    if run.summary["requests"]["completed"]:
        lines += [*_latencies(run), *_groups(run, "tenants", "tenant")]
        if not run.same("tenant", "slo_class"):
            lines += _groups(run, "classes", "class")
        lines += [Line(parts, 30) for parts in (_throughput(run), _cache(run), _evenness(run))]
    lines += [Line(parts, 18) for parts in (_scaling(run), _memory(run), _transfers(run)) if parts]
    return Section(("## Outcome",), lines)


def verdict(run: Material) -> Parts:
    """The line that every summary has, whatever its limit: no names in it, so that it is short."""
    requests, slo = run.summary["requests"], run.summary["slo"]
    arrived = count("summary.requests.arrived", requests["arrived"])
    if not requests["arrived"]:
        return said("Nothing to judge: {} requests arrived.", arrived)
    p99 = ms("summary.latency.ttft.p99", run.summary["latency"]["ttft"]["p99"])
    if not requests["completed"]:
        ended = max(ENDS[1:], key=requests.__getitem__)
        most = count(f"summary.requests.{ended}", requests[ended])
        return said(f"{BAD}: none of {{}} requests completed; {{}} {ended.replace('_', ' ')}.", arrived, most)
    if run.has_slo and slo["goodput_ratio"] is not None:
        share = percent("summary.slo.goodput_ratio", slo["goodput_ratio"])
        planned = count("requests.planned", requests["arrived"] - run.warmup + requests["abandoned"])
        whose = "planned requests" if requests["abandoned"] else "requests"
        whose += " after the warm-up" if run.warmup else ""
        parts = said(f"{GOOD if kept(run) else BAD}: {{}} of {{}} {whose} met their SLO", share, planned)
    else:
        done = count("summary.requests.completed", requests["completed"])
        parts = said("No SLO was set: {} of {} requests completed", done, arrived)
    more = parts + said("; TTFT p99 {}.", p99)
    return more if tokens(text_of(more)) < FEWEST_TOKENS else (*parts, ".")


def kept(run: Material) -> bool:
    """Whether nothing was lost and the 99th percentile of every promised latency lies within its target, for everybody
    who was promised one."""
    requests = run.summary["requests"]
    if requests["rejected"] or requests["timed_out"] or requests["failed"]:
        return False
    judged = [(run.summary["latency"], run.everybody)] if not run.own else []
    if run.own:
        judged = [(one["latency"], run.promised(one["id"])) for one in run.summary.get("tenants", ())]
        judged = judged or [(run.summary["latency"], next(iter(run.own.values())))]
    return all(_within(found, targets, kind) is not False for found, targets in judged for kind in KINDS)


def _within(found: Json, targets: Targets, kind: str) -> bool | None:
    target, p99 = getattr(targets, f"{kind}_ps"), found[kind]["p99"]
    return None if target is None or p99 is None else bool(p99 <= target / PS_PER_MS)


# --- what came of it ---------------------------------------------------------------------------------------------


def _requests(run: Material) -> Parts:
    requests = run.summary["requests"]
    ends = [
        said(f"{{}} {end.replace('_', ' ')}", count(f"summary.requests.{end}", requests[end]))
        for end in ENDS
        if requests[end] or end == "completed"
    ]
    parts = said("Requests: {} arrived, {}", count("summary.requests.arrived", requests["arrived"]), joined(ends))
    if requests["retried"]:
        parts += said("; {} of them sent again", count("summary.requests.retried", requests["retried"]))
    if requests["not_issued"]:
        parts += said("; {} turns never came", count("summary.requests.not_issued", requests["not_issued"]))
    return (*parts, ".")


def _latencies(run: Material) -> list[Line]:
    found, slo = run.summary["latency"], run.summary["slo"]
    lines = []
    for kind in KINDS:
        spread, place = found[kind], f"summary.latency.{kind}"
        if spread["p99"] is None:
            continue
        middle = ms(f"{place}.p50", spread["p50"])
        target = getattr(run.everybody, f"{kind}_ps")
        if target is None or run.own:
            parts = said(f"{LABELS[kind]}: p50 {{}}, p99 {{}}.", middle, ms(f"{place}.p99", spread["p99"]))
            lines.append(Line(parts, 20))
            continue
        share = slo[f"{kind}_attainment"]
        parts = said(
            f"{LABELS[kind]}: p99 {{}} (target {{}}) {GOOD if _within(found, run.everybody, kind) else BAD}, p50 {{}}",
            ms(f"{place}.p99", spread["p99"]),
            ms_of(f"slo.{kind}", target),
            middle,
        )
        parts += said(", {} within.", percent(f"summary.slo.{kind}_attainment", share)) if share is not None else (".",)
        lines.append(Line(parts, 4))
    if parts := _where_it_went(run):
        lines.append(Line(parts, 13))
    return lines


def _where_it_went(run: Material) -> Parts:
    """What the time to first token was made of: of those that missed their SLO, or of all that got one."""
    who, number, spans = where_it_went(run)
    if not number:
        return ()
    whose = "the {} that missed their SLO" if who == "missed" else "all {}"
    return said(
        f"TTFT of {whose}, on average: {{}} before routing, {{}} until the first step, {{}} from there on.",
        count(f"spans.{who}.count", number),
        *(ms(f"spans.{who}.{name}", span) for name, span in spans.items()),
    )


def where_it_went(run: Material) -> tuple[str, int, dict[str, float]]:
    """Whose time to first token it is, how many they are, and how long they were on average at each stage, in ms."""
    worst = run.has_slo and MISSED in run.missed
    who = "missed" if worst else "all"
    rows = [row for row in got_a_token(run) if not worst or run.missed[row] == MISSED]
    if not rows:
        return who, 0, {}
    columns = [run.column(name) for name in ("arrival_ps", "routed_ps", "started_ps", "first_token_ps")]
    sums = [sum(later[row] - earlier[row] for row in rows) for earlier, later in pairwise(columns)]
    names = ("router", "queue", "prefill")
    return who, len(rows), {name: total / len(rows) / PS_PER_MS for name, total in zip(names, sums, strict=True)}


def got_a_token(run: Material) -> Iterator[int]:
    """The requests that count and got a first token where they were first sent."""
    firsts, retries, redirects = (run.column(name) for name in ("first_token_ps", "retries", "redirects"))
    for row, flag in enumerate(run.missed):
        if flag != UNCOUNTED and firsts[row] >= 0 and not retries[row] and not redirects[row]:
            yield row


def _groups(run: Material, section: str, word: str) -> list[Line]:
    """Tenants or classes, the worst served first."""
    groups: list[Json] = run.summary.get(section, [])
    worst = sorted(groups, key=lambda one: (_share(one), one["id"]))
    lines = []
    for one in worst[:TENANTS_SHOWN]:
        # Of a class with tenants that are promised different things no one target is everybody's.
        targets = run.promised(one["id"]) if word == "tenant" else Targets() if run.own else run.everybody
        lines.append(Line(_group(run, one, f"{section}.{one['id']}", word, targets), 14))
    if len(worst) > TENANTS_SHOWN:
        rest = count(f"{section}.rest", len(worst) - TENANTS_SHOWN)
        lines.append(Line(said(f"{{}} more {section} were served no worse.", rest), 31))
    return lines


def _share(group: Json) -> float:
    return 1.0 if group["slo"]["goodput_ratio"] is None else float(group["slo"]["goodput_ratio"])


def _group(run: Material, one: Json, place: str, word: str, targets: Targets) -> Parts:
    parts = said(
        f"{word.capitalize()} {{}}: {{}} requests",
        name(f"{place}.id", one["id"]),
        count(f"{place}.requests.arrived", one["requests"]["arrived"]),
    )
    share = one["slo"]["goodput_ratio"]
    if run.has_slo and (targets != Targets() or word == "class") and share is not None:
        parts += said(", {} met their SLO", percent(f"{place}.slo.goodput_ratio", share))
    for kind in KINDS[:2]:
        p99, target = one["latency"][kind]["p99"], getattr(targets, f"{kind}_ps")
        if p99 is None:
            continue
        parts += said(f"; {LABELS[kind]} p99 {{}}", ms(f"{place}.latency.{kind}.p99", p99))
        if target is not None:
            sign = GOOD if _within(one["latency"], targets, kind) else BAD
            parts += said(f" (target {{}}) {sign}", ms_of(f"{place}.target.{kind}", target))
    return (*parts, ".")


def _throughput(run: Material) -> Parts:
    found = run.summary["throughput"]
    if found["requests_per_s"] is None:
        return ()
    place = "summary.throughput"
    parts = said(
        "Throughput: {} requests/s, {} output tokens/s",
        amount(f"{place}.requests_per_s", found["requests_per_s"]),
        amount(f"{place}.output_tokens_per_s", found["output_tokens_per_s"]),
    )
    usd = run.summary["cost"]["usd_per_1m_tokens"]
    if usd is not None:
        parts += said("; {} USD a million tokens", amount("summary.cost.usd_per_1m_tokens", usd))
    return (*parts, ".")


def _cache(run: Material) -> Parts:
    hits = run.summary["cache"]["token_hit_ratio"]
    if hits is None:
        return ()
    parts = said("Cache: {} of prompt tokens were found cached", percent("summary.cache.token_hit_ratio", hits))
    shadow = run.summary.get("shadow")
    if shadow and shadow["divergence_rate"] is not None:
        parts += said(
            "; the router was wrong about a hit or a miss {} times ({} of requests)",
            count("summary.shadow.divergences", shadow["divergences"]),
            percent("summary.shadow.divergence_rate", shadow["divergence_rate"]),
        )
    return (*parts, ".")


def _evenness(run: Material) -> Parts:
    phrases: list[Fact | Parts] = []
    jain = run.summary["balance"]["jain"]
    if jain is not None and len(run.summary["instances"]) > 1:
        phrases.append(said("instances {}", ratio("summary.balance.jain", jain)))
    fairness = run.summary.get("fairness") or {}
    if fairness.get("jain_goodput") is not None:
        phrases.append(said("tenants {}", ratio("summary.fairness.jain_goodput", fairness["jain_goodput"])))
    return said("Evenness (Jain): {}.", joined(phrases)) if phrases else ()


def _scaling(run: Material) -> Parts:
    found = run.summary.get("scaling")
    if not found:
        return ()
    place = "summary.scaling"
    parts = said(
        "Scale events: {} up, {} down",
        count(f"{place}.scale_ups", found["scale_ups"]),
        count(f"{place}.scale_downs", found["scale_downs"]),
    )
    if found["oscillations"]:
        parts += said(", {} times in turns", count(f"{place}.oscillations", found["oscillations"]))
    if found["mean_replicas"] is not None:
        parts += said("; {} replicas on average", amount(f"{place}.mean_replicas", found["mean_replicas"]))
    for end in ("retried", "redirected", "failed"):
        if found[end]:
            parts += said(f"; {{}} requests {end}", count(f"{place}.{end}", found[end]))
    for kind, times in found["faults"].items():
        if times:
            parts += said(f"; faults of kind {kind}: {{}}", count(f"{place}.faults.{kind}", times))
    return (*parts, ".")


def _memory(run: Material) -> Parts:
    phrases = []
    if run.summary["preemptions"]:
        phrases.append(said("{} preemptions", count("summary.preemptions", run.summary["preemptions"])))
    for tier, found in (run.summary.get("tiers") or {}).items():
        if found.get("thrashed_blocks"):
            place = f"summary.tiers.{tier}"
            phrases.append(
                said(
                    f"{tier} store: {{}} blocks stored, {{}} loaded, {{}} of those within a second of storing",
                    count(f"{place}.stored_blocks", found["stored_blocks"]),
                    count(f"{place}.loaded_blocks", found["loaded_blocks"]),
                    count(f"{place}.thrashed_blocks", found["thrashed_blocks"]),
                )
            )
    return said("KV memory: {}.", joined(phrases, "; ")) if phrases else ()


def _transfers(run: Material) -> Parts:
    found = run.summary.get("transfer")
    if not found or not found["count"]:
        return ()
    place = "summary.transfer"
    return said(
        "KV transfers: {}; wait p99 {}, time p99 {}.",
        count(f"{place}.count", found["count"]),
        ms(f"{place}.wait.p99", found["wait"]["p99"]),
        ms(f"{place}.time.p99", found["time"]["p99"]),
    )
