"""Paired differences between policies over seeds, and whether they are more than noise.

With one seed, all policies get the same requests. So the difference between the runs of two policies has two causes:
the policies themselves, and chance, because this workload may suit one of them better. Over n seeds, these differences
d are n independent values, and
    mean(d) ± t(n - 1) · s(d) / √n
contains the true mean difference with 95 % confidence.
"""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.ranking import direction, value
from headway.results.statistics import Interval, interval, mean_of
from headway.types import Json

MOST: Final = 1000


def with_seed(resolved: Json, number: int) -> Json:
    """Return a resolved scenario with its n-th seed, counted from 0: n is added to the seeds of workload, simulation
    and jitter, so that runs with the same number get the same requests and the same random draws."""
    if not number:
        return resolved
    seeds = {name: (value + number + 2**63) % 2**64 - 2**63 for name, value in resolved["seed"].items()}
    return {**resolved, "seed": seeds}


def check_seeds(seeds: int) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST:
        raise HeadwayError(f"seeds: must lie between 1 and {MOST:,}, got {shown(seeds)}.")


def mean_summary(summaries: Sequence[Json]) -> Json:
    """Return a summary with the mean of each figure over the runs. If the figure is None in some runs but not in all,
    its mean is None. If only some runs have a tenant or section, its figures are means over those runs. A value that is
    not a number is kept if it is equal in all runs."""
    mean: Json = _mean(list(summaries))
    return mean


def _mean(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _mean([value[key] for value in values if key in value]) for key in keys}
    if all(value == first for value in values):
        return first
    if isinstance(first, list):
        return _rows(values)
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return fsum(values) / len(values)
    return None


def _rows(lists: list[list[Any]]) -> list[Any]:
    """Combine the rows with the same `id` into one row of means. If an item is not a row with an `id`, return an empty
    list."""
    by_id: dict[Any, list[Any]] = {}
    for rows in lists:
        for row in rows:
            if not isinstance(row, dict) or "id" not in row:
                return []
            by_id.setdefault(row["id"], []).append(row)
    return [_mean(rows) for rows in by_id.values()]


Runs = Mapping[str, Sequence[Json]]  # policy -> the summary of each seed

SHARE: Final = "slo.goodput_ratio"
HEADLINE: Final = (
    SHARE,
    "latency.ttft.mean",
    "latency.ttft.p99",
    "latency.tpot.mean",
    "latency.tpot.p99",
    "latency.e2e.mean",
    "latency.e2e.p99",
    "throughput.requests_per_s",
    "throughput.output_tokens_per_s",
    "cache.token_hit_ratio",
    "cost.usd",
)
NOISE: Final = "within noise"
SAME: Final = "no difference"
BASELINE: Final = "baseline"


def difference(its: Sequence[Json], base: Sequence[Json], figure: str) -> tuple[Interval, str] | None:
    """Return the mean of a figure's paired differences with its confidence interval, and a word. The word is better,
    worse, within noise (the interval contains 0) or no difference (every pair is exactly equal). If a run does not have
    the figure, return None."""
    pairs = [(value(mine, figure), value(other, figure)) for mine, other in zip(its, base, strict=True)]
    apart = [mine - other for mine, other in pairs if mine is not None and other is not None]
    if len(apart) < len(pairs):
        return None
    mean = mean_of(apart)
    if not any(apart):
        return mean, SAME
    if mean.low is None or mean.high is None or mean.low <= 0 <= mean.high:
        return mean, NOISE
    return mean, "better" if (mean.mean > 0) == (direction(figure) == "high") else "worse"


def paired_rows(runs: Runs, baseline: str, by: str | None = None) -> list[Json]:
    """Return a row for each policy and headline figure: the mean of the figure over the seeds, and its mean difference
    from the baseline."""
    figures = HEADLINE if by is None or by in HEADLINE else (by, *HEADLINE)
    return [_row(name, figure, runs[name], runs[baseline], name == baseline) for name in runs for figure in figures]


def _row(name: str, figure: str, its: Sequence[Json], base: Sequence[Json], is_base: bool) -> Json:
    mean = interval([value(summary, figure) for summary in its])
    row: Json = {"policy": name, "figure": figure, "mean": None if mean is None else mean.mean}
    estimate = None if is_base else difference(its, base, figure)
    if estimate is None:
        return {**row, "delta": None, "low": None, "high": None, "word": BASELINE if is_base else None}
    apart, word = estimate
    return {**row, "delta": apart.mean, "low": apart.low, "high": apart.high, "word": word}


class Noise:
    """Tells whether two policies of a comparison differ by more than noise."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.seeds = len(next(iter(runs.values())))

    def hides(self, name: str, other: str, figure: str) -> bool:
        estimate = difference(self.runs[name], self.runs[other], figure)
        return estimate is None or estimate[1] in (NOISE, SAME)

    def shows(self, name: str, other: str) -> bool:
        """Return whether at least one headline figure of the two policies differs with at least one seed."""
        return any(_figures(mine) != _figures(its) for mine, its in zip(self.runs[name], self.runs[other], strict=True))

    def seeds_agree(self) -> bool:
        """Return whether the figures of every policy are equal for all seeds."""
        return all(_figures(summary) == _figures(its[0]) for its in self.runs.values() for summary in its)


def _figures(summary: Json) -> list[float | None]:
    return [value(summary, figure) for figure in HEADLINE]
