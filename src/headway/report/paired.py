"""The paired differences of a comparison for the terminal: how far each policy is from the baseline, or that it is
noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.paired import NOISE, SAME, SHARE
from headway.experiment.verdict import has_slo, written
from headway.report.terminal import GAP, NAME_AT_LEAST, NAME_AT_MOST, number, table
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
    return Group(Text(head), "", _Differences(found))


class _Differences:
    """In a narrow terminal the last figures go."""

    def __init__(self, found: Comparison) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        by = self.found.by
        first = "goodput\npoints" if has_slo(self.found.scenario) else "served\npoints"
        shown = [(path, heading or first) for path, heading in FIGURES]
        if by is not None and all(path != by for path, _ in shown):
            shown.insert(0, (by, "\n".join(by.rsplit(".", 1))))
        wide = options.update(max_width=10_000)
        while len(shown) > 1:
            rest = Measurement.get(console, wide, _table(self.found, shown, 1)).maximum - 1
            if rest + NAME_AT_LEAST <= options.max_width:
                break
            shown.pop()
        yield _table(self.found, shown, NAME_AT_MOST)


def _table(found: Comparison, shown: Sequence[Shown], name_width: int) -> Table:
    made = table("policy" if found.stage == "routing" else found.stage, *(heading for _, heading in shown), gap=1)
    names = made.columns[0]
    names.max_width, names.no_wrap, names.overflow = name_width, False, "fold"
    rows = {(row["policy"], row["figure"]): row for row in found.paired or []}
    for name, _ in found.ranked:
        if name != found.baseline:
            made.add_row(Text(name), *(_cell(rows[(name, path)]) for path, _ in shown))
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
