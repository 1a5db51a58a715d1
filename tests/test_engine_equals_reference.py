"""The engine against the naive reference: every column, every gap, every instance's totals, in all three leap modes."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import headway.policies  # noqa: F401  declares the built-in policies
from headway import registry
from headway.results.recorder import InstanceStats, Recorder
from headway.sim.cluster import ClusterSetup, Simulation
from headway.types import OUTCOMES, ClusterView, InstanceView, Path, Request, Route
from headway.workload.spec import Planned
from reference import ReferenceRun, simulate
from strategies import Affine, Scenario, coincidences, scenarios, twins

LEAPS = (True, False, "random-cuts")


class Given:
    """Routes each request where the scenario says."""

    def __init__(self, targets: list[int]) -> None:
        self.targets = targets
        self.entry = registry.Entry("routing", "given", Given, (), (), False)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(cluster.instances[self.targets[request.id]].id)


class NoEstimate:
    def step_seconds(self, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.0


def engine(scenario: Scenario, leap: bool | str) -> tuple[Recorder, list[InstanceStats]]:
    views = [
        InstanceView(
            index,
            f"instance-{index}",
            kv_blocks=scenario.blocks,
            max_batch_size=scenario.max_batch_size,
            max_batch_tokens=scenario.max_batch_tokens,
        )
        for index in range(scenario.instances)
    ]
    setup = ClusterSetup(
        views=views,
        latency=scenario.latency,
        block_tokens=scenario.block_tokens,
        max_batch_tokens=scenario.max_batch_tokens,
        max_batch_size=scenario.max_batch_size,
        prefix_caching=scenario.prefix_caching,
        idle_watts=0.0,
        busy_watts=0.0,
        leap=leap,
        horizon_ps=None,
        warmup=0,
    )
    policy = scenario.policy
    routing = registry.build("routing", policy, "") if isinstance(policy, str) else Given(policy)
    admission = registry.build("admission", "always", "")
    scheduler = registry.build("scheduler", "fcfs", "")
    simulation = Simulation(setup, admission, routing, scheduler, Random, NoEstimate())
    planned = [
        Planned(Request(id=row, arrival_ps=at, prompt_tokens=prompt, path=path), output)
        for row, (at, path, prompt, output) in enumerate(scenario.requests)
    ]
    return simulation.run(planned), simulation.stats


def found(recorder: Recorder, stats: list[InstanceStats]) -> dict[str, Any]:
    gaps: Counter[int] = Counter()
    entries = iter(recorder.gaps)
    for first, increment, steps, weight in zip(entries, entries, entries, entries, strict=True):
        for step in range(steps):
            gaps[first + step * increment] += weight
    return {
        "arrival_ps": list(recorder.arrival_ps),
        "instance": list(recorder.instance),
        "outcome": [OUTCOMES[outcome] for outcome in recorder.outcome],
        "started_ps": list(recorder.started_ps),
        "first_token_ps": list(recorder.first_token_ps),
        "finished_ps": list(recorder.finished_ps),
        "prompt_tokens": list(recorder.prompt_tokens),
        "output_tokens": list(recorder.output_tokens),
        "cached_tokens": list(recorder.cached_tokens),
        "preemptions": list(recorder.preemptions),
        "reasons": sorted(recorder.reasons),
        "gaps": sorted((gap, count) for gap, count in gaps.items() if count),
        "requests": [one.requests for one in stats],
        "busy_ps": [one.busy_ps for one in stats],
        "steps": [one.steps for one in stats],
        "evicted_blocks": [one.evicted_blocks for one in stats],
        "peak_kv_blocks": [one.peak_kv_blocks for one in stats],
        "preemptions by instance": [one.preemptions for one in stats],
        "output tokens by instance": [one.output_tokens for one in stats],
        "cached tokens by instance": [one.cached_tokens for one in stats],
    }


def expected(run: ReferenceRun) -> dict[str, Any]:
    rows = run.rows

    def by_instance(values: list[int]) -> list[int]:
        totals = [0] * len(run.instances)
        for job, value in zip(rows, values, strict=True):
            totals[job.instance] += value
        return totals

    return {
        "arrival_ps": [job.arrival for job in rows],
        "instance": [job.instance for job in rows],
        "outcome": [job.outcome for job in rows],
        "started_ps": [job.started for job in rows],
        "first_token_ps": [job.first_token for job in rows],
        "finished_ps": [job.finished for job in rows],
        "prompt_tokens": [job.prompt for job in rows],
        "output_tokens": [job.generated for job in rows],
        "cached_tokens": [job.cached_tokens for job in rows],
        "preemptions": [job.preemptions for job in rows],
        "reasons": [job.row for job in rows if job.outcome == "rejected"],
        "gaps": sorted(Counter(run.gaps()).items()),
        "requests": [one.requests for one in run.instances],
        "busy_ps": [one.busy for one in run.instances],
        "steps": [one.steps for one in run.instances],
        "evicted_blocks": [one.evicted_blocks for one in run.instances],
        "peak_kv_blocks": [one.peak_blocks for one in run.instances],
        "preemptions by instance": by_instance([job.preemptions for job in rows]),
        "output tokens by instance": by_instance([job.generated for job in rows]),
        "cached tokens by instance": by_instance([job.cached_tokens for job in rows]),
    }


def check(scenario: Scenario) -> None:
    right = expected(simulate(**vars(scenario)))
    for leap in LEAPS:
        got = found(*engine(scenario, leap))
        wrong = {name: (got[name], value) for name, value in right.items() if got[name] != value}
        assert not wrong, f"leap {leap}: (engine, reference) differ in {wrong}"


# A head of the queue that lacks blocks may come in within a run: what the run evicts can be the first of its hits.
HITS_LOST_INSIDE_A_RUN = Scenario(
    requests=[
        (0, Path((3,), (2,)), 2, 1),
        (0, Path((3,), (12,)), 12, 1),
        (0, Path((9,), (25,)), 25, 11),
        (199, Path((3,), (13,)), 13, 1),
    ],
    instances=1,
    blocks=23,
    block_tokens=2,
    max_batch_tokens=7,
    max_batch_size=2,
    latency=Affine(step=9, a=2, c=2, k_max=5),
    policy="round-robin",
    prefix_caching=True,
)

# The third request computes again what the second has cached, outlives that copy, and is preempted.
DUPLICATES_OUTLIVE_THE_CACHED_COPY = Scenario(
    requests=[(0, Path((1,), (1,)), 1, 8), (0, Path((1,), (32,)), 32, 1), (0, Path((1,), (46,)), 46, 1)],
    instances=1,
    blocks=51,
    block_tokens=1,
    max_batch_tokens=8,
    max_batch_size=3,
    latency=Affine(step=1),
    policy="round-robin",
    prefix_caching=True,
)

fast = settings(max_examples=200, deadline=None, derandomize=True)
thorough = settings(max_examples=3000, deadline=None, derandomize=True)


@example(HITS_LOST_INSIDE_A_RUN)
@example(DUPLICATES_OUTLIVE_THE_CACHED_COPY)
@fast
@given(scenarios())
def test_the_engine_gives_what_the_reference_gives(scenario: Scenario) -> None:
    check(scenario)


@fast
@given(scenarios(max_requests=6))
def test_the_engine_gives_what_the_reference_gives_on_a_handful_of_requests(scenario: Scenario) -> None:
    check(scenario)


@fast
@given(coincidences())
def test_the_engine_gives_what_the_reference_gives_when_arrivals_and_ends_coincide(scenario: Scenario) -> None:
    check(scenario)


@fast
@given(twins())
def test_the_engine_gives_what_the_reference_gives_on_prompts_computed_twice(scenario: Scenario) -> None:
    check(scenario)


@pytest.mark.long
@thorough
@given(st.one_of(scenarios(), scenarios(), coincidences(), twins()))
def test_the_engine_gives_what_the_reference_gives_at_length(scenario: Scenario) -> None:
    check(scenario)
