"""A comparison in the terminal: one row a policy, best first; below, the paired differences from the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.paired import NOISE, SAME, SHARE
from headway.experiment.verdict import has_slo, written
from headway.report.terminal import (
    BEST,
    GAP,
    Column,
    Fitted,
    hours,
    label_column,
    least_width,
    money,
    number,
    percent,
    table,
    title,
    wrap,
)
from headway.results import ranking
from headway.types import Json

MARKS: Final = {"template": "t", "control": "c"}
MEANINGS: Final = {"template": "constants to search", "control": "shows one effect, not for use"}
GROUP: Final = 35  # columns that tenants or classes and FIGURES may take

SCALED: tuple[Column, ...] = (
    ("scaling.replica_seconds", "replica\nhours", hours),
    ("cost.usd", "cost\nUSD", money),
)


def _columns(found: Comparison, fairness: bool) -> list[Column]:
    """The figures of a comparison, the one that it is ranked by among them."""
    even: Column = ("fairness.jain_goodput", "tenants'\nJain", lambda share: number(share, 3))
    shown = figures([summary for _, summary in found.ranked], has_slo(found.scenario))
    if found.stage == "scaling":  # what it is about comes first, and then how fast
        shown.sort(key=lambda column: column[0].startswith("latency"))
        place = sum(not path.startswith("latency") for path, _, _ in shown)
    else:
        place = len(shown)
    if any(summary.get("scaling", {}).get(way) for _, summary in found.ranked for way in ("scale_ups", "scale_downs")):
        shown[place:place] = SCALED
    usual: list[Column] = [
        *shown,
        *([even] if fairness else []),
        ("cache.token_hit_ratio", "cache\nhits", percent),
    ]
    if found.stage != "scaling":  # instances that ran for a shorter time get fewer requests, which is not imbalance
        usual.append(("balance.jain", "Jain\nindex", lambda share: number(share, 3)))
    if found.by is None or any(path == found.by for path, _, _ in usual):
        return usual
    section, _, name = found.by.rpartition(".")
    return [(found.by, f"{section}\n{name}", lambda it: GAP if it is None else written(it)), *usual]


def figures(summaries: Iterable[Mapping[str, Any]], slo: bool) -> list[Column]:
    """The figures of runs, or of groups of requests; how many were lost where any were."""
    outcomes = [summary["requests"] for summary in summaries]
    lost = [name for name in ("rejected", "timed_out", "failed") if any(counts[name] for counts in outcomes)]
    return [
        ("latency.ttft.mean", "TTFT ms\nmean", number),
        ("latency.ttft.p99", "\np99", number),
        ("latency.tpot.p99", "TPOT ms\np99", number),
        ("latency.e2e.mean", "E2E ms\nmean", number),
        ("slo.goodput_ratio", "goodput\nshare" if slo else "served\nshare", percent),
        *((f"requests.{name}", name.replace("_", "\n") if "_" in name else f"\n{name}", _count) for name in lost),
    ]


def _count(value: float | None) -> str:
    return number(value, 0)


def _ranking(found: Comparison, shown: Sequence[Column], width: int) -> Table:
    made = table("", _kind(found), *(heading for _, heading, _ in shown), gap=1)
    label_column(made, 1, width)
    for name, summary in found.ranked:
        best = name == found.best
        row = [write(ranking.value(summary, path)) for path, _, write in shown]
        mark = BEST if best else MARKS.get(found.aside.get(name, ""), "")
        made.add_row(mark, Text(wrap(_label(found, name), width)), *row, style="bold" if best else None)
    return made


def _kind(found: Comparison) -> str:
    return "policy" if found.stage == "routing" else found.stage


def _label(found: Comparison, name: str) -> str:
    return f"{name} (oracle)" if name in found.oracles else name


def legend(found: Comparison) -> str:
    """What the marks before policies mean, where there are any; otherwise empty."""
    kinds = set(found.aside.values())
    return "; ".join(f"{MARKS[kind]} {kind}: {MEANINGS[kind]}" for kind in MARKS if kind in kinds)


def comparison_report(found: Comparison, per: str | None = None) -> RenderableType:
    """One row a policy, best first, the winner marked; below, where asked for, one for each policy and tenant or
    class."""
    labels = [_kind(found), *(_label(found, name) for name, _ in found.ranked)]
    columns = _columns(found, fairness=per == "tenant" and bool(found.per(per)))
    deciding = [column for column in columns if column[0] == (found.by or "slo.goodput_ratio")]
    rows = Fitted(labels, columns, lambda shown, width: _ranking(found, shown, width), kept=deciding)
    parts: list[RenderableType] = [title(found.scenario, found.stage), "", rows, ""]
    if marks := legend(found):
        parts += [Text(marks), ""]
    if found.paired is not None and len(found.ranked) > 1:
        parts += [differences(found), ""]
    if per is not None:
        parts += [_per(found, per), ""]
    return Group(*parts, Text(found.verdict))


def _per(found: Comparison, whom: str) -> RenderableType:
    rows = found.per(whom)
    if not rows:
        return Text(f"All requests are of one {whom}: there is nothing to tell apart.")
    group_width = least_width([whom, *(row["id"] for row in rows)], GROUP)

    def build(shown: Sequence[Column], width: int) -> Table:
        made = table(_kind(found), whom, *(head for _, head, _ in shown), gap=1)
        label_column(made, 0, width)
        label_column(made, 1, group_width)
        before = None
        for row in rows:
            name = "" if row["policy"] == before else row["policy"]
            before = row["policy"]
            cells = (write(ranking.value(row, path)) for path, _, write in shown)
            made.add_row(Text(wrap(name, width)), Text(wrap(row["id"], group_width)), *cells)
        return made

    return Fitted([_kind(found), *(name for name, _ in found.ranked)], figures(rows, has_slo(found.scenario)), build)


# The paired differences of a comparison for the terminal: how far each policy is from the baseline, or that it is
# noise.

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
    return Group(Text(head), "", Fitted(names, shown, lambda some, width: _difference_table(found, some, width)))


def _difference_table(found: Comparison, shown: Sequence[Shown], width: int) -> Table:
    made = table("policy" if found.stage == "routing" else found.stage, *(heading for _, heading in shown), gap=1)
    label_column(made, 0, width)
    rows = {(row["policy"], row["figure"]): row for row in found.paired or []}
    for name, _ in found.ranked:
        if name != found.baseline:
            made.add_row(Text(wrap(name, width)), *(_difference(rows[(name, path)]) for path, _ in shown))
    return made


def _difference(row: Json) -> str:
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
