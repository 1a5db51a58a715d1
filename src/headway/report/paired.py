"""The paired differences of a comparison for the terminal: how far each policy is from the baseline, or that it is
noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.paired import NOISE, SAME, SHARE
from headway.experiment.verdict import has_slo, written
from headway.report.labels import Fitted, wrap
from headway.report.terminal import GAP, label_column, number, table
from headway.types import Json

POINTS: Final = (SHARE, "cache.token_hit_ratio")  # shares, whose differences are told in percentage points
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
Shown = tuple[str, str]  # a figure's path and its heading


def differences(found: Comparison) -> RenderableType:
    """One row a policy, but for the baseline."""
    head = f"Differences from {found.baseline} under the same {found.seeds} seeds, mean ± 95 % interval:"
    first = "goodput\npoints" if has_slo(found.scenario) else "served\npoints"
    shown = [(path, heading or first) for path, heading in FIGURES]
    if found.by is not None and all(path != found.by for path, _ in shown):
        shown.insert(0, (found.by, "\n".join(found.by.rsplit(".", 1))))
    names = [name for name, _ in found.ranked]
    return Group(Text(head), "", Fitted(names, shown, lambda some, width: _table(found, some, width)))


def _table(found: Comparison, shown: Sequence[Shown], width: int) -> Table:
    made = table("policy" if found.stage == "routing" else found.stage, *(heading for _, heading in shown), gap=1)
    label_column(made, 0, width)
    rows = {(row["policy"], row["figure"]): row for row in found.paired or []}
    for name, _ in found.ranked:
        if name != found.baseline:
            made.add_row(Text(wrap(name, width)), *(_cell(rows[(name, path)]) for path, _ in shown))
    return made


def _cell(row: Json) -> str:
    if row["word"] in (NOISE, SAME):
        return str(row["word"])
    if row["delta"] is None:
        return GAP
    scale = 100 if row["figure"] in POINTS else 1
    delta, half = scale * row["delta"], scale * (row["high"] - row["delta"])
    small = abs(delta) < 1 and scale == 1
    sign = "+" if delta > 0 else "-"
    write = written if small else number
    return f"{sign}{write(abs(delta))} ±{_short(half) if small else number(half)}"


def _short(value: float) -> str:
    return "0" if value <= 0 else f"{value:.1g}"
