"""A sweep: figures along what was varied, or one figure against another where nothing varied is a quantity."""

from __future__ import annotations

from collections.abc import Sequence

from headway.report.charts.base import DASHES, axis, by_policy, chart, dashed, hints
from headway.report.palette import Palette
from headway.types import Json


def along(
    name: str, title: str, rows: Sequence[Json], colours: Palette, baseline: str | None, *, log: bool = False
) -> Json:
    """A line a policy. A row has `policy`, `at` and `value`, and `low` and `high` where there were several seeds."""
    across = axis("at", name, scale={"zero": False, "nice": False, "padding": 8})
    up = axis("value", title, scale={"type": "log"} if log else {}, axis={"gridOpacity": 0.4 if log else 1})
    colour = by_policy(colours)
    layers: list[Json] = []
    if any("low" in row for row in rows):
        band = {"y": {**axis("low", title)}, "y2": {"field": "high"}, "x": across, "color": colour}
        layers.append({"mark": {"type": "area", "opacity": 0.15}, "encoding": band})
    layers += [
        {
            "mark": {"type": "line", "strokeWidth": 2},
            "encoding": {"x": across, "y": up, "color": colour, "strokeDash": dashed(baseline)},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 45, "opacity": 1},
            "encoding": {
                "x": across,
                "y": up,
                "color": colour,
                "tooltip": hints(("policy", "policy"), ("at", name), ("value", title)),
            },
        },
    ]
    return chart(f"{title} against {name}, by policy.", rows, layer=layers)


def pareto(x: str, y: str, rows: Sequence[Json], colours: Palette) -> Json:
    """A point a run; those that no other beats in both figures are joined. A row has `policy`, `label`, `x`, `y` and
    `front`."""
    across, up = axis("x", x, scale={"zero": False}), axis("y", y, scale={"zero": False})
    front = {
        "transform": [{"filter": {"field": "front", "equal": True}}],
        "mark": {
            "type": "line",
            "interpolate": "step-after",
            "strokeDash": DASHES,
            "strokeWidth": 1.2,
            "style": "target",
        },
        "encoding": {"x": across, "y": up, "order": {"field": "x"}},
    }
    points = {
        "mark": {"type": "point", "filled": True, "size": 70, "opacity": 0.95},
        "encoding": {
            "x": across,
            "y": up,
            "color": by_policy(colours),
            "tooltip": hints(("label", "run"), ("x", x), ("y", y)),
        },
    }
    return chart(f"{y} against {x}: a point a run, those that no other beats joined.", rows, layer=[front, points])


def against_load(
    unit: str,
    load: str,
    rows: Sequence[Json],
    colours: Palette,
    limits: Sequence[tuple[str, float]] = (),
    knee: float | None = None,
) -> Json:
    """A line for each figure against the load. A row has `figure`, `at` and `value`. A limit is a broken line across,
    the knee one upwards."""
    across, up = axis("at", load), axis("value", unit)
    scale = {"domain": list(colours), "range": list(colours.values())}
    encoding = {
        "x": across,
        "y": up,
        "color": {"field": "figure", "type": "nominal", "scale": scale, "legend": None},
        "tooltip": hints(("figure", "figure"), ("at", load), ("value", unit)),
    }
    rule = {"type": "rule", "strokeDash": DASHES, "strokeWidth": 1.2, "style": "target"}
    marks = [("y", name, limit) for name, limit in limits] + ([] if knee is None else [("x", load, knee)])
    rules = [
        {
            "data": {"values": [{}]},
            "mark": rule,
            "encoding": {channel: {"datum": place}, "tooltip": {"value": f"{name}: {place:g}"}},
        }
        for channel, name, place in marks
    ]
    mark = {"type": "line", "strokeWidth": 2, "point": {"filled": True, "size": 45}}
    layers = [{"mark": mark, "encoding": encoding}, *rules]
    return chart(f"{', '.join(colours)} ({unit}) against {load}.", rows, layer=layers)
