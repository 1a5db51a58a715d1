"""The routing decisions: the scorers' contributions, the regret, and the ten worst decisions."""

import shlex
from collections.abc import Mapping
from html import escape
from typing import Final

from headway.report import html
from headway.report.charts import Palette, axis, by_policy, categories, chart, grouped_bars, hints, offset, side_by_side
from headway.report.digest import CLASSES, Bad, Book, Decided, Digest, Regrets
from headway.report.number_format import GAP, brief, number, percent, time_text
from headway.results.statistics import PS_PER_MS
from headway.types import PS_PER_SECOND, Json


def contributions(rows: Mapping[str, Mapping[str, float]], colours: Palette) -> Json:
    """Return a chart with a bar for each scorer of each policy: score of the chosen instance minus mean score."""
    values: list[Json] = [
        {"policy": policy, "scorer": scorer, "value": brief(value)}
        for policy, scorers in rows.items()
        for scorer, value in scorers.items()
    ]
    names = list(dict.fromkeys(row["scorer"] for row in values))
    return grouped_bars(
        "Mean contribution of each scorer to the choice, by policy.",
        values,
        axis("value", "score above the average candidate"),
        categories("scorer", names, labelLimit=150, ticks=False, domain=False),
        colours,
        hints(("policy", "policy"), ("scorer", "scorer"), ("value", "contribution")),
        height=max(40, 14 * len(values) + 12 * len(names)),
    )


def histogram(title: str, regrets: Mapping[str, Regrets], colours: Palette) -> Json:
    """Return a chart of the fraction of decisions in each class of regret, with a bar for each policy and class."""
    used = [place for place in range(len(CLASSES)) if any(each.counts[place] for each in regrets.values())]
    span = range(min(used, default=0), max(used, default=0) + 1)
    values = [
        {
            "policy": policy,
            "regret": CLASSES[place],
            "share": brief(each.counts[place] / each.total),
            "decisions": each.counts[place],
        }
        for policy, each in regrets.items()
        if each.total
        for place in span
    ]
    across = {"field": "regret", "type": "ordinal", "title": "regret, ms", "sort": list(CLASSES)}
    return chart(
        f"{title}: share of the decisions by the milliseconds that the best candidate would have saved.",
        values,
        mark={"type": "bar"},
        encoding={
            "x": {**across, "axis": {"labelAngle": -40, "labelOverlap": False}},
            "xOffset": offset(colours),
            "y": axis("share", "share of decisions", axis={"format": ".0%"}),
            "color": by_policy(colours),
            "tooltip": hints(("policy", "policy"), ("regret", "ms"), ("decisions", "decisions"), ("share", "share")),
        },
    )


HOW: Final = "These runs did not trace decisions. To see them, run with `--trace decisions -o FOLDER`."
TRUE: Final = "To see the true effect of other choices, run with `headway run --counterfactuals 50 -o FOLDER`."
NOTE: Final = (
    "Regret is how much earlier the best candidate would have given the first token. It is estimated by the latency "
    "model at the time of the decision, and true if the run was simulated again with the other choice."
)


def decisions(book: Book) -> str:
    runs = [(run, run.decided) for run in book.drawn if run.decided is not None]
    if not runs:
        return html.section("Decisions", html.paragraph(HOW), name="decisions")
    figures = []
    scored = {run.label: decided.contributions for run, decided in runs if len(decided.contributions) > 1}
    if scored:
        chart = contributions(scored, book.colours)
        figures.append(book.figure("Contribution of each scorer to the choice", chart))
    estimated = {run.label: decided.estimated for run, decided in runs}
    figures.append(book.figure("Estimated regret", histogram("Estimated regret", estimated, book.colours)))
    true = {run.label: decided.true for run, decided in runs if decided.true is not None}
    if true:
        figures.append(book.figure("True regret", histogram("True regret", true, book.colours)))
    parts = [book.legend(), side_by_side(figures), _table(book, runs)]
    if not true:
        parts.append(html.paragraph(TRUE))
    parts += [_worst(run, decided, len(runs) > 1) for run, decided in runs]
    sampled = [
        f" Of {run.label}, one decision in {decided.step} is included." for run, decided in runs if decided.step > 1
    ]
    return html.section("Decisions", *parts, note=NOTE + "".join(sampled), name="decisions")


def _table(book: Book, runs: list[tuple[Digest, Decided]]) -> str:
    heads = ["run", "decisions", "regret, ms", "mean", "p50", "p90", "p99", "max", "with regret"]
    rows = []
    for run, decided in runs:
        for kind, regrets in (("estimated", decided.estimated), ("true", decided.true)):
            if regrets is not None:
                spread = [number(regrets.spread[at], 2) for at in ("mean", "p50", "p90", "p99", "max")]
                some = percent(regrets.some / regrets.total if regrets.total else None)
                rows.append([book.key(run.label), number(regrets.total, 0), kind, *spread, some])
    scorers = [
        [book.key(run.label), name, f"{value:+.3f}"]
        for run, decided in runs
        for name, value in decided.contributions.items()
    ]
    more = html.details("Scorers", html.table(["run", "scorer", "mean contribution"], scorers)) if scorers else ""
    return html.table(heads, rows) + more


def _worst(run: Digest, decided: Decided, several: bool) -> str:
    if not decided.worst:
        return f"<p>{escape(run.label)}: no decision had any regret.</p>"
    title = f"The {len(decided.worst)} worst decisions"
    times = ["TTFT estimate, ms", "best", "TTFT estimate, ms", "regret, ms", "true regret, ms"]
    heads = ["request", "at", "sent to", *times, "explanation"]
    table = html.table(heads, [_row(bad, run.names, run.folder) for bad in decided.worst])
    return html.details(f"{title} of {run.label}", table) if several else f"<h3>{escape(title)}</h3>{table}"


def _row(bad: Bad, names: dict[int, str], folder: str) -> list[str]:
    decision = bad.decision
    estimated = [_ms(decision.estimated_ttft_ps[decision.place(index)]) for index in (decision.judged, bad.best)]
    again = shlex.join(["headway", "explain", folder or "RUN", str(decision.request)])
    return [
        str(decision.request),
        time_text(decision.at_ps / PS_PER_SECOND),
        names.get(decision.judged, GAP),
        estimated[0],
        names.get(bad.best, GAP),
        estimated[1],
        _ms(bad.estimated_ps),
        GAP if bad.true_ps is None else _ms(bad.true_ps),
        html.Markup(f"<code>{escape(again)}</code>"),
    ]


def _ms(ps: int) -> str:
    return number(ps / PS_PER_MS)
