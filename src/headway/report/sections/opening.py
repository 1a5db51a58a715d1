"""How a report begins: what came out in a sentence, what was run, and how to run it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from headway import __version__
from headway.config.units import duration_text
from headway.report import html
from headway.report.book import Book
from headway.report.terminal import described, number, time_text
from headway.results.promises import KINDS, promises
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
