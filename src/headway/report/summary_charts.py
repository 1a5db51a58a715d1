"""The charts of a report's page, for results in memory. The charts of a run use the whole result; those of comparisons
and sweeps use only the summaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from headway.experiment.paired import SHARE
from headway.experiment.sweep import Sweep
from headway.experiment.verdict import has_slo
from headway.report.cases import Case, Cases, open_cases
from headway.report.charts import ranked_bars
from headway.report.digest import Book, Curve, Digest, digest
from headway.report.over_time import Loads
from headway.report.page import PARTS, choose_drawn
from headway.report.result_view import Charts, Figure
from headway.report.sections.attainment import slo
from headway.report.sections.cache_hits import cache
from headway.report.sections.latency_curves import LONG, NAMES, cdf, target_ms
from headway.report.sections.opening import is_share
from headway.report.sections.sweep_lines import Sweep as SweepLines
from headway.report.sections.sweep_lines import along_axis, sweep_of
from headway.report.sections.sweep_lines import sweep as sweep_section
from headway.results import ranking
from headway.results.result import Result
from headway.results.statistics import interval
from headway.results.time_grid import Grid
from headway.types import Json

TABLES: Final = ("headline", "findings", "parameters")  # parts of a page that have no charts
RUN_PARTS: Final = tuple(name for name, _, _ in PARTS if name not in TABLES)
QUANTILES: Final = (("min", 0.0), ("p50", 0.5), ("p75", 0.75), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("max", 1.0))
NOT_SIMULATED: Final = Loads(Grid(0, 1, 1), [], [], {})


def run_part(result: Result, name: str) -> list[Figure]:
    """Return the charts of one part of a run's page."""
    cases = open_cases([result])
    book = Book(cases, [digest(cases.cases[0].label, result)])
    write = next(write for part, _, write in PARTS if part == name)
    write(book)
    return book.figures


class Policies:
    """The charts of a comparison of policies on one scenario. `ranked` has the policies with their summaries, best
    first. `runs` has one summary per seed for each policy."""

    def __init__(
        self,
        scenario: Json,
        ranked: Sequence[tuple[str, Json]],
        runs: Mapping[str, Sequence[Json]],
        best: str | None,
        baseline: str | None,
        by: str | None,
    ) -> None:
        self.scenario, self.ranked, self.runs = scenario, ranked, runs
        self.best, self.baseline, self.by = best, baseline, by

    def charts(self) -> dict[str, Charts]:
        return {
            "headline": self.headline,
            "latencies": self.latencies,
            "cache": partial(self._part, "cache"),
            "slo": partial(self._part, "slo"),
        }

    def headline(self) -> list[Figure]:
        """Return charts of the figure that ranks the policies, and of TTFT p99 and TPOT p99."""
        first = self.by or (SHARE if has_slo(self.scenario) else "latency.e2e.mean")
        paths = dict.fromkeys((first, "latency.ttft.p99", "latency.tpot.p99"))
        return [figure for path in paths for figure in self.figure(path)]

    def figure(self, path: str) -> list[Figure]:
        """Return a chart with a bar for each policy. If there are several seeds, each bar has the 95 % confidence
        interval over the seeds."""
        path = ranking.figure(path, "plot", ranked=False)
        rows = []
        for name, summary in self.ranked:
            mean = interval([ranking.value(run, path) for run in self.runs[name]])
            low, high = (None, None) if mean is None else (mean.low, mean.high)
            role = "best" if name == self.best else "baseline" if name == self.baseline else "other"
            rows.append({"name": name, "value": ranking.value(summary, path), "low": low, "high": high, "role": role})
        known = any(row["value"] is not None for row in rows)
        return [(title_of(path), ranked_bars(axis_title(path), rows, share=is_share(path)))] if known else []

    def latencies(self) -> list[Figure]:
        """Return charts of the latency distributions. The lines are drawn through the percentiles in the summaries."""
        book = self._book()
        figures = []
        for name, short in NAMES.items():
            curves = {run.label: run.curves[name] for run in book.drawn if run.curves[name]}
            if curves:
                target = target_ms(self.scenario, name)
                chart = cdf(short, curves, book.colours, book.baseline, target, "linear")
                figures.append((f"{LONG[name]} ({short})", chart))
        return figures

    def _part(self, name: str) -> list[Figure]:
        book = self._book()
        {"cache": cache, "slo": slo}[name](book)
        return book.figures

    def _book(self) -> Book:
        cases = [Case(name, self.scenario, summary, Path()) for name, summary in self.ranked]
        return book_of(Cases("comparison", self.scenario["name"], "", cases, self.baseline, None))


def book_of(cases: Cases) -> Book:
    """Return the input of a report's sections for runs of which only the summaries are known."""
    drawn, note = choose_drawn(cases)
    return Book(cases, [_digest(case) for case in drawn], note)


def _digest(case: Case) -> Digest:
    curves = {name: _curve(case.summary["latency"][name]) for name in NAMES}
    return Digest(case.label, "", case.summary, {}, curves, NOT_SIMULATED, {}, [], [], {}, None, [], {})


def _curve(spread: Mapping[str, float | None]) -> Curve:
    points = [(spread.get(name), share) for name, share in QUANTILES]
    return [(value, share) for value, share in points if value is not None]


def sweep_charts(swept: Sweep) -> list[Figure]:
    """Return charts of goodput and TTFT against the varied key. If no varied key is a quantity, return a chart of
    goodput against cost."""
    book, lines = _sweep_book(swept)
    sweep_section(book, lines)
    return book.figures


def sweep_figure(swept: Sweep, path: str) -> list[Figure]:
    """Return a chart of a figure against the varied key. If no varied key is a quantity, return a chart with a bar for
    each point of the sweep."""
    path = ranking.figure(path, "plot", ranked=False)
    book, lines = _sweep_book(swept)
    if lines.path is not None:
        along_axis(book, lines, [(title_of(path), axis_title(path), path)])
        return book.figures
    summaries = [(point.label, point.summary) for point in swept.points]
    rows = [{"name": name, "value": ranking.value(summary, path), "role": "other"} for name, summary in summaries]
    return [(title_of(path), ranked_bars(axis_title(path), rows, share=is_share(path)))]


def _sweep_book(swept: Sweep) -> tuple[Book, SweepLines]:
    stage = next((axis.stage for axis in swept.axes if axis.stage is not None), "routing")
    cases = Cases(
        "sweep",
        swept.scenario["name"],
        swept.verdict,
        [Case(point.policy, swept.scenario, point.summary, Path(), vary=point.vary) for point in swept.points],
        None,
        None,
        stage,
        swept.vary,
    )
    lines = sweep_of(cases)
    return book_of(lines.table(cases)), lines


def title_of(path: str) -> str:
    return path.removeprefix("latency.").replace("_", " ").replace(".", " ")


def axis_title(path: str) -> str:
    return f"{title_of(path)}, ms" if path.startswith("latency.") else title_of(path)
