"""Load over time: instance by time as a heat map, and lines of what waits, runs and serves, with what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from headway.report.charts.base import axis, brief, by_policy, chart, dashed, hints, time_unit
from headway.report.over_time import Grid
from headway.report.palette import Palette
from headway.types import Json

ROW: Final = 17  # height of an instance
CROWD: Final = 24  # instances from which on not every one has its name beside it
LEAST: Final = 60

Line = list[tuple[float, float]]  # from when on, in seconds, what value


def heat(
    title: str, rows: Mapping[str, Sequence[float | None]], grid: Grid, top: float, *, share: bool = False
) -> Json:
    """A row an instance, a column a part of the run, the darker the more; `top` is the end of the scale, which charts
    beside each other have in common."""
    size, unit = time_unit(grid.seconds(grid.bins) - grid.seconds(0))
    values = [
        {
            "instance": name,
            "from": brief(grid.seconds(place) / size),
            "to": brief(grid.seconds(place + 1) / size),
            "value": brief(value),
        }
        for name, row in rows.items()
        for place, value in enumerate(row)
        if value is not None
    ]
    legend = {"title": None, "orient": "top", "gradientLength": 160, "format": ".0%" if share else ",.2~r"}
    scale = {"type": "quantize", "domain": [0, top], "nice": False}
    names = {"field": "instance", "type": "ordinal", "title": None, "sort": list(rows)}
    hint = hints(("instance", "instance"), ("from", f"from, {unit}"), ("to", f"to, {unit}"), ("value", title))
    ends = [brief(grid.seconds(0) / size), brief(grid.seconds(grid.bins) / size)]
    return chart(
        f"{title}, by instance and time.",
        values,
        height=max(LEAST, ROW * len(rows)),
        mark={"type": "rect"},
        encoding={
            "x": axis("from", unit, scale={"domain": ends, "nice": False}, axis={"grid": False}),
            "x2": {"field": "to"},
            "y": {
                **names,
                "axis": {"labelLimit": 90, "labelOverlap": len(rows) > CROWD, "ticks": False, "domain": False},
            },
            "color": {"field": "value", "type": "quantitative", "scale": scale, "legend": legend},
            "tooltip": hint,
        },
    )


def lines(
    title: str,
    series: Mapping[str, Line],
    span: tuple[float, float],
    colours: Palette,
    base: str | None,
    whose: str = "policy",
) -> Json:
    """A stepped line for each policy, or for each tenant."""
    size, unit = time_unit(span[1] - span[0])
    values = [
        {"policy": policy, "at": brief(at / size), "value": brief(value)}
        for policy, points in series.items()
        for at, value in points
    ]
    across = axis("at", unit, scale={"domain": [brief(end / size) for end in span], "nice": False})
    up = axis("value", title)
    hint = hints(("policy", whose), ("at", unit), ("value", title))
    mark = {"type": "line", "interpolate": "step-after", "strokeWidth": 1.8, "clip": True}
    layers = [
        {
            "mark": mark,
            "encoding": {"x": across, "y": up, "color": by_policy(colours), "strokeDash": dashed(base)},
        },
        {
            "mark": {"type": "point", "opacity": 0, "size": 50, "filled": True, "clip": True},
            "encoding": {"x": across, "y": up, "tooltip": hint},
        },
    ]
    return chart(f"{title} over time, by {whose}.", values, height=180, layer=layers)


def events(rows: Sequence[Json], span: tuple[float, float], colours: Palette) -> Json:
    """What happened when: a lane for each kind, a mark for each event, longer where it lasted. A row has `policy`,
    `kind`, `at`, `until` (seconds), `count` and `said`."""
    size, unit = time_unit(span[1] - span[0])
    short = (span[1] - span[0]) / 300  # at least so long is drawn, else it cannot be seen
    values = [
        {**row, "at": brief(row["at"] / size), "until": brief(max(row["until"], row["at"] + short) / size)}
        for row in rows
    ]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    across = axis("at", unit, scale={"domain": [brief(end / size) for end in span], "nice": False})
    lanes = {"field": "kind", "type": "nominal", "title": None, "sort": kinds}
    many = len({row["policy"] for row in rows})
    return chart(
        "What happened over time, a lane for each kind, by policy.",
        values,
        height=max(LEAST, len(kinds) * max(18, 7 * many)),
        mark={"type": "bar", "opacity": 0.85, "clip": True},
        encoding={
            "x": across,
            "x2": {"field": "until"},
            "y": {**lanes, "axis": {"labelLimit": 130, "ticks": False, "grid": True}},
            "yOffset": {"field": "policy", "type": "nominal", "sort": list(colours)},
            "color": by_policy(colours),
            "tooltip": hints(
                ("kind", "what"), ("policy", "policy"), ("at", unit), ("count", "count"), ("said", "more")
            ),
        },
    )


def bins(title: str, counts: Sequence[tuple[str, float]], unit: str, colour: str) -> Json:
    """A histogram: a bar for each bin, its label below."""
    return chart(
        f"{title}: {unit} by size.",
        [{"bin": label, "value": value} for label, value in counts],
        mark={"type": "bar", "color": colour},
        encoding={
            "x": {
                "field": "bin",
                "type": "ordinal",
                "title": None,
                "sort": None,
                "axis": {"labelAngle": 0, "labelOverlap": True},
            },
            "y": axis("value", unit),
            "tooltip": hints(("bin", "tokens"), ("value", unit)),
        },
    )
