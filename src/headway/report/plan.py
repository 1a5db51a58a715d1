"""A plan for people: the candidates, the curve of latency and goodput against load, and the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.errors import HeadwayError, argument
from headway.experiment.plan import Judged, Plan
from headway.experiment.targets import Target
from headway.report import html
from headway.report.charts import against_load, figure, legend, palette
from headway.report.number_format import GAP, brief, number, percent
from headway.report.terminal import BEST, bar, table
from headway.results import store
from headway.types import Json

WIDTH: Final = 9  # width of a bar, in characters
AXES: Final = {"rate": "requests/s", "users": "users", "speed": "speed", "load": "load"}
DRAWN: Final = ("ttft", "tpot", "e2e")


def report(plan: Plan) -> RenderableType:
    """Return the plan for the terminal."""
    parts: list[RenderableType] = [Text(_title(plan), style="bold"), _effort(plan), "", _candidates(plan), ""]
    if plan.curve:
        parts += [_curve(plan), ""]
    return Group(*parts, Text(plan.verdict), *map(Text, plan.notes))


def _title(plan: Plan) -> str:
    return f"{plan.scenario['name']}: {', '.join(target.describe() for target in plan.targets)}"


def _effort(plan: Plan) -> str:
    seeds = "1 seed" if plan.seeds == 1 else f"{plan.seeds} seeds"
    return f"{plan.runs:,} runs of {len(plan.tried):,} candidates with up to {seeds} each"


def _rows(plan: Plan) -> list[Judged]:
    """Return the candidates that the search tried. A candidate is a cluster at the given load or, if the plan searches
    for the load, a load on the given cluster."""
    drawn = [point["load"] for point in plan.curve]
    if plan.find == "load":
        near = (plan.holds, plan.breaks)
        return [judged for judged in plan.tried if judged.load in near or float(judged.load) not in drawn]
    rows = [judged for judged in plan.tried if judged.load == plan.load.base]
    return sorted(rows, key=lambda judged: plan.space.key(judged.counts))


def _candidates(plan: Plan) -> Table:
    targets = [target.figure for target in plan.targets]
    if plan.find == "load":
        heads = [AXES[plan.load.unit]]
    else:
        pools = [pool.name for pool in plan.space.pools]
        heads = [*(pools if len(pools) > 1 else ["replicas"]), "USD/h"]
    grid = table("", *heads, "seeds", *targets, gap=1)
    for judged in _rows(plan):
        chosen = judged == plan.answer
        if plan.find == "load":
            first = [number(float(judged.load), 2)]
        else:
            first = [*(f"{count:,}" for count in judged.counts), number(plan.space.usd_per_hour(judged.counts), 2)]
        cells = [f"{judged.seeds_met}/{judged.seeds_run}", *(_cell(plan, judged, target) for target in plan.targets)]
        grid.add_row(BEST if chosen else "", *first, *cells, style="bold" if chosen else None)
    return grid


def _cell(plan: Plan, judged: Judged, target: Target) -> str:
    """Write the mean of a target's figure over the seeds that ran, and the half-width of the mean's confidence
    interval."""
    estimate = plan.estimate(judged, target)
    mean, low, high = (estimate[key] for key in ("mean", "low", "high"))
    if mean is None:
        return GAP
    write: Callable[[float], str] = percent if target.share else number
    if high is None or low == high:
        return write(mean)
    return f"{write(mean)} ±{write(max(high - mean, mean - low)).removesuffix(' %')}"


def _family(plan: Plan) -> str:
    """Return the latency that a bar shows: the first latency with a target. If no latency has a target, return TTFT."""
    names = [target.figure.rpartition("_")[0] for target in plan.targets]
    return next((name for name in names if name in DRAWN), "ttft")


def _curve(plan: Plan) -> RenderableType:
    name = _family(plan)
    pair = sorted((name, "ttft" if name != "ttft" else "tpot"), key=DRAWN.index)
    heads = [head for each in pair for head in (f"{each.upper()} ms\np50", "\np99")]
    heads += ["goodput\n/s", "\nshare", f"{name.upper()} p99\n", "goodput\n"]
    grid = table("", f"{AXES[plan.load.unit]}\n", *heads, gap=1, left=(0, len(heads), len(heads) + 1))
    highest = {key: max(point[key] or 0.0 for point in plan.curve) or 1.0 for key in (f"{name}_p99", "goodput_per_s")}
    for point in plan.curve:
        knee = plan.holds is not None and point["load"] == float(plan.holds)
        grid.add_row(
            BEST if knee else "",
            number(point["load"], 2),
            *(number(point[f"{each}_{at}"]) for each in pair for at in ("p50", "p99")),
            number(point["goodput_per_s"]),
            percent(point["attainment"]),
            *(bar((point[key] or 0.0) / top, WIDTH) for key, top in highest.items()),
            style="bold" if knee else None,
        )
    cluster = plan.space.describe(plan.counts)
    return Group(Text(f" against the load, on {cluster} (means over the seeds)"), grid)


# --- files ------------------------------------------------------------------------------------------------------------


def check(path: Path) -> None:
    """Raise an error if the file cannot be written. Call this function before the first run."""
    if path.suffix not in WRITERS:
        raise HeadwayError(f"{argument('path', '--output')}: {str(path)!r} must end in {' or '.join(WRITERS)}.")
    if not path.parent.is_dir():
        raise HeadwayError(f"{argument('path', '--output')}: there is no folder {str(path.parent)!r}.")


def write(path: Path, plan: Plan) -> None:
    html.write(path, WRITERS[path.suffix](plan), argument("path", "--output"))


def _page(plan: Plan) -> str:
    title = _title(plan)
    parts = [html.heading(title, plan.verdict, *plan.notes), html.facts(_facts(plan))]
    if plan.curve:
        curve = html.section("The curve", _points(plan), note="Means over the seeds.")
        parts += [html.SCRIPTLESS, *(_section(*drawn) for drawn in charts(plan)), curve]
    targets = [f"{target.figure}, {target.describe_limit()}" for target in plan.targets]
    rows = [
        [
            plan.space.describe(judged.counts),
            number(float(judged.load), 2),
            number(plan.space.usd_per_hour(judged.counts), 2),
            f"{judged.seeds_met} of {judged.seeds_run}",
            *(_cell(plan, judged, target) for target in plan.targets),
        ]
        for judged in plan.tried
    ]
    candidates = html.table(["replicas", AXES[plan.load.unit], "USD/h", "seeds met", *targets], rows)
    means = "means with half their 95 % intervals over the seeds that ran"
    note = f"{_effort(plan)}; {means}. A candidate fails with its first seed that misses a target."
    return html.page(title, [*parts, html.section("Candidates", candidates, note=note)])


def _facts(plan: Plan) -> list[tuple[str, str]]:
    rows = [("of " + name, f"{count:,}") for name, count in plan.replicas.items()]
    rows += [("USD per hour", number(plan.space.usd_per_hour(plan.counts), 2)), ("runs", f"{plan.runs:,}")]
    if plan.holds is not None:
        rows.append(("sustained load", plan.load.describe(plan.holds)))
    return rows


def _points(plan: Plan) -> str:
    names = [name for name in plan.curve[0] if name not in ("load", "meets")]
    heads = [AXES[plan.load.unit], *(name.replace("_per_s", "/s").replace("_", " ") for name in names)]

    def write(name: str, value: float | None) -> str:
        return percent(value) if name in ("attainment", "completed") else number(value, 0 if name == "seeds_met" else 1)

    rows = [[number(point["load"], 2), *(write(name, point[name]) for name in names)] for point in plan.curve]
    return html.table(heads, rows)


def charts(plan: Plan) -> list[tuple[str, Json]]:
    """Return titles and charts of latencies with a target, and of goodput, against the load. If the plan has no curve,
    return an empty list."""
    if not plan.curve:
        return []
    bounded = [name for name in DRAWN if any(target.figure.startswith(f"{name}_p") for target in plan.targets)]
    drawn = []
    for name in bounded or ["ttft"]:
        lines = {f"{name.upper()} {at}": f"{name}_{at}" for at in ("p50", "p99")}
        limits = [(target.figure, target.limit) for target in plan.targets if target.figure in lines.values()]
        drawn.append((name.upper(), _chart(plan, lines, "ms", limits)))
    rates = {"arrivals": "arrivals_per_s", "goodput": "goodput_per_s"}
    return [*drawn, ("Goodput", _chart(plan, rates, "requests/s"))]


def _chart(plan: Plan, lines: Mapping[str, str], unit: str, limits: Sequence[tuple[str, float]] = ()) -> Json:
    colours = palette(lines, None)
    rows = [
        {"figure": line, "at": brief(point["load"]), "value": brief(point[key])}
        for line, key in lines.items()
        for point in plan.curve
        if point[key] is not None
    ]
    knee = None if plan.holds is None else float(plan.holds)
    return against_load(unit, AXES[plan.load.unit], rows, colours, limits, knee)


def _section(name: str, chart: Json) -> str:
    scale = chart["layer"][0]["encoding"]["color"]["scale"]
    colours = dict(zip(scale["domain"], scale["range"], strict=True))
    return html.section(f"{name} against the load", figure(f"{name.lower()}-chart", "", chart), legend(colours))


WRITERS: Final[dict[str, Callable[[Plan], str]]] = {
    ".html": _page,
    ".json": lambda plan: store.pretty(plan.summary()),
}
