"""Checks of a running gateway, from the documents of its admin API."""

from __future__ import annotations

import re
import time
from typing import Final

from headway.gateway.doctor.problems import SOON_DAYS, Report
from headway.types import Json

REPORT_AGE: Final = "report"  # key of `ages_s` for an engine without signals: the age of its last report
LOST_EVENTS: Final = ("gaps", "malformed", "overflow", "orphans")
EVENTS_AFTER_S: Final = 60.0  # an engine that has published nothing for this long is a warning
FILES_SHARE: Final = 0.8
SAMPLE: Final = re.compile(r"^(\w+) ([0-9.e+]+)$", re.MULTILINE)  # a line without labels
COUNTERS: Final = {
    "headway_unread_prompts_total": (
        "prompts were hashed by bytes, because the tokenizer failed or timed out.",
        "Check `tokens`: the folder, the chat template, and `threads`.",
    ),
    "headway_records_lost_total": (
        "requests are missing from the records, because the writer is too slow.",
        "Use a faster disk for `records.folder`, or turn `decisions` or `prompts` off.",
    ),
}


def check_status(status: Json, report: Report) -> None:
    if status["draining"]:
        report.warn("gateway", "It is shutting down.", "Send no more requests to it.")
    backends = status["backends"]
    for backend in backends:
        _check_backend(backend, status["uptime_s"], report)
    if not any(backend["serving"] for backend in backends):
        what = "No engine takes requests." if backends else "The gateway has no engines."
        report.error("gateway", what, "See the problems of the engines, or add one.")
    if status.get("etcd") is False:
        what = "The gateway has no connection to etcd. It keeps the last known engines and policies."
        report.error("etcd", what, "Check `etcd.endpoints`, the network, and etcd itself.")
    for listener, expiry in status.get("certificates_expire", {}).items():
        days = (expiry - time.time()) / 86_400
        if days < SOON_DAYS:
            left = f"expires in {days:.0f} days" if days > 0 else "has expired"
            remedy = "Renew it. The gateway reads the new file without a restart."
            report.add("warning" if days > 0 else "error", "tls", f"The certificate of {listener} {left}.", remedy)
    _check_policies(status, report)


def _check_backend(backend: Json, uptime_s: float, report: Report) -> None:
    where = f"engine {backend['name']}"
    if backend["ejected"]:
        what = f"It is ejected after {backend['failures']} failures in a row."
        report.error(where, what, f"See the log of the engine at {backend['url']}.")
    elif backend["unready"]:
        why = "; ".join(f"{source}: {why}" for source, why in backend["unready"].items())
        report.error(where, f"It gets no requests ({why}).", f"See the log of the engine at {backend['url']}.")
    elif backend["cordoned"]:
        report.note(where, "It is cordoned.", f"Lift the cordon with POST /backends/{backend['name']}/uncordon.")
    elif not backend["serving"]:
        report.warn(where, f"It gets no requests: it is {backend['state']}.", "Wait until it is ready, or remove it.")
    elif not backend["reports"]:
        age = backend["ages_s"].get(REPORT_AGE)
        since = "It has reported no load" if age is None else f"Its last report is {age:.0f} s old"
        remedy = "Check `metrics` of the engine, or its agent."
        report.warn(where, f"{since}, so the gateway uses its own counts.", remedy)
    events = backend["kv_events"]
    lost = {kind: events[kind] for kind in LOST_EVENTS if events.get(kind)}
    if lost:
        counts = ", ".join(f"{kind}: {count:,}" for kind, count in lost.items())
        remedy = "Set `events_replay`, raise `events.max_blocks`, and see the metric headway_kv_events_total."
        report.warn(where, f"The gateway lost KV events ({counts}).", remedy)
    if events and not events.get("batches") and uptime_s > EVENTS_AFTER_S:
        remedy = "Check `events`, and that the engine publishes its KV events."
        report.warn(where, "It has published no KV events.", remedy)


def _check_policies(status: Json, report: Report) -> None:
    failures = status["policy"]["failures"]
    count = sum(failures["count"].values())
    if count:
        last = f" The last error: {failures['last']}" if failures["last"] else ""
        report.error("policies", f"Policies failed {count:,} times.{last}", "Deploy policies that work.")
    if failures["fell_back"]:
        report.error("policies", "The former policies are in force, because the new ones failed.", "Correct them.")
    for shadow in status["shadows"]:
        if not shadow["running"]:
            remedy = "Correct it, or remove it from `shadow`."
            report.warn(f"shadow.{shadow['name']}", f"It is no longer asked: {shadow['why']}.", remedy)
    canary = status["canary"]
    if canary is not None and canary["stopped"]:
        report.warn("canary", f"It was stopped: {canary['stopped']}.", "Remove it from the file, or correct it.")


def check_metrics(page: str, report: Report) -> None:
    samples = {name: float(value) for name, value in SAMPLE.findall(page)}
    for name, (what, remedy) in COUNTERS.items():
        if samples.get(name):
            report.warn("gateway", f"Since it started, {samples[name]:,.0f} {what}", remedy)
    opened, most = samples.get("process_open_fds", 0.0), samples.get("process_max_fds", 0.0)
    if most and opened > FILES_SHARE * most:
        remedy = "Raise the limit (ulimit -n), or lower `limits.connections`."
        report.error("gateway", f"It has {opened:,.0f} open files, and may have {most:,.0f}.", remedy)


def reported_signals(status: Json) -> set[str]:
    """Return the signals that an engine of a running gateway reports."""
    return {signal for backend in status["backends"] for signal in backend["ages_s"]} - {REPORT_AGE}
