"""Number formats of reports: figures, fractions, times and money; and the headings of figures in a table."""

from collections.abc import Callable, Iterable
from math import floor, log10
from typing import Final

from headway.experiment.verdict import format_figure
from headway.results import ranking
from headway.types import Json

GAP = "–"
TIME_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))
Column = tuple[str, str, Callable[[float | None], str]]  # path of a figure, heading and number format


def number(value: float | None, digits: int = 1) -> str:
    """Write a figure with thousands separators. Figures of 1,000 or more have no decimals."""
    if value is None:
        return GAP
    return f"{value:,.{0 if abs(value) >= 1000 else digits}f}"


def rate_text(value: float | None) -> str:
    """Write a rate with two decimals or, if it is below 0.1, with two significant digits."""
    if value is None or not 0 < value < 0.1:
        return number(value, 2)
    return f"{value:.{1 - floor(log10(value))}f}"


def brief(value: float) -> float:
    """Round a number to the digits that a chart can show."""
    return float(f"{value:.5g}")


def count(value: float | None) -> str:
    return number(value, 0)


def percent(share: float | None) -> str:
    return GAP if share is None else f"{100 * share:.1f} %"


def index(value: float | None) -> str:
    """Write a figure between 0 and 1, such as Jain's index."""
    return number(value, 3)


def time_text(seconds: float) -> str:
    """Write a time in the largest unit in which it is at least 1."""
    for size, unit in TIME_UNITS:
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return "0 s" if not seconds else f"{seconds:.2g} s"


def hours(seconds: float | None) -> str:
    return GAP if seconds is None else format_figure(seconds / 3600)


def money(usd: float | None) -> str:
    return GAP if usd is None else f"{usd:,.2f}" if usd >= 1 else format_figure(usd)


def span(low: float, high: float) -> str:
    return number(low, 0) if low == high else f"{number(low, 0)} to {number(high, 0)}"


# For each figure: its heading in a terminal, and its number format.
FIGURE_COLUMNS: Final[dict[str, tuple[str, Callable[[float | None], str]]]] = {
    "latency.ttft.mean": ("TTFT ms\nmean", number),
    "latency.ttft.p99": ("\np99", number),
    "latency.tpot.p99": ("TPOT ms\np99", number),
    "latency.e2e.mean": ("E2E ms\nmean", number),
    "latency.e2e.p99": ("\np99", number),
    "throughput.requests_per_s": ("served\n/s", number),
    "cache.token_hit_ratio": ("cache\nhits", percent),
    "balance.jain": ("Jain\nindex", index),
    "fairness.jain_goodput": ("tenants'\nJain", index),
    "scaling.replica_seconds": ("replica\nhours", hours),
    "cost.usd": ("cost\nUSD", money),
    "requests.arrived": ("requests\n", count),
    "requests.completed": ("requests\ncompleted", count),
}


def figure_columns(*paths: str) -> list[Column]:
    """Return the columns of these figures. A heading that begins with a line break continues the heading before it."""
    return [(path, *FIGURE_COLUMNS[path]) for path in paths]


def any_column(path: str) -> Column:
    """Return the column of any figure of a summary. If the figure has no heading, its path is the heading."""
    heading, write = FIGURE_COLUMNS.get(path, ("\n", format_gap))
    if heading.startswith("\n"):
        section, _, name = path.removeprefix("latency.").rpartition(".")
        heading = f"{section}{' ms' * path.startswith('latency.')}\n{name}"
    return path, heading, write


def format_gap(value: float | None) -> str:
    return GAP if value is None else format_figure(value)


def share_column(slo: bool) -> Column:
    """Return the column for the fraction of requests that met every target. Without an SLO, the column is the fraction
    of completed requests."""
    return "slo.goodput_ratio", "goodput\nshare" if slo else "served\nshare", percent


def figure_cells(summary: Json, columns: Iterable[Column]) -> list[str]:
    return [write(ranking.value(summary, path)) for path, _, write in columns]
