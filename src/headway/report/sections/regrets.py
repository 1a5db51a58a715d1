"""The routing decisions: what the scorers argued, what was lost by them, and the ten worst."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from html import escape
from typing import Final

from headway.report import html
from headway.report.charts import Palette, axis, by_policy, chart, hints, side_by_side
from headway.report.digest import CLASSES, WORST, Bad, Book, Decided, Digest, Regrets
from headway.report.terminal import GAP, brief, number, percent, time_text
from headway.results.statistics import PS_PER_MS
from headway.types import PS_PER_SECOND, Json

# Decisions: what the scorers argued, and how much was lost by what was chosen.


def contributions(rows: Mapping[str, Mapping[str, float]], colours: Palette) -> Json:
    """A bar for each scorer of each policy: how much more it gave to the chosen instance than to the average one."""
    values = [
        {"policy": policy, "scorer": scorer, "value": brief(value)}
        for policy, scorers in rows.items()
        for scorer, value in scorers.items()
    ]
    names = list(dict.fromkeys(row["scorer"] for row in values))
    return chart(
        "Mean contribution of each scorer to the choice, by policy.",
        values,
        height=max(40, 14 * len(values) + 12 * len(names)),
        mark={"type": "bar", "cornerRadiusEnd": 2},
        encoding={
            "x": axis("value", "more than the average candidate got"),
            "y": {
                "field": "scorer",
                "type": "nominal",
                "title": None,
                "sort": names,
                "axis": {"labelLimit": 150, "ticks": False, "domain": False},
            },
            "yOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "color": by_policy(colours),
            "tooltip": hints(("policy", "policy"), ("scorer", "scorer"), ("value", "contribution")),
        },
    )


def histogram(title: str, found: Mapping[str, Regrets], colours: Palette) -> Json:
    """Which share of the decisions lost how much, a bar for each policy and class of regret."""
    used = [place for place in range(len(CLASSES)) if any(one.counts[place] for one in found.values())]
    span = range(min(used, default=0), max(used, default=0) + 1)
    values = [
        {
            "policy": policy,
            "regret": CLASSES[place],
            "share": brief(one.counts[place] / one.total),
            "decisions": one.counts[place],
        }
        for policy, one in found.items()
        if one.total
        for place in span
    ]
    hint = hints(("policy", "policy"), ("regret", "ms"), ("decisions", "decisions"), ("share", "share"))
    return chart(
        f"{title}: share of the decisions by how many milliseconds sooner the first token would have come.",
        values,
        mark={"type": "bar"},
        encoding={
            "x": {
                "field": "regret",
                "type": "ordinal",
                "title": "regret, ms",
                "sort": list(CLASSES),
                "axis": {"labelAngle": -40, "labelOverlap": False},
            },
            "xOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "y": axis("share", "share of decisions", axis={"format": ".0%"}),
            "color": by_policy(colours),
            "tooltip": hint,
        },
    )


HOW: Final = "These runs did not write down their decisions: run them with `--trace decisions -o FOLDER`."
TRUE: Final = "What another choice would really have given is found by `headway run --counterfactuals 50 -o FOLDER`."
NOTE: Final = (
    "Regret is by how much sooner the first token would have come from the best candidate: estimated by the latency "
    "model when the decision was taken, true where the run was simulated again with the other choice."
)


def decisions(book: Book) -> str:
    told = [(one, one.decided) for one in book.drawn if one.decided is not None]
    if not told:
        return html.section("Decisions", html.said(HOW), name="decisions")
    figures = []
    argued = {one.label: found.contributions for one, found in told if len(found.contributions) > 1}
    if argued:
        chart = contributions(argued, book.colours)
        figures.append(book.figure("What each scorer gave the chosen instance", chart))
    figures.append(book.figure("Estimated regret", histogram("Estimated regret", _estimated(told), book.colours)))
    true = {one.label: found.true for one, found in told if found.true is not None}
    if true:
        figures.append(book.figure("True regret", histogram("True regret", true, book.colours)))
    parts = [book.legend(), side_by_side(figures), _table(book, told)]
    if not true:
        parts.append(html.said(TRUE))
    parts += [_worst(one, found, len(told) > 1) for one, found in told]
    sampled = [
        f" Of {one.label}'s decisions one in {found.step} was looked at." for one, found in told if found.step > 1
    ]
    return html.section("Decisions", *parts, note=NOTE + "".join(sampled), name="decisions")


def _estimated(told: list[tuple[Digest, Decided]]) -> dict[str, Regrets]:
    return {one.label: found.estimated for one, found in told}


def _table(book: Book, told: list[tuple[Digest, Decided]]) -> str:
    heads = ["run", "decisions", "regret, ms", "mean", "p50", "p90", "p99", "max", "with regret"]
    rows = []
    for one, found in told:
        for kind, regrets in (("estimated", found.estimated), ("true", found.true)):
            if regrets is not None:
                spread = [number(regrets.spread[at], 2) for at in ("mean", "p50", "p90", "p99", "max")]
                some = percent(regrets.some / regrets.total if regrets.total else None)
                rows.append([book.key(one.label), number(regrets.total, 0), kind, *spread, some])
    scorers = [
        [book.key(one.label), name, f"{value:+.3f}"]
        for one, found in told
        for name, value in found.contributions.items()
    ]
    more = html.details("Scorers", html.table(["run", "scorer", "mean contribution"], scorers)) if scorers else ""
    return html.table(heads, rows) + more


def _worst(one: Digest, found: Decided, several: bool) -> str:
    title = f"The {min(WORST, len(found.worst))} worst decisions" + (f" of {one.label}" if several else "")
    if not found.worst:
        return f"<p>{escape(one.label)}: no decision had any regret.</p>"
    heads = ["request", "at", "sent to", "estimated", "best", "estimated", "regret, ms", "true regret, ms", "why"]
    rows = [_row(bad, one.names, one.folder) for bad in found.worst]
    return (
        html.details(title, html.table(heads, rows))
        if several
        else f"<h3>{escape(title)}</h3>{html.table(heads, rows)}"
    )


def _row(bad: Bad, names: dict[int, str], folder: str) -> list[str]:
    it = bad.decision
    estimated = [_ms(it.estimated_ttft_ps[it.place(index)]) for index in (it.judged, bad.best)]
    again = shlex.join(["headway", "explain", folder or "RUN", str(it.request)])
    return [
        str(it.request),
        time_text(it.at_ps / PS_PER_SECOND),
        names.get(it.judged, GAP),
        estimated[0],
        names.get(bad.best, GAP),
        estimated[1],
        _ms(bad.estimated_ps),
        GAP if bad.true_ps is None else _ms(bad.true_ps),
        html.Markup(f"<code>{escape(again)}</code>"),
    ]


def _ms(ps: int) -> str:
    return number(ps / PS_PER_MS)
