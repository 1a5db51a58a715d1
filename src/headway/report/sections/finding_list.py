"""Where the late requests spent their time, the findings of the runs, and the requests that the findings name. Findings
are in order of the loss that they explain."""

from collections.abc import Sequence
from html import escape
from shlex import join, quote
from typing import Any, Final

from headway.report import html
from headway.report.charts import axis, categories, chart, hints
from headway.report.digest import Book, Digest
from headway.report.number_format import GAP, brief, count, number, percent, time_text
from headway.results.records import Finding
from headway.types import PS_PER_SECOND, Json

SHOWN: Final = 12  # maximum number of findings shown per run
EXPLAINED: Final = 5  # maximum number of requests for which a finding shows a command
LONGEST: Final = 2  # number of parts of its time that the table shows of a request
# For each part of a request's time (see `results.time_split`): its name in the chart, and its colour.
PARTS: Final = {
    "router": ("router", "#6b7280"),
    "queue.prompt": ("queue: a long prompt", "#b45309"),
    "queue.tokens": ("queue: prompts of others", "#f59e0b"),
    "queue.slots": ("queue: batch full", "#dc2626"),
    "queue.kv": ("queue: no free KV blocks", "#be185d"),
    "queue.adapter": ("queue: no adapter slot", "#9d174d"),
    "queue.handover": ("queue: no decode instance", "#7c2d12"),
    "queue.step": ("queue: current step", "#fcd34d"),
    "load": ("load from a tier", "#0f766e"),
    "prefill": ("prefill", "#2563eb"),
    "preemption": ("preemption", "#7c3aed"),
    "transfer_wait": ("wait for a transfer", "#4d7c0f"),
    "transfer": ("transfer", "#84cc16"),
    "decode": ("decode", "#60a5fa"),
    "moved": ("moved between instances", "#a8a29e"),
}


def findings(book: Book) -> str:
    parts = _time_split(book)
    for place, run in enumerate(book.drawn):
        if len(book.drawn) > 1:
            parts.append(f"<h3>{book.key(run.label)}</h3>")
        if not run.findings:
            parts.append("<p>No findings.</p>")
        boxes = [_box(finding, run, place, turn) for turn, finding in enumerate(run.findings)]
        parts += boxes[:SHOWN]
        if left := boxes[SHOWN:]:
            parts.append(html.details(f"{len(left):,} more", *left))
        parts.append(_affected(run, place))
    return html.section("Findings", *parts, name="findings")


def anchor(run: int, finding: int) -> str:
    """Return the name of a finding's place in the page; `run` is the position of the run among the drawn runs."""
    return f"finding-{run}-{finding}"


def request_anchor(run: int, request: int) -> str:
    """Return the name of a request's row in the page; `run` is the position of the run among the drawn runs."""
    return f"request-{run}-{request}"


# --- where the time went ----------------------------------------------------------------------------------------------


def _time_split(book: Book) -> list[str]:
    runs = [run for run in book.drawn if run.late_times]
    if not runs:
        return []
    rows = [
        {"policy": run.label, "part": PARTS[part][0], "seconds": brief(time), "order": list(PARTS).index(part)}
        for run in runs
        for part, time in run.late_times.items()
    ]
    figure = book.figure("Time of late requests", time_split(rows, [run.label for run in runs]))
    heads = ["run", "part of the time", "mean per late request, s", "share"]
    cells = [
        [book.key(run.label), PARTS[part][0], number(time, 3), percent(time / sum(run.late_times.values()))]
        for run in runs
        for part, time in run.late_times.items()
    ]
    return [figure, html.details("The same as a table", html.table(heads, cells))]


def time_split(rows: Sequence[Json], labels: Sequence[str]) -> Json:
    """Return a chart with a bar for each policy, divided into the parts of the time. A row has `policy`, `part`,
    `seconds` and `order`."""
    shown = [name for name, _ in PARTS.values() if any(row["part"] == name for row in rows)]
    colours = dict(PARTS.values())
    return chart(
        "Mean time of the late requests by part and policy.",
        rows,
        height=max(60, 26 * len(labels)),
        mark={"type": "bar"},
        encoding={
            "x": axis("seconds", "seconds per late request", stack="zero"),
            "y": categories("policy", labels, labelLimit=130, ticks=False),
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "scale": {"domain": shown, "range": [colours[name] for name in shown]},
                "legend": {"orient": "bottom", "columns": 3, "labelLimit": 200},
            },
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": hints(("policy", "policy"), ("part", "part"), ("seconds", "seconds")),
        },
    )


# --- one finding ------------------------------------------------------------------------------------------------------


def _box(finding: Finding, run: Digest, place: int, turn: int) -> str:
    """Return a finding. `place` is the position of the run among the drawn runs, `turn` that of the finding."""
    begin, end = (time_text(at / PS_PER_SECOND) for at in (finding.at_ps, finding.until_ps))
    where = ", ".join(run.names.get(index, str(index)) for index in finding.instances)
    explains = f"explains {percent(finding.explains)} of the loss" if finding.explains else ""
    causes = [f"{blame.kind} {blame.name} ({percent(blame.share)})" for blame in finding.blames]
    about = [
        f"{finding.level}: {finding.kind.replace('_', ' ')}",
        explains,
        f"resource: {finding.resource}" if finding.resource else "",
        f"at {begin}" if begin == end else f"from {begin} to {end}",
        f"on {where}" if where else "",
        f"caused by {', '.join(causes)}" if causes else "",
    ]
    evidence = [["severity", _value(finding.severity)]]
    evidence += [[name, _value(value)] for name, value in finding.evidence.items()]
    parts = [
        f"<h3>{escape(finding.title)}</h3>",
        f'<p>{escape("; ".join(part for part in about if part))}; <a href="#over-time">over time</a></p>',
        _requests(finding, run, place),
        _suggestions(finding),
        html.details("Evidence", html.table(["figure", "value"], evidence, "words")),
    ]
    return f'<div class="finding {finding.level}" id="{anchor(place, turn)}">{"".join(parts)}</div>'


def _requests(finding: Finding, run: Digest, place: int) -> str:
    """Return the numbers of a finding's requests, each with a link to its row, and commands that explain them."""
    if not finding.requests:
        return ""
    links = ", ".join(f'<a href="#{request_anchor(place, row)}">{count(row)}</a>' for row in finding.requests)
    commands = "\n".join(_command(run, row) for row in finding.requests[:EXPLAINED])
    unsaved = "" if run.folder else html.paragraph("To explain a request, save the run with `-o RUN`.")
    return html.details("Requests", f"<p>{links}</p>", unsaved, f"<pre>{escape(commands)}</pre>")


def _command(run: Digest, request: int) -> str:
    return join(["headway", "explain", run.folder or "RUN", str(request)])


def _affected(run: Digest, place: int) -> str:
    """Return a table of the requests that the findings of a run name."""
    if not run.affected:
        return ""
    traced = any(each.reason for each in run.affected.values())
    heads = ["request", "arrived", "instance", "tenant", "outcome", "TTFT, ms", "E2E, ms", "most of its time"]
    heads += [*(["why this instance"] if traced else []), "findings", "explanation"]
    rows = []
    for row, each in run.affected.items():
        longest = sorted(each.times.items(), key=lambda part: -part[1])[:LONGEST]
        kinds: dict[str, str] = {}  # kind of a finding -> the first finding of this kind that names the request
        for turn, finding in enumerate(run.findings):
            if row in finding.requests:
                kinds.setdefault(finding.kind, anchor(place, turn))
        links = [f'<a href="#{name}">{escape(kind.replace("_", " "))}</a>' for kind, name in kinds.items()]
        rows.append(
            [
                html.Markup(f'<span id="{request_anchor(place, row)}">{count(row)}</span>'),
                time_text(each.at_s),
                run.names.get(each.instance, GAP),
                each.tenant or GAP,
                each.outcome.replace("_", " "),
                number(each.ttft_ms),
                number(each.e2e_ms),
                ", ".join(f"{PARTS[part][0]} {time_text(time)}" for part, time in longest),
                *([each.reason or GAP] if traced else []),
                html.Markup(", ".join(links)),
                html.Markup(f"<code>{escape(_command(run, row))}</code>"),
            ]
        )
    return html.details(f"The {len(rows):,} requests that these findings name", html.table(heads, rows, "dense"))


def _suggestions(finding: Finding) -> str:
    """List the suggestions, each with its change as options of `headway run`."""
    if not finding.suggestions:
        return ""
    rows = [
        [each.text, each.figure, " ".join(f"--set {quote(change)}" for change in each.overrides())]
        for each in finding.suggestions
    ]
    return html.details("Suggestions", html.table(["suggestion", "should improve", "change"], rows, "words"))


def _value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_value, value))
    if isinstance(value, dict):
        return "; ".join(f"{name}: {_value(inner)}" for name, inner in value.items())
    return str(value)
