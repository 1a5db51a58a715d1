"""Capacity planning: the cheapest cluster that keeps an SLO under a load, and the highest load that a cluster holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, log10
from typing import Any, Final, Literal

from msgspec import Struct, to_builtins

from headway.config.wording import join_words, shown, suggest
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
FINDS: Final = ("replicas", "load")
MOST: Final = 64
MOST_POINTS: Final = 200
FROM, TO = Fraction(1, 4), Fraction(3, 2)  # of the knee: where a curve begins and ends
CURVE: Final = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99", "attainment", "completed")


class Judged(Struct, frozen=True):
    """A cluster under a load, and its figures under each seed."""

    counts: Counts
    load: Fraction
    seeds_met: int
    seeds_run: int  # the first that fails decides, where more is not wanted
    figures: dict[str, list[float | None]]  # of each target, by seed

    def meets(self) -> bool:
        return self.seeds_met == self.seeds_run


class Plan(Struct, frozen=True):
    """What a plan found. `counts` are the replicas of the chosen cluster, one number a pool of `space`."""

    scenario: Json
    find: Find
    targets: tuple[Target, ...]
    seeds: int
    space: Space
    load: Load
    counts: Counts
    answer: Judged  # the chosen cluster under the load that was asked for, or under the highest that it holds
    less: list[Judged]  # with one replica less, or under the lowest load that it does not hold
    holds: Fraction | None  # the highest load that the chosen cluster was seen to hold
    breaks: Fraction | None  # the lowest load that it was seen not to hold
    curve: list[Json]
    tried: list[Judged]
    runs: int
    notes: list[str]

    @property
    def replicas(self) -> dict[str, int]:
        """Of each pool of the chosen cluster."""
        return self.space.replicas(self.counts)

    @property
    def verdict(self) -> str:
        return _verdict(self)

    def summary(self) -> Json:
        """The document that `headway plan --json` prints."""
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
        """A cluster under a load, with the mean of each target over the seeds and its 95 % interval."""
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
        """The figure of a target: mean, interval, the value of each seed, and whether the whole interval lies on one
        side of the limit."""
        values = judged.figures[target.figure]
        mean = interval(values, target.share)
        if mean is None:
            return {"mean": None, "low": None, "high": None, "clear": None, "seeds": values}
        clear = None
        if mean.low is not None and mean.high is not None:
            clear = not mean.low <= target.limit <= mean.high or mean.low == mean.high
        return {"mean": mean.mean, "low": mean.low, "high": mean.high, "clear": clear, "seeds": values}


def _verdict(plan: Plan) -> str:
    """The answer, how sure it is, what one less would do, and how much more load there is room for."""
    space, load = plan.space, plan.load
    many = sum(plan.counts) != 1
    gpus = space.gpus(plan.counts)
    size = f"{gpus:,} GPU{'s' * (gpus != 1)}, {space.usd_per_hour(plan.counts):,.2f} USD/h"
    figures = join_words([_describe_estimate(plan, target) for target in plan.targets])
    seeds = "its one seed" if plan.seeds == 1 else f"all {plan.seeds} seeds"
    keep = f"keep{'s' * (not many)} the SLO at {load.describe(plan.answer.load)} under {seeds}"
    sentences = [f"{space.describe(plan.counts)} ({size}) {keep}: {figures}."]
    for less in plan.less:
        other = f"With {space.describe(less.counts)}" if plan.find == "replicas" else f"At {load.describe(less.load)}"
        sentences.append(f"{other} it is kept under {less.seeds_met} of {less.seeds_run}.")
    if plan.find == "replicas" and plan.holds is not None and plan.breaks is not None:
        spare = 100 * float(plan.holds / load.base - 1)
        sentences.append(f"The load could rise by {spare:.0f} %, to {load.describe(plan.holds)}.")
    return " ".join(sentences)


def _describe_estimate(plan: Plan, target: Target) -> str:
    estimate = plan.estimate(plan.answer, target)
    text = f"{target.figure} {target.describe_value(estimate['mean'])}"
    if estimate["low"] is None or estimate["low"] == estimate["high"]:
        return text
    low, high = (target.describe_value(estimate[name]) for name in ("low", "high"))
    doubt = "" if estimate["clear"] else ", across the limit"
    return f"{text} (95 % interval {low.rpartition(' ')[0]} to {high}{doubt})"


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
    progress: Progress | None = None,
) -> Plan:
    """Find the fewest replicas (`find="replicas"`), or the cheapest mix of deployments, that keep an SLO under the
    scenario's load, or the highest load that its cluster holds (`find="load"`).

    `slo` is as "ttft_p99<=500ms, attainment>=0.99" (see `targets`); without it 99 % of the planned requests must keep
    the scenario's own. It must hold under each of `seeds` seeds. `vary` names the pools whose size is sought, of up to
    `max_replicas` each. The highest load is found to a `tolerance`, and a curve of `points` loads drawn around it.
    `every` looks at every cheaper cluster instead of trusting that more replicas never serve worse.
    """
    loaded = Scenario.load(scenario, overrides)
    _check(find, seeds, tolerance, points)
    load, space = load_of(loaded), space_of(loaded, vary, max_replicas)
    bounds = targets(slo, loaded)
    if find == "load" and load.why_not is not None:
        raise HeadwayError(load.why_not)
    with Trials(space, load, bounds, seeds, workers, progress) as trials:
        return _Planner(loaded, find, trials, tolerance, points, every).run()


def _check(find: str, seeds: int, tolerance: float, points: int) -> None:
    if find not in FINDS:
        raise HeadwayError(f"find: there is no looking for {shown(find)}.{suggest(str(find), FINDS)}")
    check_seeds(seeds)
    if not 1e-4 <= tolerance <= 1:
        raise HeadwayError(f"tolerance: must lie between 0.0001 and 1, as a share of the load, got {shown(tolerance)}.")
    if not 0 <= points <= MOST_POINTS:
        raise HeadwayError(f"points: must lie between 0 (no curve) and {MOST_POINTS}, got {shown(points)}.")


class _Planner:
    """One plan in the making."""

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
            notes=notes(self.scenario, trials, answer, holds, breaks, self.trusts()),
        )

    def trusts(self) -> bool:
        """Whether cheaper mixes may have gone untried because larger ones had broken the SLO."""
        return self.find == "replicas" and len(self.space.pools) > 1 and not self.every

    def _knee(self, counts: Counts) -> tuple[Fraction | None, Fraction | None]:
        def ask(value: Fraction, ahead: Sequence[Fraction]) -> bool:
            return self.trials.meets(Candidate(counts, value), [Candidate(counts, next_) for next_ in ahead])

        return highest(ask, self.load, self.digits, self.tolerance)

    def _loads(self, knee: Fraction | None) -> list[Fraction]:
        """Where the curve is drawn: evenly around the knee, which is among them."""
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
        """A point of the curve: means over the seeds."""
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
