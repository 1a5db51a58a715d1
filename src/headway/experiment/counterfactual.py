"""Counterfactuals: the same run again, with one routing decision forced to another target.

The repeated run has the same workload, noise and earlier decisions as the original run, so the difference between the
two comes from the forced decision. The policy makes all later decisions again, because it observes where the request
went. The value of a decision is how much better it is than the best alternative.
"""

from collections.abc import Sequence
from itertools import chain
from math import ceil
from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.arguments import checked
from headway.display.displayed import Displayed, Types, columns_of, types_of
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError
from headway.experiment.branches import WHERE, Choice, Outcome, forced_runs
from headway.experiment.jobs import Job
from headway.experiment.runner import Progress, run_jobs, runner_of
from headway.experiment.verdict import has_slo
from headway.results.decisions import Decision
from headway.results.ranking import figure, value
from headway.results.records import Counterfactual
from headway.results.result import Result
from headway.results.statistics import PS_PER_MS
from headway.streams import stream
from headway.types import Json

PARTS: Final = 4  # number of jobs per process, if there are many choices, so that the processes end at the same time
MANY: Final = 8  # number of choices per process from which on they are many


class Counterfactuals(Displayed, list[Counterfactual]):
    """The outcome of each alternative that was tried, in order of the time of the decision."""

    _view: ClassVar[str] = "headway.report.notebook:counterfactuals_view"
    _types: ClassVar[Types] = {**types_of(Counterfactual), "regret_ms": float}

    __repr__ = Displayed.__repr__

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each alternative. `regret_ms` is how much earlier the first token would have come with the
        alternative than with the actual decision."""
        return columns_of(({**asdict(each), "regret_ms": _ms(each.regret_ps)} for each in self), self._types)


def _ms(ps: int | None) -> float | None:
    return None if ps is None else ps / PS_PER_MS


class Pair(Struct, frozen=True):
    """A possible target of a request, and its prefill instance. `prefill` is -1 if the target computes the prompt."""

    target: int
    prefill: int = -1


@checked
def counterfactuals(
    result: Result,
    count: int = 50,
    *,
    requests: Sequence[int] | None = None,
    alternatives: int | None = 1,
    objective: str | None = None,
    workers: int | None = None,
    progress: Progress | bool = True,
) -> Counterfactuals:
    """Repeat a run with one decision forced at a time, and return the outcomes in order of time.

    The decisions are those on `requests`, or on `count` random requests. For each decision, try the best
    `alternatives`, as the latency model ranked them at the time of the decision. If `alternatives` is None, try all.
    `objective` is a figure of the summary: by default the fraction of requests within the SLO or, without an SLO, the
    mean E2E.
    """
    if result.decisions is None:
        raise HeadwayError(f'{WHERE}: this run has no trace of its decisions. Simulate it with trace="decisions".')
    if result.key() == "":
        wrong = "a policy of this run is an object of your program, so Headway cannot run it again"
        raise HeadwayError(f"{WHERE}: {wrong}. Give the policy by name or as path/to/file.py:Class.")
    if count < 1 or (alternatives is not None and alternatives < 1):
        raise HeadwayError(f"{WHERE}: count and alternatives must be at least 1.")
    by = figure(objective or ("slo.goodput_ratio" if has_slo(result.scenario) else "latency.e2e.mean"))
    instances = result.instances()
    chosen = _choose(result, count, requests)
    tried = [(decision, pair) for decision in chosen for pair in others(decision, instances)[:alternatives]]
    ids = {index: str(instance["id"]) for index, instance in instances.items()}
    choices = [(decision.request, (ids[pair.target], ids.get(pair.prefill))) for decision, pair in tried]
    with watch(progress, lambda: Bar(None, "parts of the runs with another choice")) as report:
        outcomes = _run(result.scenario, choices, by, workers, report)
    was = value(result.summary(), by)
    return Counterfactuals(
        Counterfactual(
            request=decision.request,
            at_ps=decision.at_ps,
            chosen=decision.target,
            alternative=pair.target,
            ttft_ps=decision.ttft_ps,
            alternative_ttft_ps=outcome.ttft_ps,
            e2e_ps=decision.e2e_ps,
            alternative_e2e_ps=outcome.e2e_ps,
            objective=by,
            value=was,
            alternative_value=outcome.value,
            chosen_prefill=decision.prefill,
            alternative_prefill=pair.prefill,
            cached_tokens=decision.cached_tokens,
            alternative_cached_tokens=outcome.cached_tokens,
        )
        for (decision, pair), outcome in zip(tried, outcomes, strict=True)
    )


def _run(
    scenario: Json, choices: Sequence[Choice], by: str, workers: int | None, progress: Progress | None
) -> list[Outcome]:
    """Return the outcome of each choice. Neighbouring choices are one job, because they share a part of their run."""
    with runner_of(workers) as runner:
        size = max(1, ceil(len(choices) / (runner.slots * (PARTS if len(choices) >= MANY * runner.slots else 1))))
        parts = [choices[start : start + size] for start in range(0, len(choices), size)]
        jobs = [Job(f"request {part[0][0]}", forced_runs, (scenario, part, by)) for part in parts]
        answers: list[list[Outcome | str]] = run_jobs(runner, jobs, WHERE, progress)
    outcomes = []
    for outcome in chain.from_iterable(answers):
        if isinstance(outcome, str):
            raise HeadwayError(outcome)
        outcomes.append(outcome)
    return outcomes


def others(decision: Decision, instances: dict[int, Json]) -> list[Pair]:
    """Return the alternatives to a decision, best first: by estimated TTFT or, without an estimate, by requests in
    flight. If the decision chose a prefill-decode pair, each alternative changes one of the two instances."""
    best = {}
    for place, candidate in enumerate(decision.candidates):
        estimate = decision.estimated_ttft_ps[place]
        best[candidate] = (estimate if estimate >= 0 else decision.inflight[place], candidate)
    ranked = sorted(decision.candidates, key=best.__getitem__)
    first = [index for index in ranked if _alike(instances, index, decision.judged)]
    if decision.prefill < 0:
        return [Pair(index) for index in first]
    second = [index for index in ranked if _alike(instances, index, decision.target)]
    return [Pair(decision.target, index) for index in first] + [Pair(index, decision.prefill) for index in second]


def _alike(instances: dict[int, Json], index: int, chosen: int) -> bool:
    """Return whether an instance can replace the chosen one: it must have the same role. If the role is prefill or
    decode, it must also be in the same pool."""
    if index == chosen or index not in instances:
        return False
    mine, its = instances[chosen], instances[index]
    role = mine.get("role")
    return role == its.get("role") and (role is None or mine.get("pool") == its.get("pool"))


def _choose(result: Result, count: int, requests: Sequence[int] | None) -> list[Decision]:
    """Return the first decision on each of `requests`. If `requests` is None, choose `count` random requests after the
    warm-up."""
    assert result.decisions is not None
    first: dict[int, tuple[int, int]] = {}  # request -> (index of its first decision, number of candidates)
    for place, (request, candidates) in enumerate(result.decisions.choices()):
        first.setdefault(request, (place, candidates))
    if requests is None:
        warmup = result.scenario["warmup"]
        places = [place for request, (place, candidates) in first.items() if request >= warmup and candidates > 1]
        draw = stream(result.scenario["seed"]["simulation"], WHERE)
        return [result.decisions[place] for place in sorted(draw.sample(places, min(count, len(places))))]
    numbers = dict.fromkeys(requests)
    missing = [str(request) for request in numbers if request not in first]
    if missing:
        raise HeadwayError(f"{WHERE}: request {', '.join(missing)} was not routed, so it has no alternative.")
    return [result.decisions[first[request][0]] for request in numbers]
