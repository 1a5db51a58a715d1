"""What a search came to, for the terminal: the front, the winner's code, and the held-out part."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from headway.evolve.final import Conclusion, Contestant, points, share
from headway.evolve.fitness import Gain
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.selection import SHOWN
from headway.evolve.texts import readable
from headway.report.progress import Bar
from headway.report.terminal import GAP, label_column, table, wrap

CHOSEN = "▸"
NAME_AT_MOST = 34


class EvolveProgress(Bar):
    """Candidates that have been judged, and the best so far."""

    def __init__(self) -> None:
        super().__init__(None, "candidates")
        self.best: float | None = None

    def __call__(self, done: int, total: int, best: float | None) -> None:
        self.best = best
        self.update(done, total)

    def final(self, done: int, total: int) -> None:
        """Runs of the held-out part."""
        self.unit, self.best = "held-out runs", None
        self.update(done, total)

    def _told(self) -> str:
        return super()._told() + ("" if self.best is None else f", best {share(self.best)}")


def report(found: Conclusion) -> list[RenderableType]:
    chosen = found.selection
    parts: list[RenderableType] = [
        Text(f"{found.suite.name}: {found.candidates:,} candidates on train", style="bold"),
        Text(_front_head(found)),
        "",
        _front(found),
        "",
        Text(f"The winner, chosen on {chosen.chosen_on}: {found.winner.name} ({found.winner.id})", style="bold"),
        "",
        Text(readable(found.winner, found.stage).rstrip(), no_wrap=True),
        "",
    ]
    if found.contestants:
        parts += [*_held_out(found), ""]
    return [*parts, Text(found.verdict)]


def _front_head(found: Conclusion) -> str:
    count = len(found.selection.front)
    best = f", the best {SHOWN} of them" if count > SHOWN else ""
    them = "one that no other beats" if count == 1 else f"{count} of which none beats another"
    return f"Gains over the baseline; {them} at once in every objective and in complexity{best}."


def _front(found: Conclusion) -> Table:
    chosen = found.selection
    names = [one.name for one in found.suite.objectives]
    made = table("", "candidate", "primary", *names, "complexity", "validation", gap=2)
    made.columns[1].justify = "left"
    shown = chosen.front[:SHOWN]
    if all(one.bundle.id != chosen.winner.bundle.id for one in shown):
        shown = [*shown, chosen.winner]
    for one in shown:
        fitness = one.evaluation.fitness
        validated = chosen.validated.get(one.bundle.id)
        made.add_row(
            CHOSEN if one.bundle.id == chosen.winner.bundle.id else "",
            Text(one.bundle.name),
            *(share(fitness[name]) for name in (PRIMARY, *names)),
            f"{fitness[COMPLEXITY]:.0f}",
            GAP if validated is None else share(validated.fitness[PRIMARY]),
        )
    return made


def _held_out(found: Conclusion) -> list[Any]:
    workloads = found.contestants[0].evaluation.workloads()
    seeds = min(len(several) for several in workloads.values())
    many = f"{len(workloads)} workload{'s' * (len(workloads) != 1)} under {seeds} paired seed{'s' * (seeds != 1)}"
    head = f"Held out: {many}, means ± 95 % intervals"
    made = table("policy", "gain over\nbaseline", "least in\na workload", "winner ahead\nby points", gap=2)
    label_column(made, 0, NAME_AT_MOST)
    for one in found.contestants:
        made.add_row(_named(one), *_cells(one))
    return [Text(head, style="bold"), "", made]


def _named(one: Contestant) -> Text:
    told = {"winner": f"{CHOSEN} {one.name}", "baseline": f"{one.name} (baseline)", "oracle": f"{one.name} (oracle)"}
    return Text(wrap(told.get(one.kind, one.name), NAME_AT_MOST))


def _cells(one: Contestant) -> list[str]:
    if not one.evaluation.ok:
        return ["failed", GAP, GAP]
    ahead = GAP if one.ahead is None else points(one.ahead.mean) + _half(one.ahead)
    return [share(one.gain.mean) + _half(one.gain), share(one.gain.workloads[one.gain.worst]), ahead]


def _half(gain: Gain) -> str:
    return "" if gain.low is None or gain.high is None else f" ± {100 * (gain.high - gain.low) / 2:.1f}"
