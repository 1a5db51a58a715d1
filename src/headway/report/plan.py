"""A plan for people: what was tried, the curve of latency and goodput against load, and what it comes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.errors import HeadwayError
from headway.experiment.plan import Judged, Plan
from headway.experiment.targets import Target
from headway.report import html
from headway.report.charts import against_load, figure, legend, palette
from headway.report.terminal import GAP, bar, brief, number, percent, table
from headway.results import store

WIDTH: Final = 9  # of a bar
AXES: Final = {"rate": "requests/s", "users": "users", "speed": "speed", "load": "load"}
DRAWN: Final = ("ttft", "tpot", "e2e")


def report(plan: Plan) -> RenderableType:
    """For the terminal."""
    slo = ", ".join(target.written() for target in plan.targets)
    parts: list[RenderableType] = [Text(f"{plan.scenario['name']}: {slo}", style="bold"), _ran(plan), ""]
    parts += [_tried(plan), ""]
    if plan.curve:
        parts += [_curve(plan), ""]
    parts.append(Text(plan.verdict))
    parts.extend(Text(note) for note in plan.notes)
    return Group(*parts)


def _ran(plan: Plan) -> str:
    seeds = "1 seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    return f"{plan.runs:,} runs of {len(plan.tried):,} candidates under up to {seeds} each"


def _rows(plan: Plan) -> list[Judged]:
    """What the search looked at: clusters under the load that was given, or loads on the cluster that was."""
    drawn = [point["load"] for point in plan.curve]
    if plan.find == "load":
        near = (plan.holds, plan.breaks)
        return [one for one in plan.tried if one.load in near or float(one.load) not in drawn]
    rows = [one for one in plan.tried if one.load == plan.load.base]
    return sorted(rows, key=lambda one: plan.space.key(one.counts))


def _tried(plan: Plan) -> Table:
    by_load = plan.find == "load"
    what = [AXES[plan.load.unit]] if by_load else [pool.name for pool in plan.space.pools]
    if not by_load and len(what) == 1:
        what = ["replicas"]
    made = table(
        "", *what, *([] if by_load else ["USD/h"]), "seeds", *(target.figure for target in plan.targets), gap=1
    )
    for one in _rows(plan):
        chosen = one == plan.answer
        first = [number(float(one.load), 2)] if by_load else [f"{count:,}" for count in one.counts]
        price = [] if by_load else [number(plan.space.usd_per_hour(one.counts), 2)]
        cells = [_cell(plan, one, target) for target in plan.targets]
        seeds = f"{one.seeds_met}/{one.seeds_run}"
        made.add_row("▸" if chosen else "", *first, *price, seeds, *cells, style="bold" if chosen else None)
    return made


def _cell(plan: Plan, one: Judged, target: Target) -> str:
    """The mean over the seeds that ran, and half its interval."""
    found = plan.estimate(one, target)
    if found["mean"] is None:
        return GAP
    shown: Callable[[float], str] = percent if target.share else number
    if found["high"] is None or found["low"] == found["high"]:
        return shown(found["mean"])
    half = shown(max(found["high"] - found["mean"], found["mean"] - found["low"]))
    return f"{shown(found['mean'])} ±{half.removesuffix(' %')}"


def _family(plan: Plan) -> str:
    """Which latency a bar shows: that of the first target that is one."""
    names = [target.figure.rpartition("_")[0] for target in plan.targets]
    return next((name for name in names if name in DRAWN), "ttft")


def _curve(plan: Plan) -> RenderableType:
    name = _family(plan)
    other = "ttft" if name != "ttft" else "tpot"
    pair = sorted((name, other), key=DRAWN.index)
    heads = [head for one in pair for head in (f"{one.upper()} ms\np50", "\np99")]
    made = table(
        "", f"{AXES[plan.load.unit]}\n", *heads, "goodput\n/s", "\nshare", f"{name.upper()} p99\n", "goodput\n", gap=1
    )
    for column in made.columns[-2:]:
        column.justify = "left"
    slowest = max((point[f"{name}_p99"] or 0.0 for point in plan.curve), default=0.0) or 1.0
    most = max((point["goodput_per_s"] or 0.0 for point in plan.curve), default=0.0) or 1.0
    for point in plan.curve:
        knee = plan.holds is not None and point["load"] == float(plan.holds)
        figures = [number(point[f"{one}_{at}"]) for one in pair for at in ("p50", "p99")]
        made.add_row(
            "▸" if knee else "",
            number(point["load"], 2),
            *figures,
            number(point["goodput_per_s"]),
            percent(point["attainment"]),
            bar((point[f"{name}_p99"] or 0.0) / slowest, WIDTH),
            bar((point["goodput_per_s"] or 0.0) / most, WIDTH),
            style="bold" if knee else None,
        )
    who = plan.space.written(plan.counts)
    return Group(Text(f" against the load, on {who} (means over the seeds)"), made)


# --- files ------------------------------------------------------------------------------------------------------------


def check(path: Path) -> None:
    """Refuse a file that could not be written in the end, before anything is run."""
    if path.suffix not in WRITERS:
        raise HeadwayError(f"--output: {str(path)!r} should end in {', '.join(WRITERS)}, to say what is written.")
    if not path.parent.is_dir():
        raise HeadwayError(f"--output: there is no folder {str(path.parent)!r}.")


def write(path: Path, plan: Plan) -> None:
    html.write(path, WRITERS[path.suffix](plan), "--output")


def _json(plan: Plan) -> str:
    return store.pretty(plan.summary())


def _page(plan: Plan) -> str:
    title = f"{plan.scenario['name']}: {', '.join(target.written() for target in plan.targets)}"
    parts = [html.heading(title, plan.verdict, *plan.notes), html.facts(_facts(plan))]
    if plan.curve:
        parts += [
            html.scriptless(),
            *_charts(plan),
            html.section("The curve", _points(plan), note="Means over the seeds."),
        ]
    columns = [
        "replicas",
        AXES[plan.load.unit],
        "USD/h",
        "seeds met",
        *(f"{one.figure}, {one.describe_limit()}" for one in plan.targets),
    ]
    rows = [
        [
            plan.space.written(one.counts),
            number(float(one.load), 2),
            number(plan.space.usd_per_hour(one.counts), 2),
            f"{one.seeds_met} of {one.seeds_run}",
            *(_cell(plan, one, target) for target in plan.targets),
        ]
        for one in plan.tried
    ]
    means = "means with half their 95 % intervals over the seeds that ran"
    note = f"{_ran(plan)}; {means}. The first seed that fails decides."
    return html.page(title, [*parts, html.section("What was tried", html.table(columns, rows), note=note)])


def _facts(plan: Plan) -> list[tuple[str, str]]:
    found = [("of " + name, f"{count:,}") for name, count in plan.replicas.items()]
    found += [("USD an hour", number(plan.space.usd_per_hour(plan.counts), 2)), ("runs", f"{plan.runs:,}")]
    if plan.holds is not None:
        found.append(("load that is held", plan.load.written(plan.holds)))
    return found


def _points(plan: Plan) -> str:
    names = [name for name in plan.curve[0] if name not in ("load", "meets")]
    heads = [AXES[plan.load.unit], *(name.replace("_per_s", "/s").replace("_", " ") for name in names)]

    def shown(name: str, value: float | None) -> str:
        return percent(value) if name in ("attainment", "completed") else number(value, 0 if name == "seeds_met" else 1)

    rows = [[number(point["load"], 2), *(shown(name, point[name]) for name in names)] for point in plan.curve]
    return html.table(heads, rows)


def _charts(plan: Plan) -> list[str]:
    """A chart of each latency that a target bounds, with its limit, and one of the goodput."""
    bounded = [name for name in DRAWN if any(target.figure.startswith(f"{name}_p") for target in plan.targets)]
    found = []
    for name in bounded or ["ttft"]:
        lines = {f"{name.upper()} {at}": f"{name}_{at}" for at in ("p50", "p99")}
        limits = [(target.figure, target.limit) for target in plan.targets if target.figure in lines.values()]
        found.append(_chart(plan, name.upper(), lines, "ms", limits))
    rates = {"arrivals": "arrivals_per_s", "goodput": "goodput_per_s"}
    return [*found, _chart(plan, "Goodput", rates, "requests/s")]


def _chart(plan: Plan, name: str, lines: Mapping[str, str], unit: str, limits: Sequence[tuple[str, float]] = ()) -> str:
    colours = palette(lines, None)
    rows = [
        {"figure": line, "at": brief(point["load"]), "value": brief(point[key])}
        for line, key in lines.items()
        for point in plan.curve
        if point[key] is not None
    ]
    knee = None if plan.holds is None else float(plan.holds)
    drawn = against_load(unit, AXES[plan.load.unit], rows, colours, limits, knee)
    return html.section(f"{name} against the load", figure(f"{name.lower()}-chart", "", drawn), legend(colours))


WRITERS: Final[dict[str, Callable[[Plan], str]]] = {".html": _page, ".json": _json}
