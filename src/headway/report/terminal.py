"""Tables for a terminal of 80 columns or more."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from headway.config.dated_defaults import CURRENT, SETS
from headway.experiment.contenders import stage_label
from headway.policies.registry import DEFAULT_POLICIES
from headway.report.number_format import number, span
from headway.types import Json

# Labels are policies with their parameters, such as `weighted(prefix-affinity:3, queue-depth:2)`, or varied values. A
# label may break before a parenthesis and after a comma or a space. If a word is still too long, it breaks after the
# colon of `file.py:Class` or the sign of `parameter=value`.

USUAL: Final = 28  # maximum number of characters of a label per line, unless a word is longer
LONGEST: Final = 40  # maximum width that labels may take to keep long words whole, in characters
FIGURES: Final = 15  # number of characters per line reserved for figures in a narrow terminal
WORDS: Final = re.compile(r"\(?[^\s,(]*,?\s*")
PARTS: Final = re.compile(r"[^:=]*[:=]+|[^:=]+")
C = TypeVar("C")


def wrap(label: str, width: int) -> str:
    """Return the label, broken into lines of at most `width` characters. A word that is longer than `width` may also
    break after `:` and `=`. A line is longer than `width` only if it cannot be broken."""
    lines = [""]
    for word in words(label):
        for part in [word] if len(word.rstrip()) <= width else PARTS.findall(word):
            if lines[-1] and len(lines[-1] + part.rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def least_width(labels: Iterable[str], room: int) -> int:
    """Return the smallest width at which no label breaks inside a name. If the table has less `room` than that, return
    the width that is left for labels."""
    parts = [part.rstrip() for label in labels for word in words(label) for part in PARTS.findall(word)]
    return max(1, min(max(map(len, parts), default=1), LONGEST, room - FIGURES))


def words(label: str) -> list[str]:
    """Split a label into the pieces between which it may break."""
    return [word for word in WORDS.findall(label) if word]


@dataclass(frozen=True)
class Fitted(Generic[C]):
    """A table that fits a narrow terminal: it drops its last columns rather than break a label inside a name.

    `build` returns the table with the given figures as columns, and with labels of the given width. Figures in `fixed`,
    by default the first figure, are never dropped.
    """

    labels: Sequence[str]
    figures: Sequence[C]
    build: Callable[[Sequence[C], int], Table]
    fixed: Sequence[C] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.fit(console, options)

    def fit(self, console: Console, options: ConsoleOptions) -> Table:
        wide = options.update(max_width=10_000)
        room = options.max_width
        figures, least = list(self.figures), least_width(self.labels, room)
        while True:
            rest = Measurement.get(console, wide, self.build(figures, least)).maximum - least
            fixed = self.fixed or self.figures[:1]
            more = [place for place, figure in enumerate(figures) if figure not in fixed]
            if rest + least <= room or not more:
                break
            figures.pop(more[-1])
        return self.build(figures, max(least, min(USUAL, room - rest)))


EIGHTHS = " ▏▎▍▌▋▊▉█"
HEIGHTS = " ▁▂▃▄▅▆▇█"


def bar(share: float, width: int = 30) -> str:
    """Draw a horizontal bar. A `share` of 1 fills the width."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (EIGHTHS[rest] if rest else "")


def columns(values: Sequence[float]) -> str:
    """Return one character per value: a vertical bar whose height is relative to the largest value. Every positive
    value is visible."""
    top = max(values, default=0.0)
    if top <= 0:
        return " " * len(values)
    return "".join(HEIGHTS[max(1, round(value / top * 8))] if value > 0 else " " for value in values)


BEST: Final = "▸"
STATISTICS: Final = ("mean", "p50", "p90", "p95", "p99", "max")


def table(
    *headers: str, rows: Iterable[Sequence[str | Text]] = (), gap: int = 2, left: Collection[int] = (0,)
) -> Table:
    """Return a table without borders, with the columns in `left` aligned left and the others right."""
    grid = Table(box=None, padding=(0, gap - 1, 0, 1), header_style="bold", pad_edge=True)
    for position, header in enumerate(headers):
        grid.add_column(Text(header), justify="left" if position in left else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return grid


def facts(rows: Iterable[tuple[str, str]]) -> Table:
    grid = Table(box=None, padding=(0, 1), show_header=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    return grid


def latency_table(latency: Json, names: Mapping[str, str]) -> Table:
    """Return a table with the statistics of each kind of latency."""
    rows = [[name, *(number(latency[key][at]) for at in STATISTICS)] for name, key in names.items()]
    return table("ms", *STATISTICS, rows=rows)


def title(scenario: Mapping[str, Any], but: str = "") -> RenderableType:
    """Describe the scenario in two lines, without the policy of stage `but`."""
    size, how = describe_scenario(scenario, but)
    return Group(Text(f"{scenario['name']}: {size}", style="bold"), Text(how))


def describe_scenario(scenario: Mapping[str, Any], but: str = "") -> tuple[str, str]:
    """Return two descriptions: of the cluster, and of its latency models and policies. Leave out the policy of stage
    `but`."""
    cluster = scenario["cluster"]
    deployments = cluster.get("deployments")
    pools = [cluster] if deployments is None else list(deployments.values())
    pools = [half for pool in pools for half in _halves(pool)]
    low, high = (sum(_bounds(pool)[end] * pool["tp"] for pool in pools) for end in (0, 1))
    size = f"{'; '.join(map(_pool, pools))} ({span(low, high)} GPU{'s' if high > 1 else ''})"
    how = f"step times: {', '.join(dict.fromkeys(pool['latency']['model'] for pool in pools))}"
    for stage, spec in scenario["policies"].items():
        label = stage_label(stage, spec, SETS[scenario.get("defaults", CURRENT)].auto)
        if stage != but and (stage == "routing" or label != DEFAULT_POLICIES[stage]):
            how += f"; {stage}: {label}"
    if "routers" in scenario:
        how += f"; {scenario['routers']['count']} routers"
    if scenario.get("signals", {}).get("poll_interval"):
        how += f"; polled every {scenario['signals']['poll_interval']}"
    return size, how


def _halves(pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the prefill pool and the decode pool of a disaggregated deployment. If the deployment is not
    disaggregated, return the deployment itself."""
    if "prefill" not in pool:
        return [pool]
    return [{**pool[role], "model": pool["model"], "role": f"{role} "} for role in ("prefill", "decode")]


def _bounds(pool: Mapping[str, Any]) -> tuple[int, int]:
    count = pool["instances"]
    return pool.get("min_replicas", count), pool.get("max_replicas", count)


def _pool(pool: Mapping[str, Any]) -> str:
    model, gpu = (
        each if isinstance(each, str) else each.get("name", "custom") for each in (pool["model"], pool["gpu"])
    )
    low, high = _bounds(pool)
    many = high > 1
    instances = f"{pool.get('role', '')}instance{'s' * many}"
    return f"{span(low, high)} {instances} of {model}, {'each ' * many}on {pool['tp']} × {gpu}"


def label_column(grid: Table, place: int, width: int) -> None:
    """Format a column for labels that `wrap` has broken into lines of this width."""
    column = grid.columns[place]
    column.justify, column.max_width, column.no_wrap, column.overflow = "left", width, False, "fold"
