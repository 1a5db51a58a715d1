"""The distributions of TTFT, TPOT and E2E."""

from collections.abc import Mapping
from typing import Final

from headway.report import html
from headway.report.charts import Palette, axis, chart, hint_layer, hints, line_layer, rule_layer, side_by_side
from headway.report.digest import Book, Curve
from headway.report.number_format import number
from headway.results.groups import promises
from headway.results.statistics import PS_PER_MS
from headway.types import Json

WIDE: Final = 20  # if the maximum is more than this many times the median, the axis is logarithmic


def cdf(
    name: str,
    curves: Mapping[str, Curve],
    colours: Palette,
    baseline: str | None,
    target_ms: float | None,
    interpolate: str = "step-after",
) -> Json:
    """Return a chart with one line per policy, and a target as a dashed line."""
    values = [{"policy": policy, "ms": ms, "share": share} for policy, points in curves.items() for ms, share in points]
    wide = _wide(curves)
    scale = {"type": "log", "nice": False} if wide else {"zero": False}
    across = axis("ms", f"{name}, ms", scale=scale, axis={"tickCount": 5, "gridOpacity": 0.4 if wide else 1})
    up = axis("share", "share of requests", axis={"format": ".0%"}, scale={"domain": [0, 1]})
    hint = hints(("policy", "policy"), ("ms", f"{name}, ms"), ("share", "share of requests"))
    layers = [
        line_layer(across, up, colours, baseline, interpolate=interpolate, strokeWidth=2, clip=True),
        hint_layer(across, up, hint, size=60, filled=True),
    ]
    if target_ms is not None:
        layers.append(rule_layer("x", target_ms, f"target: {target_ms:g} ms"))
    return chart(f"Distribution of {name} by policy: share of requests at or below a time.", values, layer=layers)


def _wide(curves: Mapping[str, Curve]) -> bool:
    low = min((points[0][0] for points in curves.values() if points), default=0.0)
    half = min((points[len(points) // 2][0] for points in curves.values() if points), default=0.0)
    return low > 0 and max(points[-1][0] for points in curves.values() if points) > WIDE * half


NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "E2E"}
LONG: Final = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "End to end"}
STATISTICS: Final = ("mean", "p50", "p75", "p90", "p95", "p99", "min", "max")


def distributions(book: Book) -> str:
    figures = []
    for name, short in NAMES.items():
        curves = {run.label: run.curves[name] for run in book.drawn if run.curves[name]}
        if curves:
            target = target_ms(book.cases.cases[0].scenario, name)
            chart = cdf(short, curves, book.colours, book.baseline, target)
            figures.append(book.figure(f"{LONG[name]} ({short})", chart))
    if not figures:
        return ""
    rows = [
        [book.key(case.label), short, *(number(case.summary["latency"][name][at]) for at in STATISTICS)]
        for name, short in NAMES.items()
        for case in book.cases.cases
    ]
    table = html.details("The same as a table", html.table(["run", "ms", *STATISTICS], rows))
    note = "Share of completed requests at or below a time; further left is better. A dashed line is the target."
    return html.section(
        "Latencies", book.legend(), side_by_side(figures), table, note=f"{note} {book.note}".strip(), name="latencies"
    )


def target_ms(scenario: Json, name: str) -> float | None:
    """Return the target of all requests; None if there is no target, or if tenants have their own targets."""
    promised = promises(scenario)
    target_ps = None if promised.own else getattr(promised.default, f"{name}_ps")
    return None if target_ps is None else target_ps / PS_PER_MS
