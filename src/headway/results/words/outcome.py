"""The outcome of a run against its targets: the first section of every summary."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from headway.results.groups import KINDS
from headway.results.recorder import Targets
from headway.results.sample import MISSED, UNCOUNTED
from headway.results.statistics import PS_PER_MS
from headway.results.time_split import QUEUED
from headway.results.words.material import Material, policies, setting
from headway.results.words.phrases import (
    FEWEST_TOKENS,
    Line,
    Parts,
    Section,
    count,
    ms_of,
    percent,
    phrase,
    text_of,
    tokens,
)
from headway.types import Json

TENANTS_SHOWN: Final = 5
LABELS: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
GOOD, BAD = "✓ met", "✗ missed"
# For each limit of a queue: what the requests waited for.
WAITED_FOR: Final = {
    "prompt": "for longer prompts that the instance computed in chunks",
    "tokens": "for the prompts of other requests, because a step has a limit on tokens",
    "slots": "for a place in a full batch",
    "kv": "for free KV blocks",
    "adapter": "for a free adapter slot",
    "handover": "for a decode instance to accept the request",
}
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
    """Write the line that every summary contains. It has no names, so that it fits into the smallest limit."""
    requests = run.summary["requests"]
    if not requests["arrived"]:
        return run.phrase("Nothing to judge: {requests.arrived:count} requests arrived.")
    if not requests["completed"]:
        ended = max(ENDS[1:], key=requests.__getitem__)
        text = f"{BAD}: none of {{requests.arrived:count}} requests completed; {{requests.{ended}:count}}"
        return run.phrase(f"{text} {ended.replace('_', ' ')}.")
    if run.has_slo and run.summary["slo"]["goodput_ratio"] is not None:
        planned = count("requests.planned", requests["arrived"] - run.warmup + requests["abandoned"])
        subject = "planned requests" if requests["abandoned"] else "requests"
        subject += " after the warm-up" if run.warmup else ""
        sign = GOOD if slo_met(run) else BAD
        parts = run.phrase(f"{sign}: {{slo.goodput_ratio:percent}} of {{}} {subject} met their SLO", planned)
    else:
        parts = run.phrase("No SLO was set: {requests.completed:count} of {requests.arrived:count} requests completed")
    more = parts + run.phrase("; TTFT p99 {latency.ttft.p99:ms}.")
    return more if tokens(text_of(more)) < FEWEST_TOKENS else (*parts, ".")


def slo_met(run: Material) -> bool:
    """Return whether no request was lost and, for each tenant, every p99 with a target is within that target."""
    requests, promises = run.summary["requests"], run.promises
    if requests["rejected"] or requests["timed_out"] or requests["failed"]:
        return False
    judged = [(tenant["latency"], promises.to(tenant["id"])) for tenant in run.summary.get("tenants", ())]
    if not promises.own or not judged:
        judged = [(run.summary["latency"], next(iter(promises.own.values()), promises.default))]
    return all(_within(latency, targets, kind) is not False for latency, targets in judged for kind in KINDS)


def _within(latency: Json, targets: Targets, kind: str) -> bool | None:
    target, p99 = getattr(targets, f"{kind}_ps"), latency[kind]["p99"]
    return None if target is None or p99 is None else bool(p99 <= target / PS_PER_MS)


def _requests(run: Material) -> Parts:
    requests = run.summary["requests"]
    ends = [end for end in ENDS if requests[end] or end == "completed"]
    text = ", ".join(f"{{requests.{end}:count}} {end.replace('_', ' ')}" for end in ends)
    if requests["retried"]:
        text += "; {requests.retried:count} of them are client retries"
    if requests["not_issued"]:
        text += "; sessions never sent {requests.not_issued:count} planned turns"
    return run.phrase(f"Requests: {{requests.arrived:count}} arrived, {text}.")


def _latencies(run: Material) -> list[Line]:
    latency, slo, targets = run.summary["latency"], run.summary["slo"], run.promises.default
    lines = []
    for kind in KINDS:
        spread, place = latency[kind], f"summary.latency.{kind}"
        if spread["p99"] is None:
            continue
        target = getattr(targets, f"{kind}_ps")
        if target is None or run.promises.own:
            text = f"{LABELS[kind]}: p50 {{p50:ms}}, p99 {{p99:ms}}."
            lines.append(Line(phrase(text, of=spread, source=place), 20))
            continue
        sign, limit = GOOD if _within(latency, targets, kind) else BAD, ms_of(f"slo.{kind}", target)
        text = f"{LABELS[kind]}: p99 {{p99:ms}} (target {{}}) {sign}, p50 {{p50:ms}}"
        parts = phrase(text, limit, of=spread, source=place)
        if slo[f"{kind}_attainment"] is not None:
            parts += phrase(f", {{{kind}_attainment:percent}} within", of=slo, source="summary.slo")
        lines.append(Line((*parts, "."), 4))
    if parts := _where_it_went(run):
        lines.append(Line(parts, 13))
    if longest := main_limit(run):
        group, name, share = longest
        text = f"Of their wait at instances, {{}} was {WAITED_FOR[name]}."
        lines.append(Line(phrase(text, percent(f"limits.{group}.{name}", share)), 17))
    return lines


def _where_it_went(run: Material) -> Parts:
    """Write how the mean TTFT divides into parts. Use the requests that missed their SLO or, if there are none, all
    requests that got a token."""
    group, number, spans = where_it_went(run)
    if not number:
        return ()
    subject = "the {count:count} requests that missed their SLO" if group == "missed" else "all {count:count} requests"
    text = "on average: {router:ms} before routing, {queue:ms} from there to the first step, {prefill:ms} after it."
    return phrase(f"TTFT of {subject}, {text}", of={"count": number, **spans}, source=f"spans.{group}")


def where_it_went(run: Material) -> tuple[str, int, dict[str, float]]:
    """Return the group of requests (missed or all), their number, and their mean time in each part of TTFT, in ms."""
    group, rows = _worst_group(run)
    if not rows:
        return group, 0, {}
    columns = [run.column(name) for name in ("arrival_ps", "routed_ps", "started_ps", "first_token_ps")]
    sums = [sum(later[row] - earlier[row] for row in rows) for earlier, later in pairwise(columns)]
    names = ("router", "queue", "prefill")
    return group, len(rows), {name: total / len(rows) / PS_PER_MS for name, total in zip(names, sums, strict=True)}


def main_limit(run: Material) -> tuple[str, str, float] | None:
    """Return the group of requests (missed or all), the limit that made these requests wait longest in the queues of
    instances, and the limit's share of their wait. If no limit was recorded, or if the longest wait was not due to a
    limit, return None."""
    group, rows = _worst_group(run)
    split = run.observed.split.total(rows)
    waits = {part.removeprefix("queue."): time for part, time in split.items() if part in QUEUED}
    longest = max(waits, key=waits.__getitem__, default="step")
    return (group, longest, waits[longest] / sum(waits.values())) if longest in WAITED_FOR else None


def _worst_group(run: Material) -> tuple[str, list[int]]:
    """Return the requests that missed their SLO or, if there are none, all requests, with the group's name. Requests
    without a token are left out."""
    worst = run.has_slo and MISSED in run.missed
    rows = [row for row in got_a_token(run) if not worst or run.missed[row] == MISSED]
    return "missed" if worst else "all", rows


def got_a_token(run: Material) -> Iterator[int]:
    """Yield the requests after the warm-up that got a first token from the first instance they were sent to."""
    firsts, retries, redirects = (run.column(name) for name in ("first_token_ps", "retries", "redirects"))
    for row, flag in enumerate(run.missed):
        if flag != UNCOUNTED and firsts[row] >= 0 and not retries[row] and not redirects[row]:
            yield row


def _groups(run: Material, section: str, word: str) -> list[Line]:
    """Describe tenants or classes, worst served first."""
    groups: list[Json] = run.summary.get(section, [])
    worst = sorted(groups, key=lambda group: (_share(group), group["id"]))
    lines = []
    for group in worst[:TENANTS_SHOWN]:
        # If tenants of a class have different targets, no target applies to the whole class.
        promises = run.promises
        targets = promises.to(group["id"]) if word == "tenant" else Targets() if promises.own else promises.default
        lines.append(Line(_group(run, group, f"{section}.{group['id']}", word, targets), 14))
    if len(worst) > TENANTS_SHOWN:
        rest = count(f"{section}.rest", len(worst) - TENANTS_SHOWN)
        lines.append(Line(phrase(f"{{}} more {section} did no worse.", rest), 31))
    return lines


def _share(group: Json) -> float:
    return 1.0 if group["slo"]["goodput_ratio"] is None else float(group["slo"]["goodput_ratio"])


def _group(run: Material, group: Json, place: str, word: str, targets: Targets) -> Parts:
    parts = phrase(f"{word.capitalize()} {{id:name}}: {{requests.arrived:count}} requests", of=group, source=place)
    if run.has_slo and (targets != Targets() or word == "class") and group["slo"]["goodput_ratio"] is not None:
        parts += phrase(", {slo.goodput_ratio:percent} met their SLO", of=group, source=place)
    for kind in KINDS[:2]:
        p99, target = group["latency"][kind]["p99"], getattr(targets, f"{kind}_ps")
        if p99 is None:
            continue
        parts += phrase(f"; {LABELS[kind]} p99 {{latency.{kind}.p99:ms}}", of=group, source=place)
        if target is not None:
            sign = GOOD if _within(group["latency"], targets, kind) else BAD
            parts += phrase(f" (target {{}}) {sign}", ms_of(f"{place}.target.{kind}", target))
    return (*parts, ".")


def _throughput(run: Material) -> Parts:
    if run.summary["throughput"]["requests_per_s"] is None:
        return ()
    text = "Throughput: {throughput.requests_per_s:amount} requests/s"
    text += ", {throughput.output_tokens_per_s:amount} output tokens/s"
    if run.summary["cost"]["usd_per_1m_tokens"] is not None:
        text += "; {cost.usd_per_1m_tokens:amount} USD per million tokens"
    return run.phrase(f"{text}.")


def _cache(run: Material) -> Parts:
    if run.summary["cache"]["token_hit_ratio"] is None:
        return ()
    text = "Cache: {cache.token_hit_ratio:percent} of prompt tokens were cached"
    shadow = run.summary.get("shadow")
    if shadow and shadow["divergence_rate"] is not None:
        text += (
            "; the router's belief was wrong for {shadow.divergences:count} requests ({shadow.divergence_rate:percent})"
        )
        if shadow["divergences"] and "too_high_tokens" in shadow:  # summaries of older versions do not have it
            text += ", by {shadow.too_high_tokens:count} tokens too high and {shadow.too_low_tokens:count} too low"
    return run.phrase(f"{text}.")


def _evenness(run: Material) -> Parts:
    phrases = []
    if run.summary["balance"]["jain"] is not None and len(run.summary["instances"]) > 1:
        phrases.append("instances {balance.jain:ratio}")
    if (run.summary.get("fairness") or {}).get("jain_goodput") is not None:
        phrases.append("tenants {fairness.jain_goodput:ratio}")
    return run.phrase(f"Evenness (Jain index): {', '.join(phrases)}.") if phrases else ()


def _scaling(run: Material) -> Parts:
    scaling = run.summary.get("scaling")
    if not scaling:
        return ()
    text = "Scale events: {scale_ups:count} up, {scale_downs:count} down"
    if scaling["oscillations"]:
        text += ", {oscillations:count} oscillations"
    if scaling["mean_replicas"] is not None:
        text += "; {mean_replicas:amount} replicas on average"
    text += "".join(f"; {{{end}:count}} requests {end}" for end in ("retried", "redirected", "failed") if scaling[end])
    faults = [kind for kind, times in scaling["faults"].items() if times]
    text += "".join(f"; faults of kind {kind}: {{faults.{kind}:count}}" for kind in faults)
    return phrase(f"{text}.", of=scaling, source="summary.scaling")


def _memory(run: Material) -> Parts:
    phrases = ["{preemptions:count} preemptions"] if run.summary["preemptions"] else []
    for tier, figures in (run.summary.get("tiers") or {}).items():
        if figures.get("thrashed_blocks"):
            place = f"tiers.{tier}"
            phrases.append(
                f"{tier} tier: {{{place}.stored_blocks:count}} blocks stored, {{{place}.loaded_blocks:count}} loaded,"
                f" {{{place}.thrashed_blocks:count}} of those within a second of storing"
            )
    return run.phrase(f"KV memory: {'; '.join(phrases)}.") if phrases else ()


def _transfers(run: Material) -> Parts:
    transfer = run.summary.get("transfer")
    if not transfer or not transfer["count"]:
        return ()
    text = "KV transfers: {count:count}; wait p99 {wait.p99:ms}, time p99 {time.p99:ms}."
    return phrase(text, of=transfer, source="summary.transfer")
