"""Charts as Vega-Lite specifications: plain dicts that a page or a notebook draws."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

import msgspec

from headway.report import html
from headway.report.number_format import brief
from headway.results.store import clean
from headway.results.time_grid import Grid
from headway.types import Json

# One colour per policy, the same in every chart of a page: the palette of Okabe and Ito for colour-blind readers,
# without black, which is invisible on a dark page, and yellow, which is invisible on a white page.
COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
GREY: Final = "#868686"  # colour of the baseline
MOST: Final = len(COLOURS) + 1  # maximum number of policies in a chart: one per colour, and the baseline

Palette = Mapping[str, str]  # label of a policy -> colour


def palette(labels: Iterable[str], baseline: str | None) -> dict[str, str]:
    """Return a colour for each label; the baseline is grey."""
    colours = iter(COLOURS)
    return {label: GREY if label == baseline else next(colours) for label in labels}


def legend(colours: Palette, baseline: str | None = None) -> str:
    """Return the legend of colours as HTML; an empty string if there is only one colour."""
    if len(colours) < 2:
        return ""
    items = "".join(
        f'<li><span class="key" style="background:{colour}"></span>{escape(name)}'
        f"{' (baseline)' if name == baseline else ''}</li>"
        for name, colour in colours.items()
    )
    return f'<ul class="legend">{items}</ul>'


SCHEMA: Final = "https://vega.github.io/schema/vega-lite/v6.json"
HEIGHT: Final = 220
DASHES: Final = [4, 3]
TARGET_LINE: Final = {"strokeDash": DASHES, "strokeWidth": 1.2, "style": "target"}
# Units of a time axis: minimum length of the axis in seconds, seconds per unit, and name.
UNITS: Final = ((172_800, 3600, "hours"), (600, 60, "minutes"), (0, 1, "seconds"))


def chart(description: str, values: Sequence[Json], *, height: int = HEIGHT, **rest: Any) -> Json:
    """Return a chart as wide as its container; the description is for screen readers."""
    frame = {"$schema": SCHEMA, "description": description, "width": "container", "height": height}
    return {**frame, "data": {"values": list(values)}, **rest}


def axis(field: str, title: str, **rest: Any) -> Json:
    """Return an axis for a quantity."""
    scale = rest.pop("scale", {})
    return {"field": field, "type": "quantitative", "title": title, "scale": scale, **rest}


def by_policy(colours: Palette) -> Json:
    """Return the colour encoding of policies; the page has one legend for all charts."""
    scale = {"domain": list(colours), "range": list(colours.values())}
    return {"field": "policy", "type": "nominal", "scale": scale, "legend": None}


def offset(colours: Palette) -> Json:
    """Return the encoding that puts marks of one category side by side, in the order of the policies."""
    return {"field": "policy", "type": "nominal", "sort": list(colours)}


def categories(field: str, names: Sequence[str], kind: str = "nominal", **axis: Any) -> Json:
    """Return an axis of names, in the given order."""
    return {"field": field, "type": kind, "title": None, "sort": list(names), "axis": axis}


def line_layer(x: Json, y: Json, colours: Palette, baseline: str | None, **mark: Any) -> Json:
    """Return one line per policy. The baseline is dashed, so that it can be recognised without colour."""
    test = {"test": {"field": "policy", "equal": baseline or ""}, "value": DASHES}
    dash = {"condition": test, "value": [1, 0]}
    encoding = {"x": x, "y": y, "color": by_policy(colours), "strokeDash": dash}
    return {"mark": {"type": "line", **mark}, "encoding": encoding}


def hint_layer(x: Json, y: Json, hint: list[Json], **mark: Any) -> Json:
    """Return invisible points that show tooltips near a line."""
    return {"mark": {"type": "point", "opacity": 0, **mark}, "encoding": {"x": x, "y": y, "tooltip": hint}}


def point_layer(x: Json, y: Json, colours: Palette, hint: list[Json], **mark: Any) -> Json:
    encoding = {"x": x, "y": y, "color": by_policy(colours), "tooltip": hint}
    return {"mark": {"type": "point", "filled": True, **mark}, "encoding": encoding}


def rule_layer(channel: str, place: float, text: str) -> Json:
    """Return a dashed line across the chart, at a value of the axis `channel`."""
    encoding: Json = {channel: {"datum": place}, "tooltip": {"value": text}}
    return {"data": {"values": [{}]}, "mark": {"type": "rule", **TARGET_LINE}, "encoding": encoding}


def grouped_bars(
    description: str, rows: Sequence[Json], x: Json, y: Json, colours: Palette, hint: list[Json], **rest: Any
) -> Json:
    """Return a chart with a bar for each policy and each category along the y axis."""
    encoding = {"x": x, "y": y, "yOffset": offset(colours), "color": by_policy(colours), "tooltip": hint}
    return chart(description, rows, mark={"type": "bar", "cornerRadiusEnd": 2}, encoding=encoding, **rest)


ROLES: Final = {"best": COLOURS[0], "other": COLOURS[5], "baseline": GREY}


def ranked_bars(title: str, rows: Sequence[Json], *, share: bool = False, colours: Palette = ROLES) -> Json:
    """Return a bar for each row, in the given order. A row has `name`, `value`, and `role`, which sets the colour. It
    may have `low` and `high`, the ends of an interval."""
    names = [row["name"] for row in rows]
    across = axis("value", title, axis={"format": ".0%"} if share else {})
    along_y = categories("name", names, labelLimit=240, ticks=False)
    used = [role for role in colours if any(row["role"] == role for row in rows)]
    scale = {"domain": used, "range": [colours[role] for role in used]}
    colour = {"field": "role", "type": "nominal", "scale": scale, "legend": None}
    hint = hints(("name", "name"), ("value", title), ("low", "interval from"), ("high", "to"))
    bars: Json = {"mark": {"type": "bar", "cornerRadiusEnd": 2}}
    bars["encoding"] = {"x": across, "y": along_y, "color": colour, "tooltip": hint}
    ends = {"x": {**across, "field": "low"}, "x2": {"field": "high"}, "y": along_y}
    known = {"filter": "isValid(datum.low) && isValid(datum.high)"}
    interval = {"transform": [known], "mark": {"type": "rule", "strokeWidth": 1.5}, "encoding": ends}
    return chart(f"{title}, by name.", rows, height=max(40, 22 * len(rows)), layer=[bars, interval])


def hints(*fields: tuple[str, str]) -> list[Json]:
    """Return the tooltip of a mark from fields and their titles."""
    return [{"field": field, "title": title} for field, title in fields]


def time_unit(span_s: float) -> tuple[float, str]:
    """Return the unit of a time axis: its length in seconds, and its name."""
    return next((size, name) for least, size, name in UNITS if span_s >= least)


def largest(values: Iterable[float], at_least: float = 0.0) -> float:
    return max(values, default=at_least) or at_least


def figure(name: str, title: str, chart: Json) -> str:
    """Return the HTML of a chart. `name` must be unique on the page. The data is escaped, so that it cannot end the
    script element."""
    data = msgspec.json.encode(clean(chart)).decode().replace("<", "\\u003c")
    caption = f"<figcaption>{html.text(title)}</figcaption>" if title else ""
    return (
        f'<figure>{caption}<div class="chart" id="{name}"></div>'
        f'<script type="application/json" data-chart="{name}">{data}</script></figure>'
    )


def side_by_side(figures: Sequence[str]) -> str:
    return f'<div class="pair">{"".join(figures)}</div>'


ROW: Final = 17  # height of an instance's row in a heat map, in pixels
CROWD: Final = 24  # with more instances than this, a heat map hides some of their names
LEAST: Final = 60

Line = list[tuple[float, float]]  # points of a stepped line: time in seconds, and value from that time on


def heat(
    title: str, rows: Mapping[str, Sequence[float | None]], grid: Grid, top: float, *, share: bool = False
) -> Json:
    """Return a heat map with a row per instance and a column per interval of the run. `top` is the upper end of the
    colour scale, so that adjacent charts can share one scale."""
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
    hint = hints(("instance", "instance"), ("from", f"from, {unit}"), ("to", f"to, {unit}"), ("value", title))
    crowd = len(rows) > CROWD
    names = categories("instance", list(rows), "ordinal", labelLimit=90, labelOverlap=crowd, ticks=False, domain=False)
    ends = [brief(grid.seconds(0) / size), brief(grid.seconds(grid.bins) / size)]
    return chart(
        f"{title}, by instance and time.",
        values,
        height=max(LEAST, ROW * len(rows)),
        mark={"type": "rect"},
        encoding={
            "x": axis("from", unit, scale={"domain": ends, "nice": False}, axis={"grid": False}),
            "x2": {"field": "to"},
            "y": names,
            "color": {"field": "value", "type": "quantitative", "scale": scale, "legend": legend},
            "tooltip": hint,
        },
    )


def time_axis(span: tuple[float, float]) -> tuple[float, str, Json]:
    """Return the unit of a chart over time, its name, and the axis."""
    size, unit = time_unit(span[1] - span[0])
    return size, unit, axis("at", unit, scale={"domain": [brief(end / size) for end in span], "nice": False})


def lines(
    title: str,
    series: Mapping[str, Line],
    span: tuple[float, float],
    colours: Palette,
    base: str | None,
    group: str = "policy",
) -> Json:
    """Return a chart with a stepped line for each policy, or for each tenant."""
    size, unit, across = time_axis(span)
    values = [
        {"policy": policy, "at": brief(at / size), "value": brief(value)}
        for policy, points in series.items()
        for at, value in points
    ]
    up = axis("value", title)
    hint = hints(("policy", group), ("at", unit), ("value", title))
    layers = [
        line_layer(across, up, colours, base, interpolate="step-after", strokeWidth=1.8, clip=True),
        hint_layer(across, up, hint, size=50, filled=True, clip=True),
    ]
    return chart(f"{title} over time, by {group}.", values, height=180, layer=layers)


def events(rows: Sequence[Json], span: tuple[float, float], colours: Palette) -> Json:
    """Return a chart with a lane for each kind of event and a mark for each event. A mark is as long as its event. A
    row has `policy`, `kind`, `at`, `until` (seconds), `count`, `text` and `link` (the address that a click opens)."""
    size, unit, across = time_axis(span)
    short = (span[1] - span[0]) / 300  # length of the shortest visible mark, in seconds
    values = [
        {**row, "at": brief(row["at"] / size), "until": brief(max(row["until"], row["at"] + short) / size)}
        for row in rows
    ]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    many = len({row["policy"] for row in rows})
    return chart(
        "Events over time, a lane for each kind, by policy.",
        values,
        height=max(LEAST, len(kinds) * max(18, 7 * many)),
        mark={"type": "bar", "opacity": 0.85, "clip": True},
        encoding={
            "x": across,
            "x2": {"field": "until"},
            "y": categories("kind", kinds, labelLimit=130, ticks=False, grid=True),
            "yOffset": offset(colours),
            "color": by_policy(colours),
            "href": {"field": "link"},
            "tooltip": hints(
                ("kind", "event"), ("policy", "policy"), ("at", unit), ("count", "count"), ("text", "details")
            ),
        },
    )


def bins(title: str, counts: Sequence[tuple[str, float]], unit: str, colour: str) -> Json:
    """Return a histogram with a labelled bar for each bin."""
    across = {"field": "bin", "type": "ordinal", "title": None, "sort": None}
    return chart(
        f"{title}: {unit} by size.",
        [{"bin": label, "value": value} for label, value in counts],
        mark={"type": "bar", "color": colour},
        encoding={
            "x": {**across, "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": axis("value", unit),
            "tooltip": hints(("bin", "tokens"), ("value", unit)),
        },
    )


def along(
    name: str, title: str, rows: Sequence[Json], colours: Palette, baseline: str | None, *, log: bool = False
) -> Json:
    """Return a chart of a figure against the varied key of a sweep, with a line per policy. A row has `policy`, `at`
    and `value`."""
    across = axis("at", name, scale={"zero": False, "nice": False, "padding": 8})
    up = axis("value", title, scale={"type": "log"} if log else {}, axis={"gridOpacity": 0.4 if log else 1})
    hint = hints(("policy", "policy"), ("at", name), ("value", title))
    points = point_layer(across, up, colours, hint, size=45, opacity=1)
    layers = [line_layer(across, up, colours, baseline, strokeWidth=2), points]
    return chart(f"{title} against {name}, by policy.", rows, layer=layers)


def pareto(x: str, y: str, rows: Sequence[Json], colours: Palette) -> Json:
    """Return a chart with a point per run, and a line through the Pareto front. A row has `policy`, `label`, `x`, `y`
    and `front`."""
    across, up = axis("x", x, scale={"zero": False}), axis("y", y, scale={"zero": False})
    front = {
        "transform": [{"filter": {"field": "front", "equal": True}}],
        "mark": {"type": "line", "interpolate": "step-after", **TARGET_LINE},
        "encoding": {"x": across, "y": up, "order": {"field": "x"}},
    }
    points = point_layer(across, up, colours, hints(("label", "run"), ("x", x), ("y", y)), size=70, opacity=0.95)
    return chart(f"{y} against {x}: a point per run, with the Pareto front.", rows, layer=[front, points])


def against_load(
    unit: str,
    load: str,
    rows: Sequence[Json],
    colours: Palette,
    limits: Sequence[tuple[str, float]] = (),
    knee: float | None = None,
) -> Json:
    """Return a chart with a line for each figure against the load. A row has `figure`, `at` and `value`. Dashed lines
    show the limits and the knee, which is the highest load that meets the targets."""
    encoding = {
        "x": axis("at", load),
        "y": axis("value", unit),
        "color": {**by_policy(colours), "field": "figure"},
        "tooltip": hints(("figure", "figure"), ("at", load), ("value", unit)),
    }
    mark = {"type": "line", "strokeWidth": 2, "point": {"filled": True, "size": 45}}
    layers = [{"mark": mark, "encoding": encoding}]
    layers += [rule_layer("y", limit, f"{name}: {limit:g}") for name, limit in limits]
    layers += [] if knee is None else [rule_layer("x", knee, f"{load}: {knee:g}")]
    return chart(f"{', '.join(colours)} ({unit}) against {load}.", rows, layer=layers)
