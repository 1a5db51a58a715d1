"""What another target would have given a request: the same run again, with that one decision forced.

Workload, noise and every earlier decision are equal, so that the two runs are a pair; later decisions are taken afresh
by the policy, which observes where the request went. A decision is worth as much as its best alternative is worse.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from headway.errors import HeadwayError
from headway.experiment.jobs import Job
from headway.experiment.run import prepare, run_prepared
from headway.experiment.runner import Progress, run_jobs, runner_of
from headway.experiment.verdict import has_slo
from headway.results.decisions import Decision
from headway.results.ranking import figure, value
from headway.results.records import Counterfactual
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.streams import stream
from headway.types import Json

WHERE: Final = "counterfactuals"


class Pair(Struct, frozen=True):
    """Where a request might go: the instance that generates, and that which computes the prompt if it is another."""

    target: int
    prefill: int = -1


class Outcome(Struct, frozen=True):
    """What came of a request, and of the run."""

    ttft_ps: int
    e2e_ps: int
    cached_tokens: int
    value: float | None


def counterfactuals(
    result: Result,
    count: int = 50,
    *,
    requests: Sequence[int] | None = None,
    alternatives: int | None = 1,
    objective: str | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Counterfactual]:
    """Take `count` decisions of a run, drawn by lot, or those on the `requests` named, force alternatives one at a time
    and tell what came of it, in order of time. Of each decision the best `alternatives` are tried, as the latency model
    ranked them when it was taken; None tries all. The objective is a figure of the summary: by default the share of
    requests within the SLO, or the mean of E2E where there is none.
    """
    if result.decisions is None:
        raise HeadwayError(f'{WHERE}: the decisions of this run were not traced; simulate it with trace="decisions".')
    if result.key() == "":
        wrong = "a policy of it is an object of your program, which cannot be run again"
        raise HeadwayError(f"{WHERE}: {wrong}; give it by name or as path/to/file.py:Class.")
    if count < 1 or (alternatives is not None and alternatives < 1):
        raise HeadwayError(f"{WHERE}: take one decision and one alternative at least.")
    by = figure(objective or ("slo.goodput_ratio" if has_slo(result.scenario) else "latency.e2e.mean"))
    instances = result.instances()
    chosen = _draw(result, count) if requests is None else _find(result, requests)
    tried = [(decision, pair) for decision in chosen for pair in others(decision, instances)[:alternatives]]
    jobs = []
    for decision, pair in tried:
        forced = (instances[pair.target]["id"], None if pair.prefill < 0 else instances[pair.prefill]["id"])
        arguments = (result.scenario, decision.request, forced, by)
        jobs.append(Job(f"request {decision.request}", forced_run, arguments))
    with runner_of(workers) as runner:
        outcomes: list[Outcome] = run_jobs(runner, jobs, WHERE, progress)
    was = value(result.summary(), by)
    return [
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
    ]


def forced_run(scenario: Json, request: int, to: tuple[str, str | None], by: str) -> Outcome:
    """What becomes of a request, and of the objective, in a run in which it is sent there."""
    try:
        result = run_prepared(prepare(Scenario.load(scenario)), forced={request: to})
    except HeadwayError as error:
        raise HeadwayError(f"{WHERE}: with request {request} sent to {to[0]}: {error}") from error
    columns = result.requests.column
    came, first, ended = (columns(name)[request] for name in ("arrival_ps", "first_token_ps", "finished_ps"))
    moved = columns("retries")[request] + columns("redirects")[request]
    return Outcome(
        ttft_ps=first - came if first >= 0 else -1,
        e2e_ps=ended - came if columns("outcome")[request] == "completed" else -1,
        cached_tokens=-1 if moved else columns("cached_tokens")[request],
        value=value(result.summary(), by),
    )


def others(decision: Decision, instances: dict[int, Json]) -> list[Pair]:
    """The alternatives to a decision, the best first by the latency model, then by how busy they are. Of a pair one
    half is changed at a time."""
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
    """Whether an instance could do what the chosen one does. Where a request is computed whole that is any that does
    both, of whatever pool."""
    if index == chosen or index not in instances:
        return False
    mine, its = instances[chosen], instances[index]
    role = mine.get("role")
    return role == its.get("role") and (role is None or mine.get("pool") == its.get("pool"))


def _draw(result: Result, count: int) -> list[Decision]:
    """So many first decisions on requests that count, each as likely as another; the same for the same run."""
    assert result.decisions is not None
    warmup, earlier = result.scenario["warmup"], set()
    places = []
    for place, (request, candidates) in enumerate(result.decisions.choices()):
        if request >= warmup and request not in earlier and candidates > 1:
            places.append(place)
        earlier.add(request)
    draw = stream(result.scenario["seed"]["simulation"], WHERE)
    drawn = sorted(draw.sample(places, min(count, len(places))))
    return [result.decisions[place] for place in drawn]


def _find(result: Result, requests: Sequence[int]) -> list[Decision]:
    """The first decision on each of these requests."""
    assert result.decisions is not None
    numbers = dict.fromkeys(requests)
    decisions: dict[int, Decision] = {}
    for place, (request, _) in enumerate(result.decisions.choices()):
        if request in numbers and request not in decisions:
            decisions[request] = result.decisions[place]
    missing = [str(request) for request in numbers if request not in decisions]
    if missing:
        raise HeadwayError(f"{WHERE}: no instance was chosen for request {', '.join(missing)}.")
    return [decisions[request] for request in numbers]
