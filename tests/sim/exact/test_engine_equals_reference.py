"""The engine against the naive reference: every column, every gap, every instance's totals, in all three leap modes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import strategies as st

from draw_sources import Searched
from drawn_engine import engine
from drawn_tier import DrawnTier
from headway import hashing
from headway.results.recorder import InstanceStats, Recorder
from headway.sim.simulation import Simulation
from headway.sim.store import Store
from headway.types import OUTCOMES, Path
from headway.workload.traffic import Traffic
from reference import ReferenceRun, open_loop, simulate
from searching import search, search_until, sized
from session_plans import plan, traffic
from strategies import (
    Affine,
    Scenario,
    adapted,
    ahead,
    coincidences,
    latencies,
    period,
    scenarios,
    speculating,
    stopped,
    tiered,
    together,
    twins,
)

LATER = 10**17  # than anything that happens
LEAPS = (True, False, "random-cuts")


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
        "prefill_tokens": [one.prefill_tokens for one in stats],
        "evicted_blocks": [one.evicted_blocks for one in stats],
        "peak_kv_blocks": [one.peak_kv_blocks for one in stats],
        "adapter loads": [one.adapter_loads or 0 for one in stats],
        "drafted": [one.drafted_tokens for one in stats],
        "accepted": [one.accepted_tokens for one in stats],
        "preemptions by instance": [one.preemptions for one in stats],
        "output tokens by instance": [one.output_tokens for one in stats],
        "cached tokens by instance": [one.cached_tokens for one in stats],
    }


def stores_found(simulation: Simulation) -> dict[str, Any]:
    """Each store below the GPU of each instance at the end, the links long after it."""
    found: dict[str, Any] = {"contents": [], "counts": [], "links": []}
    for instance in simulation.cluster.instances:
        for tier in [] if instance.tiers is None else instance.tiers.tiers:
            store, link = tier.store, simulation.cluster.links.links[tier.link]
            store.check()
            tier.settle(LATER)
            link.settle(LATER)
            found["contents"].append(
                [(key, block) for key, start, end in oldest_first(store) for block in blocks(start, end)]
            )
            found["counts"].append((tier.stored, tier.loaded, tier.thrashed, tier.peak, tier.filled))
            found["links"].append((link.moved_bytes, link.busy_ps))
    return found


def oldest_first(store: Store) -> list[tuple[int, int, int]]:
    """What a store has, by key: of what came together the tail first."""
    spans = [(one[2], -one[0], key, one[0], one[1]) for key, found in store.spans.items() for one in found]
    return [(key, start, end) for _, _, key, start, end in sorted(spans)]


def blocks(start: int, end: int) -> list[int]:
    """The tail first."""
    return list(range(start, end))[::-1]


def stores_expected(run: ReferenceRun) -> dict[str, Any]:
    stores = [store for one in run.instances for store in one.stores]
    for store in stores:
        store.go_to(LATER)
        store.link.go_to(LATER)
    return {
        "contents": [store.content for store in stores],
        "counts": [(one.stored, one.loaded, one.thrashed, one.peak, one.filled) for one in stores],
        "links": [(one.link.moved, one.link.busy) for one in stores],
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
        "prefill_tokens": [one.prefill_tokens for one in run.instances],
        "evicted_blocks": [one.evicted_blocks for one in run.instances],
        "peak_kv_blocks": [one.peak_blocks for one in run.instances],
        "adapter loads": [one.loads for one in run.instances],
        "drafted": [one.drafted for one in run.instances],
        "accepted": [one.accepted for one in run.instances],
        "preemptions by instance": by_instance([job.preemptions for job in rows]),
        "output tokens by instance": by_instance([job.generated for job in rows]),
        "cached tokens by instance": by_instance([job.cached_tokens for job in rows]),
    }


def check(scenario: Scenario, sessions: list[dict[str, Any]] | None = None) -> ReferenceRun:
    """The requests of the scenario, or sessions."""

    def come() -> Traffic:
        return (
            open_loop(scenario.requests, scenario.adapters, scenario.patience, scenario.limits)
            if sessions is None
            else traffic(sessions)
        )

    done = simulate(**vars(scenario), traffic=come())
    right = expected(done) | stores_expected(done)
    for leap in LEAPS:
        simulation = engine(scenario, leap, come())
        got = found(simulation.recorder, simulation.cluster.stats) | stores_found(simulation)
        wrong = {name: (got[name], value) for name, value in right.items() if got[name] != value}
        assert not wrong, f"leap {leap}: (engine, reference) differ in {wrong}"
    return done


# A head of the queue that lacks blocks may come in within a run: what the run evicts can be the first of its hits. Here
# the first request's block is released before the block that the second one adds, so that at 200 the third takes it
# from the fourth, which then hits nothing, asks for one block at a time and enters.
HITS_LOST_INSIDE_A_RUN = Scenario(
    requests=[
        (0, Path((3,), (2,)), 2, 1),
        (0, Path((3,), (4,)), 4, 1),
        (100, Path((9,), (4,)), 4, 12),
        (185, Path((3,), (5,)), 5, 1),
    ],
    instances=1,
    blocks=8,
    block_tokens=2,
    max_batch_tokens=3,
    max_batch_size=2,
    latency=Affine(step=10),
    policy="round-robin",
)

# The third request holds the first two blocks, which the first one computed, and the second the two after them; its own
# of those are duplicates. The block that it computes then follows on the second one's.
HELD_BY_TURNS = Scenario(
    requests=[(0, Path((3,), (8,)), 8, 1), (0, Path((3,), (16,)), 16, 3), (0, Path((3,), (20,)), 20, 1)],
    instances=1,
    blocks=10,
    block_tokens=4,
    max_batch_tokens=16,
    max_batch_size=2,
    latency=Affine(step=10),
    policy="round-robin",
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
)

# The second request's prompt goes on with what the first one says, and its run of chunks ends as the first one leaves:
# the earlier chunks are hits by then, so that the first one's copies of them are duplicates and empty when released.
# Later the third evicts one block, which is the second one's last; the fourth finds all before it.
SAID = hashing.key(hashing.OUTPUT, 0)
COMPUTED_BEFORE_ITS_AUTHOR_LEAVES = Scenario(
    requests=[
        (0, Path((1,), (4,)), 4, 6),
        (30, Path((1, SAID, 2), (4, 12, 24)), 24, 1),
        (200, Path((3,), (12,)), 12, 1),
        (300, Path((1, SAID, 2), (4, 12, 24)), 24, 1),
    ],
    instances=1,
    blocks=8,
    block_tokens=4,
    max_batch_tokens=5,
    max_batch_size=2,
    latency=Affine(step=10),
    policy="round-robin",
)

# The first two end a step together; the second then goes on with a run of chunks whose first block the first one has
# cached and let go. In the run's first step that block is a duplicate, in its last the cached one is evicted: it is not
# cached at the end, so that the third request finds three empty blocks and evicts nothing.
CACHED_WHEN_COMPUTED_AND_EVICTED_LATER = Scenario(
    requests=[
        (0, Path((1,), (20,)), 20, 1),
        (0, Path((1, 2), (20, 53)), 53, 1),
        (100, Path((3,), (12,)), 12, 1),
    ],
    instances=1,
    blocks=14,
    block_tokens=4,
    max_batch_tokens=12,
    max_batch_size=2,
    latency=Affine(step=10),
    policy="round-robin",
)

# The second request is preempted and gets tokens again; then the clock stops, and neither its gaps from before nor the
# one that the preemption tore open count.
TORN_AND_CUT_OFF = Scenario(
    requests=[(0, Path((1,), (7,)), 7, 6), (0, Path((2,), (7,)), 7, 6)],
    instances=1,
    blocks=4,
    block_tokens=4,
    max_batch_tokens=64,
    max_batch_size=8,
    latency=Affine(step=10),
    policy="round-robin",
    horizon=85,
)

# The last but one loads its first blocks from the storage, which all share and which keeps what is loaded; the CPU has
# one of them too, and is faster.
A_FASTER_STORE_IN_BETWEEN = Scenario(
    requests=[
        (0, Path((key,), (tokens,)), tokens, output)
        for key, tokens, output in (
            *((1, 9, 30), (3, 2, 1), (3, 15, 5), (3, 2, 1), (17, 16, 30), (3, 2, 1), (25, 16, 12)),
            *((3, 11, 1), (33, 9, 1), (37, 21, 1), (3, 2, 1), (3, 5, 1), (3, 2, 1)),
        )
    ],
    instances=1,
    blocks=23,
    block_tokens=2,
    max_batch_tokens=16,
    max_batch_size=3,
    latency=Affine(step=1),
    policy="round-robin",
    tiers=(DrawnTier("cpu", 1, 10**12, 0), DrawnTier("storage", 500, 5 * 10**11, 0, True)),
    block_bytes=1,
)


def test_blocks_of_earlier_steps_are_hits_before_what_ends_with_the_run_leaves() -> None:
    check(COMPUTED_BEFORE_ITS_AUTHOR_LEAVES)
    done = simulate(**vars(COMPUTED_BEFORE_ITS_AUTHOR_LEAVES))
    assert done.rows[0].finished == 60 < done.rows[1].first_token
    assert [job.cached_tokens for job in done.rows] == [0, 4, 0, 20]


def test_a_block_that_is_cached_when_it_is_computed_stays_a_duplicate_though_the_run_evicts_the_cached_one() -> None:
    check(CACHED_WHEN_COMPUTED_AND_EVICTED_LATER)
    done = simulate(**vars(CACHED_WHEN_COMPUTED_AND_EVICTED_LATER))
    assert [job.started for job in done.rows] == [0, 10, 100]
    assert done.instances[0].evicted_blocks == 2


def test_gaps_that_a_preemption_tore_open_are_not_counted_at_the_horizon_or_in_the_warm_up() -> None:
    check(TORN_AND_CUT_OFF)
    older, newer = simulate(**vars(TORN_AND_CUT_OFF)).rows
    assert (older.outcome, newer.outcome, newer.preemptions) == ("completed", "in_flight", 1)
    assert newer.token_times == [10, 20, 70, 80]
    check(replace(TORN_AND_CUT_OFF, horizon=None, warmup=1))
    check(replace(TORN_AND_CUT_OFF, horizon=None, warmup=2))


def test_each_block_comes_from_the_fastest_store_that_has_it() -> None:
    stores = check(A_FASTER_STORE_IN_BETWEEN).instances[0].stores
    assert all(store.loaded for store in stores)


@pytest.mark.parametrize(
    "scenario",
    [
        pytest.param(HITS_LOST_INSIDE_A_RUN, id="hits lost inside a run"),
        pytest.param(HELD_BY_TURNS, id="held by turns"),
        pytest.param(DUPLICATES_OUTLIVE_THE_CACHED_COPY, id="duplicates outlive the cached copy"),
    ],
)
def test_the_engine_gives_what_the_reference_gives_where_it_once_did_not(scenario: Scenario) -> None:
    check(scenario)


# --- drawn scenarios ---------------------------------------------------------------------------------------------

FEW = 40  # examples in `make test`
STORED = st.one_of(scenarios(), twins(), twins(), stopped(scenarios()), adapted(twins()))
DRAWN = {
    "of any kind": scenarios(),
    "when arrivals and ends coincide": coincidences(),
    "on prompts computed twice": twins(),
    "when the clock stops": stopped(st.one_of(scenarios(), twins())),
    "when steps are scheduled ahead": ahead(st.one_of(scenarios(), coincidences(), twins(), stopped(scenarios()))),
    "when steps are scheduled ahead, with adapters": ahead(adapted(st.one_of(scenarios(), twins()))),
}
HAPPENED = ("stored", "loaded", "thrashed", "no room to load", "blocked", "all preempted")
HARDLY = ("gave way", "load cancelled")


@sized(quick=FEW, full=200)
@pytest.mark.parametrize("kind", DRAWN)
def test_the_engine_gives_what_the_reference_gives(kind: str, examples: int) -> None:
    search(examples, check, DRAWN[kind])


@sized(quick=FEW, full=200)
def test_the_engine_gives_what_the_reference_gives_with_adapters(examples: int) -> None:
    def check_adapters(scenario: Scenario) -> list[str]:
        done = check(scenario)
        started = [job for job in done.rows if job.request.adapter is not None and job.started >= 0]
        wanted = len({(job.instance, job.request.adapter) for job in started})
        shown = {
            "loaded again": sum(instance.loads for instance in done.instances) > wanted,
            "preempted": any(job.preemptions for job in started),
            "kept waiting": any(instance.kept_waiting for instance in done.instances),
        }
        return [name for name, holds in shown.items() if holds]

    drawn = adapted(st.one_of(scenarios(), coincidences(), twins(), stopped(scenarios())))
    search_until(examples, check_adapters, ("loaded again", "preempted", "kept waiting"), drawn, share=0.1)


@sized(quick=FEW, full=300)
def test_the_engine_gives_what_the_reference_gives_with_ranks_in_lockstep(examples: int) -> None:
    def check_ranks(scenario: Scenario) -> list[str]:
        done = check(scenario)
        assert len({(rank.steps, rank.busy) for rank in done.instances}) == 1
        shown = {
            "idle rank": any(rank.steps and not rank.requests for rank in done.instances),
            "preempted": any(job.preemptions for job in done.rows),
            "evicted": any(rank.evicted_blocks for rank in done.instances),
            "loaded": any(rank.loads for rank in done.instances),
            "cut off": any(job.outcome == "in_flight" for job in done.rows),
        }
        return [name for name, holds in shown.items() if holds]

    drawn = st.one_of(scenarios(), coincidences(), twins(), stopped(st.one_of(scenarios(), twins())), adapted(twins()))
    wanted = ("idle rank", "preempted", "evicted", "loaded", "cut off")
    search_until(examples, check_ranks, wanted, together(drawn), share=0.02)


@sized(quick=FEW, full=200)
def test_the_engine_gives_what_the_reference_gives_with_stores_below_the_gpu(examples: int) -> None:
    def check_stores(scenario: Scenario) -> list[str]:
        done = check(scenario)
        shown = [name for instance in done.instances for name in instance.seen]
        for store in (store for instance in done.instances for store in instance.stores):
            counts = {"stored": store.stored, "loaded": store.loaded, "thrashed": store.thrashed}
            shown += [name for name, count in counts.items() if count]
        return shown

    wanted = HAPPENED if examples == FEW else (*HAPPENED, *HARDLY)
    search_until(examples, check_stores, wanted, tiered(STORED))


@sized(quick=FEW, full=300)
def test_the_engine_gives_what_the_reference_gives_with_speculation(examples: int) -> None:
    def check_speculating(scenario: Scenario) -> list[str]:
        done = check(scenario)
        instances = done.instances
        shown = {
            "accepted": any(0 < one.accepted < one.drafted for one in instances),
            "all accepted": any(0 < one.accepted == one.drafted for one in instances),
            "none accepted": any(one.accepted == 0 < one.drafted for one in instances),
            "preempted": any(job.preemptions for job in done.rows),
            "evicted": any(one.evicted_blocks for one in instances),
            "gave up": any(job.outcome == "timed_out" for job in done.rows),
            "cut off": any(job.outcome == "in_flight" for job in done.rows),
        }
        return [name for name, holds in shown.items() if holds]

    drawn = speculating(st.one_of(scenarios(), twins(), stopped(scenarios()), tiered(STORED), adapted(twins())))
    wanted = ("accepted", "all accepted", "none accepted", "preempted", "evicted", "gave up", "cut off")
    search_until(examples, check_speculating, wanted, drawn)


@sized(quick=FEW, full=300)
def test_the_engine_gives_what_the_reference_gives_with_speculation_and_steps_scheduled_ahead(examples: int) -> None:
    drawn = ahead(speculating(st.one_of(scenarios(), twins(), stopped(scenarios()), adapted(twins()))))
    search(examples, check, drawn)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Scenario, list[dict[str, Any]]]:
    """Sessions whose delays are whole steps, or none, in a cache that the longest just fit into, or do not."""
    latency = draw(latencies())
    sessions = plan(Searched(draw), period(latency), longest=60)
    block_tokens = draw(st.sampled_from([1, 4, 16]))
    needed = -(-60 // block_tokens)
    scenario = Scenario(
        requests=[],
        instances=draw(st.sampled_from([1, 1, 2, 3])),
        blocks=draw(st.sampled_from([needed, needed + 1, 2 * needed, max(1, needed // 2)])),
        block_tokens=block_tokens,
        max_batch_tokens=draw(st.one_of(st.integers(1, 64), st.just(64))),
        max_batch_size=draw(st.sampled_from([1, 2, 3, 8])),
        latency=latency,
        policy=draw(st.sampled_from(["round-robin", "least-loaded"])),
        prefix_caching=draw(st.sampled_from([True, True, True, False])),
        horizon=draw(st.one_of(st.none(), st.none(), st.integers(0, 60).map(period(latency).__mul__))),
        warmup=draw(st.sampled_from([0, 0, 2])),
    )
    return scenario, sessions


@sized(quick=FEW, full=200)
def test_the_engine_gives_what_the_reference_gives_on_sessions(examples: int) -> None:
    def check_sessions(drawn: tuple[Scenario, list[dict[str, Any]]]) -> list[str]:
        rows = check(*drawn).rows
        names = [(job.request.session, job.request.turn) for job in rows]
        ends = {name: job.finished for name, job in zip(names, rows, strict=True)}
        shown = {
            "at once": any(
                ends.get((session, turn - 1)) == job.arrival for (session, turn), job in zip(names, rows, strict=True)
            ),
            "again": len(set(names)) < len(names),
            "preempted": any(job.preemptions for job in rows),
            "cut off": any(job.outcome == "in_flight" for job in rows),
        }
        return [name for name, holds in shown.items() if holds]

    wanted = ("at once", "again", "preempted", "cut off")
    search_until(examples, check_sessions, wanted, conversations(), share=0.03)
