"""A comparison in the terminal: one row per policy, best first, and the paired differences from the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.paired import NOISE, SAME, SHARE
from headway.experiment.verdict import format_figure, has_slo
from headway.report.number_format import GAP, Column, count, figure_cells, figure_columns, number, share_column
from headway.report.terminal import BEST, Fitted, label_column, least_width, table, title, wrap
from headway.types import Json

MARKS: Final = {"template": "t", "control": "c"}
MEANINGS: Final = {"template": "constants to search", "control": "shows one effect, not for production"}
GROUP: Final = 35  # width of the column of tenants or classes plus the width reserved for figures, in characters


def _columns(comparison: Comparison, fairness: bool) -> list[Column]:
    """Return the columns of a comparison, including the figure that ranks the policies."""
    summaries = [summary for _, summary in comparison.ranked]
    scaled = any(summary.get("scaling", {}).get(way) for summary in summaries for way in ("scale_ups", "scale_downs"))
    columns = figures(summaries, has_slo(comparison.scenario))
    place = len(columns)
    if comparison.stage == "scaling":  # show replicas and cost before latencies
        columns.sort(key=lambda column: column[0].startswith("latency"))
        place = sum(not path.startswith("latency") for path, _, _ in columns)
    columns[place:place] = figure_columns("scaling.replica_seconds", "cost.usd") if scaled else []
    columns += figure_columns(*(["fairness.jain_goodput"] if fairness else []), "cache.token_hit_ratio")
    # With autoscaling, instances that run for a shorter time rightly get fewer requests, so omit the balance.
    if comparison.stage != "scaling":
        columns += figure_columns("balance.jain")
    by = comparison.by
    if by is not None and all(path != by for path, _, _ in columns):
        heading = "\n".join(by.rpartition(".")[::2])
        columns.insert(0, (by, heading, lambda figure: GAP if figure is None else format_figure(figure)))
    return columns


def figures(summaries: Iterable[Mapping[str, Any]], slo: bool) -> list[Column]:
    """Return the columns of runs or of groups of requests. Include columns of lost requests only if some requests were
    lost."""
    outcomes = [summary["requests"] for summary in summaries]
    lost = [name for name in ("rejected", "timed_out", "failed") if any(counts[name] for counts in outcomes)]
    times = figure_columns("latency.ttft.mean", "latency.ttft.p99", "latency.tpot.p99", "latency.e2e.mean")
    headings = [(name, name.replace("_", "\n") if "_" in name else f"\n{name}") for name in lost]
    return [*times, share_column(slo), *((f"requests.{name}", heading, count) for name, heading in headings)]


def _ranking(comparison: Comparison, columns: Sequence[Column], width: int) -> Table:
    grid = table("", _kind(comparison), *(heading for _, heading, _ in columns), gap=1)
    label_column(grid, 1, width)
    for name, summary in comparison.ranked:
        best = name == comparison.best
        mark = BEST if best else MARKS.get(comparison.aside.get(name, ""), "")
        label = Text(wrap(_label(comparison, name), width))
        grid.add_row(mark, label, *figure_cells(summary, columns), style="bold" if best else None)
    return grid


def _kind(comparison: Comparison) -> str:
    return "policy" if comparison.stage == "routing" else comparison.stage


def _label(comparison: Comparison, name: str) -> str:
    return f"{name} (oracle)" if name in comparison.oracles else name


def legend(comparison: Comparison) -> str:
    """Return an explanation of the marks in front of policies; an empty string if no policy has a mark."""
    kinds = set(comparison.aside.values())
    return "; ".join(f"{MARKS[kind]} {kind}: {MEANINGS[kind]}" for kind in MARKS if kind in kinds)


def comparison_report(comparison: Comparison, per: str | None = None) -> RenderableType:
    """Return a table with one row per policy, best first, and the winner marked. With `per`, add a table by tenant or
    class."""
    labels = [_kind(comparison), *(_label(comparison, name) for name, _ in comparison.ranked)]
    columns = _columns(comparison, fairness=per == "tenant" and bool(comparison.per(per)))
    deciding = [column for column in columns if column[0] == (comparison.by or SHARE)]
    rows = Fitted(labels, columns, lambda some, width: _ranking(comparison, some, width), fixed=deciding)
    parts: list[RenderableType] = [title(comparison.scenario, comparison.stage), "", rows, ""]
    if marks := legend(comparison):
        parts += [Text(marks), ""]
    if comparison.paired is not None and len(comparison.ranked) > 1:
        parts += [differences(comparison), ""]
    if per is not None:
        parts += [_per(comparison, per), ""]
    other = [] if comparison.other is None or not comparison.other.differs else [Text(comparison.other.sentence)]
    return Group(*parts, Text(comparison.verdict), *other)


def _per(comparison: Comparison, group: str) -> RenderableType:
    rows = comparison.per(group)
    if not rows:
        return Text(f"All requests belong to one {group}, so there is nothing to compare.")
    group_width = least_width([group, *(row["id"] for row in rows)], GROUP)

    def build(columns: Sequence[Column], width: int) -> Table:
        policies = [row["policy"] for row in rows]
        names = ["" if policy == before else policy for policy, before in zip(policies, ["", *policies], strict=False)]
        cells = [
            [wrap(name, width), wrap(row["id"], group_width), *figure_cells(row, columns)]
            for name, row in zip(names, rows, strict=True)
        ]
        grid = table(_kind(comparison), group, *(heading for _, heading, _ in columns), rows=cells, gap=1)
        label_column(grid, 0, width)
        label_column(grid, 1, group_width)
        return grid

    labels = [_kind(comparison), *(name for name, _ in comparison.ranked)]
    return Fitted(labels, figures(rows, has_slo(comparison.scenario)), build)


POINTS: Final = (SHARE, "cache.token_hit_ratio")  # figures whose differences are shown in percentage points
FIGURES: Final = (
    (SHARE, ""),
    ("latency.ttft.mean", "TTFT ms\nmean"),
    ("latency.ttft.p99", "TTFT ms\np99"),
    ("latency.e2e.mean", "E2E ms\nmean"),
    ("latency.tpot.p99", "TPOT ms\np99"),
    ("latency.e2e.p99", "E2E ms\np99"),
    ("throughput.requests_per_s", "served\n/s"),
    ("cache.token_hit_ratio", "cache hits\npoints"),
    ("cost.usd", "cost\nUSD"),
)


def differences(comparison: Comparison) -> RenderableType:
    """Return a table of the differences from the baseline, with one row for each other policy."""
    head = f"Differences from {comparison.baseline} with the same {comparison.seeds} seeds, mean ± 95 % interval:"
    first = "goodput\npoints" if has_slo(comparison.scenario) else "served\npoints"
    columns = [(path, heading or first) for path, heading in FIGURES]
    if comparison.by is not None and all(path != comparison.by for path, _ in columns):
        columns.insert(0, (comparison.by, "\n".join(comparison.by.rsplit(".", 1))))
    names = [name for name, _ in comparison.ranked]
    return Group(Text(head), "", Fitted(names, columns, lambda some, width: _differences(comparison, some, width)))


def _differences(comparison: Comparison, columns: Sequence[tuple[str, str]], width: int) -> Table:
    paired = {(row["policy"], row["figure"]): row for row in comparison.paired or []}
    rows = [
        [wrap(name, width), *(_difference(paired[(name, path)]) for path, _ in columns)]
        for name, _ in comparison.ranked
        if name != comparison.baseline
    ]
    grid = table(_kind(comparison), *(heading for _, heading in columns), rows=rows, gap=1)
    label_column(grid, 0, width)
    return grid


def _difference(row: Json) -> str:
    if row["word"] in (NOISE, SAME):
        return str(row["word"])
    if row["delta"] is None:
        return GAP
    scale = 100 if row["figure"] in POINTS else 1
    delta, half = scale * row["delta"], scale * (row["high"] - row["delta"])
    small = abs(delta) < 1 and scale == 1
    sign = "+" if delta > 0 else "-"
    write = format_figure if small else number
    interval = number(half) if not small else "0" if half <= 0 else f"{half:.1g}"
    return f"{sign}{write(abs(delta))} ±{interval}"
