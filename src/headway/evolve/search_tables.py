"""The report of a search in the terminal: the Pareto front, the winner's code, and the held-out comparison."""

from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headway.evolve.final import Conclusion, Contestant, points
from headway.evolve.fitness import Gain, share
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.selection import SHOWN
from headway.evolve.texts import readable
from headway.report.number_format import GAP
from headway.report.progress import Bar
from headway.report.terminal import label_column, table, wrap

CHOSEN = "▸"
NAME_AT_MOST = 34


class EvolveProgress(Bar):
    """A progress bar with the number of evaluated candidates and the best fitness so far."""

    def __init__(self, output: Path | None = None) -> None:
        kept = Bar.KEPT if output is None else f"Finished batches are in {output}; the same command continues."
        super().__init__(None, "candidates", kept)
        self.best: float | None = None

    def __call__(self, completed: int, total: int, best: float | None) -> None:
        self.best = best
        self.update(completed, total)

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


def _held_out(conclusion: Conclusion) -> list[Any]:
    workloads = conclusion.contestants[0].evaluation.workloads()
    seeds = min(len(several) for several in workloads.values())
    many = f"{len(workloads)} workload{'s' * (len(workloads) != 1)} under {seeds} paired seed{'s' * (seeds != 1)}"
    head = f"Held out: {many}, means ± 95 % confidence intervals"
    grid = table("policy", "gain over\nbaseline", "in worst\nworkload", "winner leads\nby points", gap=2)
    label_column(grid, 0, NAME_AT_MOST)
    for contestant in conclusion.contestants:
        grid.add_row(_label(contestant), *_cells(contestant))
    return [Text(head, style="bold"), "", grid]


def _label(contestant: Contestant) -> Text:
    name = contestant.name
    labels = {"winner": f"{CHOSEN} {name}", "baseline": f"{name} (baseline)", "oracle": f"{name} (oracle)"}
    return Text(wrap(labels.get(contestant.kind, name), NAME_AT_MOST))


def _cells(contestant: Contestant) -> list[str]:
    if not contestant.evaluation.ok:
        return ["failed", GAP, GAP]
    gain, lead = contestant.gain, contestant.ahead
    ahead = GAP if lead is None else points(lead.mean) + _half(lead)
    return [share(gain.mean) + _half(gain), share(gain.workloads[gain.worst]), ahead]


def _half(gain: Gain) -> str:
    return "" if gain.low is None or gain.high is None else f" ± {100 * (gain.high - gain.low) / 2:.1f}"
