"""Results as tables for people, at home in 80 columns. Everything here reads plain summaries and prints them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.experiment.compare import Comparison
from headway.experiment.contenders import stage_label
from headway.experiment.verdict import has_slo, written
from headway.report.labels import Fitted, least_width, wrap
from headway.results import ranking
from headway.scenario.overrides import DEFAULT_POLICIES

Column = tuple[str, str, Callable[[float | None], str]]  # a figure's path, its heading, how it is written

GAP = "–"
BEST: Final = "▸"
MARKS: Final = {"template": "t", "control": "c"}
MEANINGS: Final = {"template": "constants to search", "control": "shows one effect, not for use"}
TIME_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
GROUP: Final = 35  # columns that tenants or classes and FIGURES may take


def number(value: float | None, digits: int = 1) -> str:
    """A figure with thousands marked; large ones need no decimals."""
    if value is None:
        return GAP
    return f"{value:,.{0 if abs(value) >= 1000 else digits}f}"


def percent(share: float | None) -> str:
    return GAP if share is None else f"{100 * share:.1f} %"


def time_text(seconds: float) -> str:
    """A time in the largest unit that makes it at least one."""
    for size, unit in TIME_UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if not seconds else f"{seconds:.2g} s"


def hours(seconds: float | None) -> str:
    return GAP if seconds is None else written(seconds / 3600)


def money(usd: float | None) -> str:
    return GAP if usd is None else f"{usd:,.2f}" if usd >= 1 else written(usd)


def table(*headers: str, gap: int = 2) -> Table:
    """A borderless table: words to the left, figures to the right."""
    made = Table(box=None, padding=(0, gap - 1, 0, 1), header_style="bold", pad_edge=True)
    for position, header in enumerate(headers):
        made.add_column(Text(header), justify="left" if position == 0 else "right", no_wrap=True)
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    made = Table(box=None, padding=(0, 1), show_header=False)
    made.add_column(style="bold", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(Text(name), Text(value))
    return made


def title(scenario: Mapping[str, Any], but: str = "") -> RenderableType:
    """What was run, on two lines."""
    size, how = described(scenario, but)
    return Group(Text(f"{scenario['name']}: {size}", style="bold"), Text(how))


def described(scenario: Mapping[str, Any], but: str = "") -> tuple[str, str]:
    """The cluster, and how its step times are made and who decided, `but` for the stage that is compared."""
    cluster = scenario["cluster"]
    deployments = cluster.get("deployments")
    pools = [cluster] if deployments is None else list(deployments.values())
    pools = [half for pool in pools for half in _halves(pool)]
    low, high = (sum(_bounds(pool)[end] * pool["tp"] for pool in pools) for end in (0, 1))
    size = f"{'; '.join(map(_pool, pools))} ({span(low, high)} GPU{'s' if high > 1 else ''})"
    how = f"step times: {', '.join(dict.fromkeys(pool['latency']['model'] for pool in pools))}"
    for stage, spec in scenario["policies"].items():
        label = stage_label(stage, spec)
        if stage != but and (stage == "routing" or label != DEFAULT_POLICIES[stage]):
            how += f"; {stage}: {label}"
    if "routers" in scenario:
        how += f"; {scenario['routers']['count']} routers"
    if scenario.get("signals", {}).get("poll_interval"):
        how += f"; polled every {scenario['signals']['poll_interval']}"
    return size, how


def _halves(pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The two kinds of equal instances of a disaggregated deployment, or the one of another."""
    if "prefill" not in pool:
        return [pool]
    return [{**pool[role], "model": pool["model"], "role": f"{role} "} for role in ("prefill", "decode")]


def _bounds(pool: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most instances that it may have."""
    count = pool["instances"]
    return pool.get("min_replicas", count), pool.get("max_replicas", count)


def span(low: float, high: float) -> str:
    return number(low, 0) if low == high else f"{number(low, 0)} to {number(high, 0)}"


def _pool(pool: Mapping[str, Any]) -> str:
    """Equal instances, in words."""
    model, gpu = (
        each if isinstance(each, str) else each.get("name", "custom") for each in (pool["model"], pool["gpu"])
    )
    low, high = _bounds(pool)
    many = high > 1
    instances = f"{pool.get('role', '')}instance{'s' * many}"
    return f"{span(low, high)} {instances} of {model}, {'each ' * many}on {pool['tp']} × {gpu}"


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
    if found.stage != "scaling":  # who was there for a shorter time got less: that is no want of balance
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


def label_column(made: Table, place: int, width: int) -> None:
    """Make a column one of labels, which `wrap` has broken into lines of this width."""
    column = made.columns[place]
    column.justify, column.max_width, column.no_wrap, column.overflow = "left", width, False, "fold"


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
        from headway.report.paired import differences

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
