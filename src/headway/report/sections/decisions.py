"""The routing decisions: what the scorers argued, what was lost by them, and the ten worst."""

from __future__ import annotations

import shlex
from html import escape
from typing import Final

from headway.report import html
from headway.report.book import Book, side_by_side
from headway.report.charts.decisions import contributions, histogram
from headway.report.decided import WORST, Bad, Decided, Regrets
from headway.report.digest import Digest
from headway.report.terminal import GAP, number, percent, time_text
from headway.results.percentiles import PS_PER_MS
from headway.types import PS_PER_SECOND

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
