"""How a report begins: what came out in a sentence, what was run, and how to run it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from headway import __version__
from headway.config.units import duration_text
from headway.experiment.verdict import has_slo
from headway.report import html
from headway.report.cases import Case
from headway.report.digest import Book
from headway.report.run import run_facts
from headway.report.terminal import GAP, Column, described, hours, money, number, percent, time_text
from headway.results.groups import KINDS, promises
from headway.results.ranking import direction, value
from headway.types import Json

ENDS = ("completed", "rejected", "timed_out", "failed", "in_flight")


def opening(book: Book, parts: Iterable[tuple[str, str]]) -> list[str]:
    """The verdict, links to the parts that follow (name and title), and the scenario's card."""
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, title in parts)
    return [
        f"<h1>{escape(book.cases.name)}</h1>",
        f'<p class="verdict">{escape(book.cases.verdict)}</p>',
        f"<nav>{links}</nav>",
        html.scriptless(),
        html.section("Scenario", _card(book), _command(book), name="scenario"),
    ]


def _card(book: Book) -> str:
    first = book.cases.cases[0]
    scenario, summary = first.scenario, first.summary
    stage, vary = book.cases.stage, book.cases.vary
    told = book.cases.kind == "run" or (vary and not any(path.startswith(f"policies.{stage}") for path in vary))
    size, how = described(scenario, "" if told else stage)
    rows = [
        ("cluster", size),
        ("how", how),
        ("workload", _workload(scenario, summary, vary)),
        ("targets", _targets(scenario)),
        ("seed", _seed(scenario["seed"]) + (f" and {book.cases.seeds - 1} more" if book.cases.seeds > 1 else "")),
    ]
    if book.cases.kind == "sweep":
        rows.insert(2, ("varied", "; ".join(f"{path}: {_values(all_)}" for path, all_ in book.cases.vary.items())))
    rows.append(("runs", _runs(book)))
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f'<dl class="card">{cells}</dl>'


def _workload(scenario: Json, summary: Json, vary: Mapping[str, Any]) -> str:
    requests = summary["requests"]
    rate = scenario.get("workload", {}).get("rate")
    said = f"{number(requests['arrived'], 0)} requests"
    if vary:
        return said
    if "sessions" in summary:
        said += f" of {number(summary['sessions']['count'], 0)} sessions"
    said += f" in {time_text(summary['duration_s'])}"
    if not isinstance(rate, str | int | float):
        return said
    return f"{said}; sessions begin at {rate}" if "sessions" in summary else f"{said}, at {rate}"


def _targets(scenario: Json) -> str:
    promised = promises(scenario)
    targets = {kind: getattr(promised.everybody, f"{kind}_ps") for kind in KINDS}
    found = [f"{kind.upper()} within {duration_text(target)}" for kind, target in targets.items() if target is not None]
    if promised.own:
        found.append("some tenants have their own")
    return ", ".join(found) or "none"


def _seed(seed: Any) -> str:
    if not isinstance(seed, dict):
        return str(seed)
    values = list(seed.values())
    return str(values[0]) if len(set(values)) == 1 else ", ".join(f"{name} {one}" for name, one in seed.items())


def _values(values: Iterable[Any]) -> str:
    return ", ".join(one if isinstance(one, str) else str(one) for one in values)


def _runs(book: Book) -> str:
    count = book.cases.count
    places = [case.folder for case in book.cases.cases if case.folder]
    where = f", {places[0]}" if count == 1 and places else ""
    seeds = f" under {book.cases.seeds} seeds each" if book.cases.seeds > 1 else ""
    return f"{number(count, 0)}{seeds}, headway {__version__}{where}"


def _command(book: Book) -> str:
    if book.cases.command is None:
        return ""
    return f"<p>To run it again:</p><pre>{html.unbroken(book.cases.command)}</pre>"


# The figures that matter most, a row a run, each with how far it is from the baseline's.

MANY: Final = 10  # times as much, which nobody reads in percent
LOST: Final = ("rejected", "timed_out", "failed")
KEY: Final = "An arrow tells up or down; filled and blue is better than the baseline, hollow and orange is worse."
SEEDED: Final = (
    "Figures are means over {seeds} seeds, with paired differences and half their 95 % intervals; all below is of the "
    "first seed."
)


def headline(book: Book) -> str:
    cases = book.cases.cases
    base = next((case for case in cases if case.label == book.baseline), None)
    notes = [book.cases.note] if book.cases.note else []
    notes += [KEY] if base is not None and len(cases) > 1 else []
    paired = {(row["policy"], row["figure"]): row for row in book.cases.paired or []}
    if paired:
        notes.append(SEEDED.format(seeds=book.cases.seeds))
    columns = _columns(cases, {figure for _, figure in paired})
    rows = [[_name(book, case), *(_cell(case, base, column, paired) for column in columns)] for case in cases]
    table = html.table(["run", *(heading for _, heading, _ in columns)], rows)
    more = [_facts(cases[0])] if len(cases) == 1 else []
    return html.section("Headline", table, *more, note=" ".join(notes), name="headline")


def _columns(cases: Sequence[Case], only: set[str]) -> list[Column]:
    """Which figures; those that are alike everywhere, or nothing, are left out."""
    slo = any(has_slo(case.scenario) for case in cases)
    counted = [(f"requests.{name}", name.replace("_", " "), _count) for name in LOST]
    counted.append(("preemptions", "preempted", _count))
    found: list[Column] = [
        ("latency.ttft.mean", "TTFT mean, ms", number),
        ("latency.ttft.p99", "TTFT p99, ms", number),
        ("latency.tpot.p99", "TPOT p99, ms", number),
        ("latency.e2e.mean", "E2E mean, ms", number),
        ("latency.e2e.p99", "E2E p99, ms", number),
        ("slo.goodput_ratio", "within the SLO" if slo else "served", percent),
        ("throughput.output_tokens_per_s", "output tokens/s", _count),
        ("cache.token_hit_ratio", "cache hits", percent),
        *(column for column in counted if any(value(case.summary, column[0]) for case in cases)),
        ("balance.jain", "Jain index", lambda it: number(it, 3)),
        ("fairness.jain_goodput", "tenants' Jain", lambda it: number(it, 3)),
        ("scaling.replica_seconds", "replica-hours", hours),
        ("cost.usd", "cost, USD", money),
    ]
    there = [column for column in found if any(value(case.summary, column[0]) is not None for case in cases)]
    return [column for column in there if not only or column[0] in only]


def _name(book: Book, case: Case) -> html.Markup:
    marks = [word for word, holds in (("oracle", case.oracle), ("baseline", case.label == book.baseline)) if holds]
    marks += [] if case.aside is None else [case.aside]
    told = f' <span class="even">({", ".join(marks)})</span>' if marks and len(book.cases.cases) > 1 else ""
    return html.Markup(f"{book.key(case.label)}{told}")


def _cell(case: Case, base: Case | None, column: Column, paired: dict[tuple[str, str], Json]) -> html.Markup:
    path, _, write = column
    row = paired.get((case.label, path))
    if row is not None:
        said = _paired(row, path, write)
        return html.Markup(escape(write(row["mean"])) + said)
    mine = value(case.summary, path)
    its = None if base is None or base is case else value(base.summary, path)
    return html.Markup(escape(write(mine)) + ("" if its is None else delta(path, mine, its)))


def delta(path: str, mine: float | None, its: float) -> str:
    """How far a figure is from the baseline's: in points where it is a share, else in percent of it."""
    if mine is None:
        return ""
    if mine == its:
        return '<span class="delta even">=</span>'
    by = f"{100 * abs(mine - its):.1f} pp" if is_share(path) else _times(mine, its)
    if by.startswith("0.0 "):
        return '<span class="delta even">≈</span>'
    return _arrow(path, mine > its, by)


def _times(mine: float, its: float) -> str:
    """In percent, or as a factor where that is large."""
    if not its:
        return "from 0"
    return f"× {mine / its:,.0f}" if mine >= MANY * its else f"{100 * abs(mine / its - 1):.1f} %"


def _arrow(path: str, up: bool, said: str) -> str:
    way = direction(path)
    if way is None:
        return f'<span class="delta even">{"▲" if up else "▼"} {escape(said)}</span>'
    better = up == (way == "high")
    sign = ("▲" if up else "▼") if better else ("△" if up else "▽")
    word = "better" if better else "worse"
    return f'<span class="delta {word}" title="{word}">{sign} {escape(said)}</span>'


def _paired(row: Json, path: str, write: Any) -> str:
    """A paired difference with its interval, or the word for one that is none."""
    if row["delta"] is None:
        return ""
    if row["word"] not in ("better", "worse"):
        return f'<span class="delta even">{escape(str(row["word"]))}</span>'
    by, half = abs(row["delta"]), (row["high"] - row["low"]) / 2
    said = f"{100 * by:.1f} ± {100 * half:.1f} pp" if is_share(path) else f"{write(by)} ± {write(half)}"
    return _arrow(path, row["delta"] > 0, said)


def is_share(path: str) -> bool:
    return path.endswith(("_ratio", "_attainment")) or path.startswith("cache.")


def _count(it: float | None) -> str:
    return GAP if it is None else number(it, 0)


def _facts(case: Case) -> str:
    rows = run_facts(case.summary, case.scenario)
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in rows)
    return f'<dl class="card" style="margin-top:1rem">{cells}</dl>'
