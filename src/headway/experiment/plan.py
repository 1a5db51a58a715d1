"""Capacity planning: the cheapest cluster that meets an SLO at a load, and the highest load that a cluster sustains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, log10
from typing import Any, ClassVar, Final, Literal, get_args

from msgspec import Struct, to_builtins

from headway.config.arguments import checked
from headway.config.wording import join_words, shown, suggest
from headway.display.displayed import Displayed, cells, columns_of
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError
from headway.experiment.bracket import Mixes, highest
from headway.experiment.load_levels import Load, load_of
from headway.experiment.paired import check_seeds
from headway.experiment.plan_words import notes, too_few, too_much
from headway.experiment.space import Counts, Space, space_of
from headway.experiment.targets import Target, figure_of, targets
from headway.experiment.trials import Candidate, Progress, Trials
from headway.results.statistics import interval
from headway.scenario.scenario import DEFAULT, Scenario, Source
from headway.types import Json

Find = Literal["replicas", "load"]
MOST: Final = 64
MOST_POINTS: Final = 200
FROM, TO = Fraction(1, 4), Fraction(3, 2)  # the range of a curve, as multiples of the highest sustained load
CURVE: Final = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99", "attainment", "completed")


class Judged(Struct, frozen=True):
    """A cluster at a load, with its figures for each seed."""

    counts: Counts
    load: Fraction
    seeds_met: int
    seeds_run: int  # number of seeds that ran; the search stops at the first seed that misses the SLO
    figures: dict[str, list[float | None]]  # for each target: the value of its figure for each seed

    def meets(self) -> bool:
        return self.seeds_met == self.seeds_run


class Plan(Displayed, Struct, frozen=True):
    """The result of a plan. `counts` has the replicas of the chosen cluster, a number for each pool of `space`."""

    _view: ClassVar[str] = "headway.report.notebook:plan_view"

    scenario: Json
    find: Find
    targets: tuple[Target, ...]
    seeds: int
    space: Space
    load: Load
    counts: Counts
    answer: Judged  # the chosen cluster at the scenario's load, or at the highest load that it sustains
    less: list[Judged]  # the clusters with one replica less, or the lowest load that the cluster does not sustain
    holds: Fraction | None  # the highest load that meets the SLO
    breaks: Fraction | None  # the lowest load that misses the SLO
    curve: list[Json]
    tried: list[Judged]
    runs: int
    notes: list[str]

    @property
    def replicas(self) -> dict[str, int]:
        """The replicas of the chosen cluster, by pool."""
        return self.space.replicas(self.counts)

    @property
    def verdict(self) -> str:
        """The result in words: the chosen cluster and its figures, what happens with one replica less, and by how much
        the load could rise."""
        space, load, counts = self.space, self.load, self.counts
        gpus = space.gpus(counts)
        size = f"{gpus:,} GPU{'s' * (gpus != 1)}, {space.usd_per_hour(counts):,.2f} USD/h"
        figures = join_words([self._describe_estimate(target) for target in self.targets])
        seeds = "its only seed" if self.seeds == 1 else f"all {self.seeds} seeds"
        meets = f"meet{'s' * (sum(counts) == 1)} the SLO at {load.describe(self.answer.load)} with {seeds}"
        sentences = [f"{space.describe(counts)} ({size}) {meets}: {figures}."]
        for less in self.less:
            resized = self.find == "replicas"
            other = f"With {space.describe(less.counts)}" if resized else f"At {load.describe(less.load)}"
            meets = f"{less.seeds_met} of {less.seeds_run} seeds meet{'s' * (less.seeds_met == 1)} it"
            sentences.append(f"{other}, {meets}.")
        if self.find == "replicas" and self.holds is not None and self.breaks is not None:
            spare = 100 * float(self.holds / load.base - 1)
            sentences.append(f"The load could rise by {spare:.0f} %, to {load.describe(self.holds)}.")
        return " ".join(sentences)

    def _describe_estimate(self, target: Target) -> str:
        estimate = self.estimate(self.answer, target)
        text = f"{target.figure} {target.describe_value(estimate['mean'])}"
        if estimate["low"] is None or estimate["low"] == estimate["high"]:
            return text
        low, high = (target.describe_value(estimate[name]) for name in ("low", "high"))
        doubt = "" if estimate["clear"] else ", across the limit"
        return f"{text} (95 % interval {low.rpartition(' ')[0]} to {high}{doubt})"

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each cluster and load that the search tried. The attribute `curve` has the figures of the
        chosen cluster at each load of the curve."""
        rows = []
        for judged in self.tried:
            document = self.describe(judged)
            figures = {
                f"{figure}{suffix}": estimate[name]
                for figure, estimate in document.pop("figures").items()
                for suffix, name in (("", "mean"), ("_low", "low"), ("_high", "high"))
            }
            rows.append({"chosen": judged == self.answer, **cells(document), **figures})
        return columns_of(rows)

    def summary(self) -> Json:
        """Return the document that `headway plan --json` prints."""
        return {
            "scenario": self.scenario["name"],
            "find": self.find,
            "slo": [to_builtins(target) for target in self.targets],
            "seeds": self.seeds,
            "runs": self.runs,
            "pools": [
                {"name": pool.name, "gpus": pool.gpus, "usd_per_hour": pool.usd_per_hour} for pool in self.space.pools
            ],
            "answer": self.describe(self.answer),
            "less": [self.describe(judged) for judged in self.less],
            "load": {
                "unit": self.load.unit,
                "given": float(self.load.base),
                "holds": None if self.holds is None else float(self.holds),
                "breaks": None if self.breaks is None else float(self.breaks),
            },
            "curve": self.curve,
            "tried": [self.describe(judged) for judged in self.tried],
            "notes": self.notes,
            "verdict": self.verdict,
        }

    def describe(self, judged: Judged) -> Json:
        """Return a cluster at a load, with the mean of each figure over the seeds and its 95 % confidence interval."""
        return {
            "replicas": self.space.replicas(judged.counts),
            "gpus": self.space.gpus(judged.counts),
            "usd_per_hour": self.space.usd_per_hour(judged.counts),
            "load": float(judged.load),
            "meets": judged.meets(),
            "seeds_met": judged.seeds_met,
            "seeds_run": judged.seeds_run,
            "figures": {target.figure: self.estimate(judged, target) for target in self.targets},
        }

    def estimate(self, judged: Judged, target: Target) -> Json:
        """Return the mean of a figure and its confidence interval, whether the interval excludes the limit, and the
        value for each seed."""
        values = judged.figures[target.figure]
        mean = interval(values, target.share)
        if mean is None:
            return {"mean": None, "low": None, "high": None, "clear": None, "seeds": values}
        clear = None
        if mean.low is not None and mean.high is not None:
            clear = not mean.low <= target.limit <= mean.high or mean.low == mean.high
        return {"mean": mean.mean, "low": mean.low, "high": mean.high, "clear": clear, "seeds": values}


@checked
def plan(
    scenario: Source = DEFAULT,
    slo: str | Sequence[str] | None = None,
    *,
    find: Find = "replicas",
    seeds: int = 3,
    vary: str | Sequence[str] | None = None,
    max_replicas: int = MOST,
    tolerance: float = 0.02,
    points: int = 8,
    every: bool = False,
    overrides: str | Iterable[str] = (),
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Plan:
    """Find the fewest replicas, or the cheapest mix of deployments, that meet an SLO at the scenario's load
    (`find="replicas"`), or the highest load that its cluster sustains (`find="load"`).

    `slo` has bounds such as "ttft_p99<=500ms, attainment>=0.99". Without `slo`, 99 % of the planned requests must meet
    the scenario's own SLO. The SLO must hold with each of `seeds` seeds. `vary` names the pools to resize, by default
    all, up to `max_replicas` each. `tolerance` is the relative precision of the highest load. The result also has a
    curve: the figures of the cluster at `points` loads around the highest load. The search assumes that more replicas
    never serve worse. With `every`, the search runs every cheaper cluster instead.
    """
    loaded = Scenario.load(scenario, overrides)
    _check(find, seeds, tolerance, points)
    load, space = load_of(loaded), space_of(loaded, vary, max_replicas)
    bounds = targets(slo, loaded)
    if find == "load" and load.why_not is not None:
        raise HeadwayError(load.why_not)
    with (
        watch(progress, lambda: Bar(None, "runs")) as report,
        Trials(space, load, bounds, seeds, workers, report) as trials,
    ):
        return _Planner(loaded, find, trials, tolerance, points, every).run()


def _check(find: str, seeds: int, tolerance: float, points: int) -> None:
    if find not in get_args(Find):
        raise HeadwayError(f"find: a plan cannot find {shown(find)}.{suggest(str(find), get_args(Find))}")
    check_seeds(seeds)
    if not 1e-4 <= tolerance <= 1:
        raise HeadwayError(f"tolerance: must be a fraction of the load between 0.0001 and 1, got {shown(tolerance)}.")
    if not 0 <= points <= MOST_POINTS:
        raise HeadwayError(f"points: must lie between 0 (no curve) and {MOST_POINTS}, got {shown(points)}.")


class _Planner:
    """The search of one plan."""

    def __init__(
        self, scenario: Scenario, find: Find, trials: Trials, tolerance: float, points: int, every: bool
    ) -> None:
        self.scenario = scenario
        self.find: Find = find
        self.trials = trials
        self.space, self.load = trials.space, trials.load
        self.tolerance = tolerance
        self.digits = ceil(-log10(tolerance)) + 2
        self.points = points
        self.every = every

    def run(self) -> Plan:
        base, trials = self.load.base, self.trials
        holds = breaks = None
        less: list[Candidate] = []
        if self.find == "replicas":

            def meets(mix: Counts, ahead: Sequence[Counts]) -> bool:
                return trials.meets(Candidate(mix, base), [Candidate(later, base) for later in ahead])

            mixes = Mixes(meets, self.space)
            counts = mixes.cheapest(self.every)
            if counts is None:
                raise too_few(trials)
            answer = Candidate(counts, base)
            less = [Candidate(mix, base) for mix in mixes.below(counts)]
            if self.points and self.load.why_not is None:
                holds, breaks = self._knee(counts)
        else:
            counts = self.space.now()
            holds, breaks = self._knee(counts)
            if holds is None:
                raise too_much(trials, counts)
            answer = Candidate(counts, holds)
            less = [] if breaks is None else [Candidate(counts, breaks)]
        curve = [Candidate(counts, value) for value in self._loads(holds)]
        trials.complete([answer, *less, *curve])
        judged = {candidate: self._judge(candidate) for candidate, _ in trials.used}
        skips = self.find == "replicas" and len(self.space.pools) > 1 and not self.every
        return Plan(
            scenario=self.space.resolved,
            find=self.find,
            targets=tuple(trials.targets),
            seeds=trials.seeds,
            space=self.space,
            load=self.load,
            counts=counts,
            answer=judged[answer],
            less=[judged[candidate] for candidate in less],
            holds=holds,
            breaks=breaks,
            curve=[self._point(candidate) for candidate in curve],
            tried=sorted(judged.values(), key=lambda tried: (tried.load, self.space.key(tried.counts))),
            runs=len(trials.used),
            notes=notes(self.scenario, trials, answer, holds, breaks, skips),
        )

    def _knee(self, counts: Counts) -> tuple[Fraction | None, Fraction | None]:
        """Return the highest load that meets the SLO and the lowest load that misses it. If the search finds no such
        load, the value is None."""

        def ask(value: Fraction, ahead: Sequence[Fraction]) -> bool:
            return self.trials.meets(Candidate(counts, value), [Candidate(counts, next_) for next_ in ahead])

        return highest(ask, self.load, self.digits, self.tolerance)

    def _loads(self, knee: Fraction | None) -> list[Fraction]:
        """Return the loads of the curve: evenly spaced around the highest sustained load, which is one of them."""
        if knee is None or not self.points:
            return []
        steps = max(1, self.points - 1)
        shares = [FROM + (TO - FROM) * step / steps for step in range(self.points)]
        nearest = min(range(self.points), key=lambda place: abs(shares[place] - 1))
        loads = {
            knee if place == nearest else self.load.round(knee * share, self.digits)
            for place, share in enumerate(shares)
        }
        return sorted(loads)

    def _judge(self, candidate: Candidate) -> Judged:
        runs = self.trials.of(candidate)
        figures = {target.figure: [target.value(run) for run in runs] for target in self.trials.targets}
        met = sum(self.trials.meets_targets(run) for run in runs)
        return Judged(candidate.counts, candidate.load, met, len(runs), figures)

    def _point(self, candidate: Candidate) -> Json:
        """Return a point of the curve, with means over the seeds."""
        runs, judged = self.trials.of(candidate), self._judge(candidate)
        values: dict[str, list[Any]] = {name: [figure_of(run, name) for run in runs] for name in CURVE}
        values["arrivals_per_s"] = [run["arrivals_per_s"] for run in runs]
        values["throughput_per_s"] = [run["throughput"]["requests_per_s"] for run in runs]
        values["goodput_per_s"] = [run["slo"]["goodput_requests_per_s"] for run in runs]
        means = {name: interval(each) for name, each in values.items()}
        return {
            "load": float(candidate.load),
            "meets": judged.meets(),
            "seeds_met": judged.seeds_met,
            **{name: None if mean is None else mean.mean for name, mean in means.items()},
        }
