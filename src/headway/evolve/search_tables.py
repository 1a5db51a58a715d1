"""The report of a search for people: the Pareto front, the winner's code, and the held-out comparison."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from headway.display.progress import Bar
from headway.evolve.evaluation import Evaluation
from headway.evolve.final import Conclusion, Contestant, points
from headway.evolve.fitness import Gain, over_baseline, share
from headway.evolve.journal import Judged
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.repeated import Searches
from headway.evolve.selection import SHOWN
from headway.evolve.texts import readable
from headway.report.charts import COLOURS, GREY, axis, chart, hints, pareto, ranked_bars
from headway.report.number_format import GAP, brief
from headway.report.result_view import Figure, View
from headway.report.sections.sweep_lines import front
from headway.report.terminal import label_column, table, wrap
from headway.types import Json

CHOSEN = "▸"
NAME_AT_MOST = 34


class EvolveProgress(Bar):
    """A progress bar with the number of evaluated candidates and the best fitness so far."""

    def __init__(self, output: Path | None = None) -> None:
        kept = Bar.KEPT if output is None else f"Finished batches are in {output}; the same command continues."
        super().__init__(None, "candidates", kept)
        self.best: float | None = None

    def __call__(self, finished: int, total: int | None = None, best: float | None = None) -> None:
        self.best = best
        self.update(finished, total)

    def final(self, completed: int, total: int) -> None:
        """Show the number of finished runs on the held-out part."""
        self.unit, self.best = "held-out runs", None
        self.update(completed, total)

    def _text(self) -> str:
        return super()._text() + ("" if self.best is None else f", best {share(self.best)}")


def report(conclusion: Conclusion) -> list[RenderableType]:
    chosen, winner = conclusion.selection, conclusion.winner
    parts: list[RenderableType] = [
        Text(f"{conclusion.suite.name}: {conclusion.candidates:,} candidates on train", style="bold"),
        Text(_front_head(conclusion)),
        "",
        _front(conclusion),
        "",
        Text(f"The winner, chosen on {chosen.chosen_on}: {winner.name} ({winner.id})", style="bold"),
        "",
        Text(readable(winner, conclusion.stage).rstrip(), no_wrap=True),
        "",
    ]
    if conclusion.ablation:
        parts += [*_ablation(conclusion), ""]
    if conclusion.contestants:
        parts += [*_held_out(conclusion), ""]
    return [*parts, Text(conclusion.verdict)]


def _front_head(conclusion: Conclusion) -> str:
    count = len(conclusion.selection.front)
    best = f" The table shows the best {SHOWN}." if count > SHOWN else ""
    front = "1 candidate" if count == 1 else f"{count} candidates"
    return f"Gains over the baseline. Pareto front of the objectives and complexity: {front}.{best}"


def _front(conclusion: Conclusion) -> Table:
    chosen = conclusion.selection
    names = [objective.name for objective in conclusion.suite.objectives]
    grid = table("", "candidate", "primary", *names, "complexity", "validation", gap=2)
    grid.columns[1].justify = "left"
    rows = chosen.front[:SHOWN]
    if all(judged.bundle.id != chosen.winner.bundle.id for judged in rows):
        rows = [*rows, chosen.winner]
    for judged in rows:
        fitness = judged.evaluation.fitness
        validated = chosen.validated.get(judged.bundle.id)
        grid.add_row(
            CHOSEN if judged.bundle.id == chosen.winner.bundle.id else "",
            Text(judged.bundle.name),
            *(share(fitness[name]) for name in (PRIMARY, *names)),
            f"{fitness[COMPLEXITY]:.0f}",
            GAP if validated is None else share(validated.fitness[PRIMARY]),
        )
    return grid


def _ablation(conclusion: Conclusion) -> list[Any]:
    """Return the table of the winner's parts: the gain that it loses without each of them."""
    grid = table("without", "loses on\nvalidation", gap=2)
    label_column(grid, 0, NAME_AT_MOST)
    for row in conclusion.ablation:
        lost = row.lost
        grid.add_row(Text(wrap(row.part, NAME_AT_MOST)), "fails" if lost is None else points(lost.mean) + _half(lost))
    return [Text("Each part of the winner: the points that the winner loses without it"), "", grid]


def _held_out(conclusion: Conclusion) -> list[Any]:
    workloads = conclusion.contestants[0].evaluation.workloads()
    seeds = min(len(several) for several in workloads.values())
    many = f"{len(workloads)} workload{'s' * (len(workloads) != 1)} under {seeds} paired seed{'s' * (seeds != 1)}"
    looks = f"look {conclusion.looks}: " if conclusion.looks > 1 else ""
    head = f"Held out: {looks}{many}, means ± 95 % confidence intervals"
    grid = table("policy", "gain over\nbaseline", "in worst\nworkload", "winner leads\nby points", gap=2)
    label_column(grid, 0, NAME_AT_MOST)
    for contestant in conclusion.contestants:
        grid.add_row(_label(contestant), *_cells(contestant))
    rooms = conclusion.headroom
    room = table("workload", "winner's\ngain", "oracle's\ngain", "best\ngain", "of policy", gap=2)
    room.columns[4].justify = "left"
    for name, each in rooms.items():
        oracle = GAP if each.oracle is None else share(each.oracle)
        room.add_row(name, share(each.winner), oracle, share(each.best), _label(each.policy))
    words = "Headroom: the best gain of any policy above, which is the least that routing can gain there"
    beaten = Text(beaten_oracles([(each.oracle, each.best) for each in rooms.values()]))
    shown = ["", Text(words), "", room, *(["", beaten] if beaten.plain else [])]
    return [Text(head, style="bold"), "", grid, *(shown if rooms else [])]


def beaten_oracles(gains: Sequence[tuple[float | None, float]]) -> str:
    """Return a sentence about the workloads on which a policy beats the oracle. `gains` has the gains of the oracle and
    of the best policy."""
    beaten = sum(oracle is not None and best > oracle for oracle, best in gains)
    if not beaten:
        return ""
    words = "the only workload" if len(gains) == 1 else f"{beaten} of {len(gains)} workloads"
    oracle = "the oracle, which knows the true caches but not the future"
    return f"On {words}, a policy beats {oracle}. There, the gain of that policy counts."


def searches_report(searches: Searches) -> list[RenderableType]:
    """Return the table of several searches: what each found, and its lead on the held-out part."""
    grid = table("", "winner", "gain over\nbaseline", "leads best\nbuilt-in by", "leads best\ncontrol by", gap=2)
    grid.columns[1].justify = "left"
    leads = [searches.leads(kind) for kind in ("built-in", "control")]
    for seed, conclusion in searches.conclusions.items():
        winner = next(other for other in conclusion.contestants if other.kind == "winner")
        cells = ["failed" if not winner.evaluation.ok else share(winner.gain.mean) + _half(winner.gain)]
        for rivals in leads:
            lead = rivals[seed].ahead if seed in rivals else None
            cells.append(GAP if lead is None else points(lead.mean) + _half(lead))
        grid.add_row(f"seed {seed}", Text(conclusion.winner.name), *cells)
    first = next(iter(searches.conclusions.values()))
    head = f"{first.suite.name}: {len(searches.conclusions)} searches of {first.candidates:,} candidates, held out"
    return [Text(head, style="bold"), "", grid, "", Text(searches.verdict)]


def _label(contestant: Contestant) -> Text:
    name = contestant.name
    label = f"{CHOSEN} {name}" if contestant.kind == "winner" else name
    if contestant.kind in ("baseline", "oracle", "control"):
        label = f"{name} ({contestant.kind})"
    return Text(wrap(label, NAME_AT_MOST))


def _cells(contestant: Contestant) -> list[str]:
    if not contestant.evaluation.ok:
        return ["failed", GAP, GAP]
    gain, lead = contestant.gain, contestant.ahead
    ahead = GAP if lead is None else points(lead.mean) + _half(lead)
    return [share(gain.mean) + _half(gain), share(gain.workloads[gain.worst]), ahead]


def _half(gain: Gain) -> str:
    return "" if gain.low is None or gain.high is None else f" ± {100 * (gain.high - gain.low) / 2:.1f}"


# --- in a notebook ----------------------------------------------------------------------------------------------------

GAIN = "gain over the baseline"


def conclusion_view(conclusion: Conclusion) -> View:
    charts = {
        "search": partial(candidates_chart, conclusion.judged),
        "front": partial(front_chart, conclusion.judged, conclusion.winner.id),
        "held-out": partial(_held_out_chart, conclusion),
    }
    return View(Group(*report(conclusion)), charts)


def candidates_chart(judged: Sequence[Judged]) -> list[Figure]:
    """Chart the gain of each candidate on train, and the best gain so far."""
    rows: list[Json] = []
    best: float | None = None
    for number, each in enumerate(judged, 1):
        gain = each.evaluation.fitness[PRIMARY]
        best = gain if best is None else max(best, gain)
        rows.append({"number": number, "name": each.bundle.name, "gain": brief(gain), "best": brief(best)})
    across = axis("number", "candidate")
    scale = {"domain": [_lowest(judged), max(row["best"] for row in rows) + 0.01], "clamp": True} if rows else {}
    up = axis("gain", GAIN, axis={"format": ".0%"}, scale=scale)
    hint = hints(("name", "candidate"), ("number", "number"), ("gain", GAIN))
    points = {"mark": {"type": "point", "filled": True, "color": GREY}}
    line = {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 2, "color": COLOURS[0]}}
    layers = [
        {**points, "encoding": {"x": across, "y": up, "tooltip": hint}},
        {**line, "encoding": {"x": across, "y": {**up, "field": "best"}}},
    ]
    drawn = chart("Gain of each candidate on the train part, and the best so far.", rows, layer=layers)
    return [("Candidates on train; the line is the best so far", drawn)] if rows else []


def cpu_chart(batches: Sequence[Sequence[Judged]], seconds: Sequence[float]) -> list[Figure]:
    """Chart the best gain on train after each batch over the CPU time that the search had spent. A search of a single
    batch has no chart."""
    rows: list[Json] = []
    best, minutes, count = None, 0.0, 0
    for batch, spent in zip(batches, seconds, strict=False):
        gains = [each.evaluation.fitness[PRIMARY] for each in batch]
        best = max(gains if best is None else [best, *gains])
        minutes, count = minutes + spent / 60, count + len(batch)
        rows.append({"minutes": brief(minutes), "best": brief(best), "count": count})
    if len(rows) < 2:
        return []
    drawn = chart(
        "Best gain on the train part over CPU time.",
        rows,
        mark={"type": "line", "interpolate": "step-after", "strokeWidth": 2, "color": COLOURS[0], "point": True},
        encoding={
            "x": axis("minutes", "CPU minutes of the search"),
            "y": axis("best", GAIN, axis={"format": ".0%"}, scale={"zero": False}),
            "tooltip": hints(("count", "candidates"), ("minutes", "CPU minutes"), ("best", GAIN)),
        },
    )
    return [("Best so far over CPU time, after each batch", drawn)]


def _lowest(judged: Sequence[Judged]) -> float:
    """Return the lower end of an axis of gains. Failed and stopped candidates lie far below it: with them on the axis,
    the good ones could not be told apart."""
    gains = [each.evaluation.fitness[PRIMARY] for each in judged]
    return min(0.0, max(min(gains), -2 * max(0.05, *gains)))


def front_chart(judged: Sequence[Judged], winner: str) -> list[Figure]:
    """Chart gain against complexity, with the Pareto front. `winner` is the id of the winner."""
    low = _lowest(judged) if judged else 0.0
    working = {each.bundle.id: each for each in judged if each.evaluation.fitness[PRIMARY] >= low}
    points = [(each.evaluation.fitness[COMPLEXITY], each.evaluation.fitness[PRIMARY]) for each in working.values()]
    rows = [
        {
            "policy": "winner" if each.bundle.id == winner else "candidate",
            "label": each.bundle.name,
            "x": brief(x),
            "y": brief(y),
            "front": best,
        }
        for each, (x, y), best in zip(working.values(), points, front(points), strict=True)
    ]
    colours = {"winner": COLOURS[1], "candidate": COLOURS[0]}
    return [("Gain against complexity", pareto("complexity", GAIN, rows, colours))] if rows else []


def _held_out_chart(conclusion: Conclusion) -> list[Figure]:
    return held_out_chart([each.document() for each in conclusion.contestants])


def held_out_chart(contestants: Sequence[Json]) -> list[Figure]:
    """Chart the gain of the winner and of every other policy on the held-out part, with 95 % intervals. `contestants`
    has the rows of `Conclusion.document()["held_out"]`."""
    roles = {"winner": "best", "baseline": "baseline"}
    rows = [
        {
            "name": contestant["name"],
            "value": contestant["gain"]["mean"],
            "low": contestant["gain"]["low"],
            "high": contestant["gain"]["high"],
            "role": roles.get(contestant["kind"], "other"),
        }
        for contestant in contestants
        if contestant["ok"]
    ]
    return [("On held-out cases", ranked_bars(GAIN, rows, share=True))] if rows else []


def evaluation_view(evaluation: Evaluation) -> View:
    """Describe the evaluation of one candidate: its fitness, its gain in each workload, and its feedback."""
    state = "" if evaluation.ok else ", failed"
    title = Text(f"{evaluation.bundle_id} on {evaluation.part}{state}", style="bold")
    parts: list[RenderableType] = [title, *(Text(note) for note in (evaluation.error, evaluation.stopped) if note)]
    rows = [
        (name, f"{value:.0f}" if name == COMPLEXITY else share(value)) for name, value in evaluation.fitness.items()
    ]
    parts += ["", table("fitness", "gain", rows=rows)]
    gain = over_baseline(evaluation) if evaluation.cases else None
    if gain is not None:
        parts += ["", table("workload", "gain", rows=[(name, share(mean)) for name, mean in gain.workloads.items()])]
    if evaluation.summary:
        parts += ["", Text(evaluation.summary)]

    def workloads() -> list[Figure]:
        bars = (
            []
            if gain is None
            else [{"name": name, "value": brief(mean), "role": "best"} for name, mean in gain.workloads.items()]
        )
        return [("Gain in each workload", ranked_bars(GAIN, bars, share=True))] if bars else []

    return View(Group(*parts), {"workloads": workloads})
