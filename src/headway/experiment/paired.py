"""Policies under the same seeds: the differences of their figures seed by seed, and whether they are more than noise.

Under one seed all policies meet the same requests, so that the difference of two runs is due to the policies and to how
this workload happens to suit them. Over n seeds these differences d are n independent values, and
    mean(d) ± t(n - 1) · s(d) / √n
holds the true mean difference with 95 % confidence.
"""

from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.results.ranking import direction, value
from headway.results.statistics import Interval, interval, mean_of
from headway.types import Json

# The seeds of an experiment: how the n-th follows from a scenario's own, alike for everything that is compared.

MOST: Final = 1000


def with_seed(resolved: Json, number: int) -> Json:
    """A resolved scenario under its n-th seed, from 0 on: workload, simulation and jitter are counted up together, so
    that runs under the same number meet the same requests and the same luck."""
    if not number:
        return resolved
    seeds = {name: (value + number + 2**63) % 2**64 - 2**63 for name, value in resolved["seed"].items()}
    return {**resolved, "seed": seeds}


def check_seeds(seeds: int) -> None:
    if isinstance(seeds, bool) or not isinstance(seeds, int) or not 1 <= seeds <= MOST:
        raise HeadwayError(f"seeds: must lie between 1 and {MOST:,}, got {shown(seeds)}.")


# Several summaries as one: the mean of each figure over the seeds.


def mean_summary(summaries: Sequence[Json]) -> Json:
    """A summary whose figures are means over runs, None where one of them has none. A tenant or a section that only
    some have is the mean of those. What is neither number nor section stays where all agree on it."""
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
    """Rows go by their ids; lists of anything else have no mean."""
    by_id: dict[Any, list[Any]] = {}
    for rows in lists:
        for row in rows:
            if not isinstance(row, dict) or "id" not in row:
                return []
            by_id.setdefault(row["id"], []).append(row)
    return [_mean(rows) for rows in by_id.values()]


Runs = Mapping[str, Sequence[Json]]  # summaries by policy, one a seed

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
    """The mean of a figure's paired differences, and the word for it: better, worse, within noise where the interval
    holds 0, no difference where every pair is exactly equal. None where a run has no such figure."""
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
    """For each policy and headline figure the mean over the seeds, and how far that is from the baseline's."""
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
    """Whether a figure distinguishes two policies of a comparison."""

    def __init__(self, runs: Runs) -> None:
        self.runs = runs
        self.seeds = len(next(iter(runs.values())))

    def hides(self, name: str, other: str, figure: str) -> bool:
        estimate = difference(self.runs[name], self.runs[other], figure)
        return estimate is None or estimate[1] in (NOISE, SAME)

    def shows(self, name: str, other: str) -> bool:
        """Whether any headline figure of any seed differs."""
        return any(_figures(mine) != _figures(its) for mine, its in zip(self.runs[name], self.runs[other], strict=True))

    def nowhere(self) -> bool:
        """Whether the seeds changed nothing at all, so that they tell no more than one of them."""
        return all(_figures(summary) == _figures(its[0]) for its in self.runs.values() for summary in its)


def _figures(summary: Json) -> list[float | None]:
    return [value(summary, figure) for figure in HEADLINE]
