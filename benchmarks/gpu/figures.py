"""The figures of a run, measured or predicted, and how two tables of them compare."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from math import fsum
from statistics import fmean

from msgspec import Struct

from headway.results.statistics import Interval, mean_of

FIGURES = ("ttft", "tpot", "e2e", "hit")
UNITS = {"ttft": "ms", "tpot": "ms", "e2e": "ms", "hit": "share"}
Run = tuple[str, str, str, int]  # policy, workload, load, seed
Cell = tuple[str, str]  # workload, load
Figures = Mapping[str, float]


def figures(columns: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the means over requests of TTFT, TPOT and E2E in ms, and the share of prompt tokens found cached."""
    times = list(
        zip(*(columns[f"{name}_ps"] for name in ("arrival", "first_token", "finished")), columns["output_tokens"],
            strict=True)
    )  # fmt: skip
    ttft = fmean(first - arrival for arrival, first, _, _ in times)
    tpot = fmean((end - first) / (tokens - 1) for _, first, end, tokens in times if tokens > 1)
    e2e = fmean(end - arrival for arrival, _, end, _ in times)
    hit = fsum(columns["cached_tokens"]) / fsum(columns["prompt_tokens"])
    return {"ttft": ttft / 1e9, "tpot": tpot / 1e9, "e2e": e2e / 1e9, "hit": hit}


class Row(Struct, frozen=True):
    """A figure of a policy in a cell: predicted, and measured with its interval over the seeds."""

    cell: Cell
    policy: str
    figure: str
    predicted: float
    measured: Interval
    seeds: int

    @property
    def error(self) -> float:
        """The error of the prediction: as a fraction, or for the hit ratio the difference."""
        difference = self.predicted - self.measured.mean
        return difference if self.figure == "hit" else difference / self.measured.mean


def side_by_side(predicted: Mapping[Run, Figures], measured: Mapping[Run, Figures]) -> list[Row]:
    """Compare means over the seeds that were measured."""
    groups: dict[tuple[Cell, str], list[Run]] = {}
    for run in measured:
        groups.setdefault(((run[1], run[2]), run[0]), []).append(run)
    rows = []
    for (cell, policy), runs in sorted(groups.items()):
        for figure in FIGURES:
            rows.append(
                Row(
                    cell,
                    policy,
                    figure,
                    fmean(predicted[run][figure] for run in runs),
                    mean_of([measured[run][figure] for run in runs]),
                    len(runs),
                )
            )
    return rows


class Order(Struct):
    """How many pairs of policies have disjoint measured intervals, and how many of these are predicted in order."""

    pairs: int = 0
    right: int = 0
    wrong: list[str] = []


def order(rows: Iterable[Row]) -> dict[str, Order]:
    """Return the order of pairs for each figure, and for all figures together."""
    found = {figure: Order() for figure in (*FIGURES, "all")}
    groups: dict[tuple[Cell, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.cell, row.figure), []).append(row)
    for (cell, figure), group in groups.items():
        for one, other in combinations(group, 2):
            if one.measured.low <= other.measured.high and other.measured.low <= one.measured.high:
                continue
            same = (one.predicted < other.predicted) == (one.measured.mean < other.measured.mean)
            for name in (figure, "all"):
                found[name].pairs += 1
                found[name].right += same
                if not same:
                    found[name].wrong.append(f"{' '.join(cell)}, {figure}: {one.policy} and {other.policy}")
    return found


def lead(runs: Mapping[Run, Figures], policy: str, other: str, cell: Cell, figure: str) -> Interval | None:
    """Return by how much less a policy has than another, as a fraction of the other's mean, paired by seed."""
    found = leads(runs, policy, other, cell, figure)
    return mean_of(list(found.values())) if len(found) > 1 else None


def lead_on(
    runs: Mapping[Run, Figures], policy: str, other: str, workload: str, figures: Sequence[str]
) -> Interval | None:
    """Return the mean lead over the loads of a workload and over the figures, with the seeds as replicates."""
    loads = sorted({run[2] for run in runs if run[1] == workload})
    each = [leads(runs, policy, other, (workload, load), figure) for load in loads for figure in figures]
    seeds = sorted(set.intersection(*map(set, each)))
    return mean_of([fmean(found[seed] for found in each) for seed in seeds]) if len(seeds) > 1 else None


def leads(runs: Mapping[Run, Figures], policy: str, other: str, cell: Cell, figure: str) -> dict[int, float]:
    """Return by how much less a policy has than another under each seed, as a fraction of the other's mean."""
    seeds = [run[3] for run in runs if run[:3] == (policy, *cell) and (other, *cell, run[3]) in runs]
    own, others = ([runs[name, *cell, seed][figure] for seed in seeds] for name in (policy, other))
    return {seed: (b - a) / fmean(others) for seed, a, b in zip(seeds, own, others, strict=True)}
