"""The beginning of a report: verdict, scenario, the command to run it again, and the headline figures."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from headway import __version__
from headway.config.units import duration_text
from headway.experiment.verdict import has_slo
from headway.report import html
from headway.report.cases import Case
from headway.report.digest import Book
from headway.report.number_format import Column, count, hours, index, money, number, percent, time_text
from headway.report.run import run_facts
from headway.report.terminal import describe_scenario
from headway.results.groups import KINDS, promises
from headway.results.ranking import direction, value
from headway.types import Json


def opening(book: Book, parts: Iterable[tuple[str, str]]) -> list[str]:
    """Return the verdict, links to the parts (name and title), and the scenario."""
    links = "".join(f'<a href="#{escape(name)}">{escape(title)}</a>' for name, title in parts)
    command = book.cases.command
    again = f"<p>To run it again:</p><pre>{html.unbroken(command)}</pre>" if command else ""
    return [
        f"<h1>{escape(book.cases.name)}</h1>",
        f'<p class="verdict">{escape(book.cases.verdict)}</p>',
        f"<nav>{links}</nav>",
        html.SCRIPTLESS,
        html.section("Scenario", _card(book), again, name="scenario"),
    ]


def _card(book: Book) -> str:
    first = book.cases.cases[0]
    scenario, summary = first.scenario, first.summary
    stage, vary = book.cases.stage, book.cases.vary
    stage_shown = book.cases.kind == "run" or (vary and not any(path.startswith(f"policies.{stage}") for path in vary))
    size, how = describe_scenario(scenario, "" if stage_shown else stage)
    rows = [
        ("cluster", size),
        ("how", how),
        ("workload", _workload(scenario, summary, vary)),
        ("targets", _targets(scenario)),
        ("seed", _seed(scenario["seed"]) + (f" and {book.cases.seeds - 1} more" if book.cases.seeds > 1 else "")),
    ]
    if book.cases.kind == "sweep":
        rows.insert(
            2, ("varied", "; ".join(f"{path}: {', '.join(map(str, all_))}" for path, all_ in book.cases.vary.items()))
        )
    rows.append(("runs", _runs(book)))
    return html.card(rows)


def _workload(scenario: Json, summary: Json, vary: Mapping[str, Any]) -> str:
    requests = summary["requests"]
    rate = scenario.get("workload", {}).get("rate")
    text = f"{count(requests['arrived'])} requests"
    if vary:
        return text
    if "sessions" in summary:
        text += f" of {count(summary['sessions']['count'])} sessions"
    text += f" in {time_text(summary['duration_s'])}"
    if not isinstance(rate, str | int | float):
        return text
    return f"{text}; sessions begin at {rate}" if "sessions" in summary else f"{text}, at {rate}"


def _targets(scenario: Json) -> str:
    promised = promises(scenario)
    targets = {kind: getattr(promised.default, f"{kind}_ps") for kind in KINDS}
    texts = [f"{kind.upper()} within {duration_text(target)}" for kind, target in targets.items() if target is not None]
    if promised.own:
        texts.append("some tenants have their own")
    return ", ".join(texts) or "none"


def _seed(seed: Any) -> str:
    if not isinstance(seed, dict):
        return str(seed)
    values = list(seed.values())
    return str(values[0]) if len(set(values)) == 1 else ", ".join(f"{name} {each}" for name, each in seed.items())


def _runs(book: Book) -> str:
    runs = book.cases.count
    places = [case.folder for case in book.cases.cases if case.folder]
    where = f", {places[0]}" if runs == 1 and places else ""
    seeds = f" with {book.cases.seeds} seeds each" if book.cases.seeds > 1 else ""
    return f"{count(runs)}{seeds}, headway {__version__}{where}"


MANY: Final = 10  # a difference of at least this factor is written as a factor, not in percent
LOST: Final = ("rejected", "timed_out", "failed")
KEY: Final = "Arrows show the change from the baseline: filled and blue is better, hollow and orange is worse."
SEEDED: Final = (
    "Figures are means over {seeds} seeds, with paired differences and half of their 95 % intervals. The parts below "
    "show the first seed."
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
    facts = run_facts(cases[0].summary, cases[0].scenario)
    more = [html.card(facts, ' style="margin-top:1rem"')] if len(cases) == 1 else []
    return html.section("Headline", table, *more, note=" ".join(notes), name="headline")


def _columns(cases: Sequence[Case], only: set[str]) -> list[Column]:
    """Return the columns of figures that at least one run has. Counts of lost or preempted requests are included only
    if they are not zero."""
    slo = any(has_slo(case.scenario) for case in cases)
    lost = [(f"requests.{name}", name.replace("_", " "), count) for name in LOST]
    lost.append(("preemptions", "preempted", count))
    columns: list[Column] = [
        ("latency.ttft.mean", "TTFT mean, ms", number),
        ("latency.ttft.p99", "TTFT p99, ms", number),
        ("latency.tpot.p99", "TPOT p99, ms", number),
        ("latency.e2e.mean", "E2E mean, ms", number),
        ("latency.e2e.p99", "E2E p99, ms", number),
        ("slo.goodput_ratio", "within the SLO" if slo else "served", percent),
        ("throughput.output_tokens_per_s", "output tokens/s", count),
        ("cache.token_hit_ratio", "cache hits", percent),
        *(column for column in lost if any(value(case.summary, column[0]) for case in cases)),
        ("balance.jain", "Jain index", index),
        ("fairness.jain_goodput", "tenants' Jain", index),
        ("scaling.replica_seconds", "replica-hours", hours),
        ("cost.usd", "cost, USD", money),
    ]
    there = [column for column in columns if any(value(case.summary, column[0]) is not None for case in cases)]
    return [column for column in there if not only or column[0] in only]


def _name(book: Book, case: Case) -> html.Markup:
    marks = [word for word, holds in (("oracle", case.oracle), ("baseline", case.label == book.baseline)) if holds]
    marks += [] if case.aside is None else [case.aside]
    note = f' <span class="even">({", ".join(marks)})</span>' if marks and len(book.cases.cases) > 1 else ""
    return html.Markup(f"{book.key(case.label)}{note}")


def _cell(case: Case, base: Case | None, column: Column, paired: dict[tuple[str, str], Json]) -> html.Markup:
    path, _, write = column
    row = paired.get((case.label, path))
    if row is not None:
        return html.Markup(escape(write(row["mean"])) + _paired_delta(row, path, write))
    mine = value(case.summary, path)
    its = None if base is None or base is case else value(base.summary, path)
    return html.Markup(escape(write(mine)) + ("" if its is None else delta(path, mine, its)))


def delta(path: str, mine: float | None, its: float) -> str:
    """Return the difference of a run's figure (`mine`) from the baseline's figure (`its`): in percentage points if the
    figure is a fraction, otherwise in percent or, if it is very large, as a factor."""
    if mine is None:
        return ""
    if mine == its:
        return '<span class="delta even">=</span>'
    by = f"{100 * abs(mine - its):.1f} pp" if is_share(path) else _times(mine, its)
    if by.startswith("0.0 "):
        return '<span class="delta even">≈</span>'
    return _arrow(path, mine > its, by)


def _times(mine: float, its: float) -> str:
    if not its:
        return "from 0"
    return f"× {mine / its:,.0f}" if mine >= MANY * its else f"{100 * abs(mine / its - 1):.1f} %"


def _arrow(path: str, up: bool, text: str) -> str:
    way = direction(path)
    if way is None:
        return f'<span class="delta even">{"▲" if up else "▼"} {escape(text)}</span>'
    better = up == (way == "high")
    sign = ("▲" if up else "▼") if better else ("△" if up else "▽")
    word = "better" if better else "worse"
    return f'<span class="delta {word}" title="{word}">{sign} {escape(text)}</span>'


def _paired_delta(row: Json, path: str, write: Any) -> str:
    """Return a paired difference with its interval. If the difference is not significant, return a word such as "within
    noise" instead."""
    if row["delta"] is None:
        return ""
    if row["word"] not in ("better", "worse"):
        return f'<span class="delta even">{escape(str(row["word"]))}</span>'
    by, half = abs(row["delta"]), (row["high"] - row["low"]) / 2
    text = f"{100 * by:.1f} ± {100 * half:.1f} pp" if is_share(path) else f"{write(by)} ± {write(half)}"
    return _arrow(path, row["delta"] > 0, text)


def is_share(path: str) -> bool:
    return path.endswith(("_ratio", "_attainment")) or path.startswith("cache.")
