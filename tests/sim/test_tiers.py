"""Stores below the GPU, worked out by hand: a block of four tokens takes 1000 ps over the link, a step 100 ps and 10 ps
for each token of a prompt."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from itertools import cycle, zip_longest
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import TRACES
from drawing import draws
from drawn_engine import Watching, engine
from drawn_tier import DrawnTier
from headway.results.records import KvMove
from headway.sim.instance_end import check_instance
from headway.sim.simulation import Simulation
from headway.types import PS_PER_SECOND, Path
from headway.workload import reuse
from headway.workload.traces import read_trace
from reference import open_loop
from strategies import Affine, Scenario, scenarios, tiered, twins

Content = set[tuple[int, int]]
BLOCK_PS = 1000
LATENCY_PS = 50
CPU = DrawnTier("cpu", 100, 10**12, LATENCY_PS)
A, B, C = 3, 5, 7


def of(key: int, tokens: int) -> Path:
    return Path((key,), (tokens,))


def run(
    requests: list[tuple[int, Path]],
    blocks: int,
    offload: str,
    *tiers: DrawnTier,
    level: float = 1,
    instances: int = 1,
    trace: str = "minimal",
) -> Simulation:
    """Requests (arrival, prompt) with outputs of one token, in blocks of four."""
    scenario = Scenario(
        requests=[(at, path, path.tokens, 1) for at, path in requests],
        instances=instances,
        blocks=blocks,
        block_tokens=4,
        max_batch_tokens=64,
        max_batch_size=8,
        latency=Affine(step=100, a=10),
        policy="round-robin",
        tiers=tiers,
        offload=offload,
        offload_level=level,
        block_bytes=1000,
    )
    return engine(scenario, True, open_loop(scenario.requests), trace=trace)


def moves(simulation: Simulation) -> list[tuple[Any, ...]]:
    """The recorded moves: kind, blocks, request, source, target, begin and end."""
    assert simulation.recorder.events is not None
    moved = [event for event in simulation.recorder.events if isinstance(event, KvMove)]
    return [(one.kind, one.blocks, one.request, one.source, one.target, one.at_ps, one.end_ps) for one in moved]


def above(simulation: Simulation) -> Content:
    """What the GPU's cache has."""
    cache = simulation.cluster.instances[0].cache
    return {(key, block) for key in cache.pieces for one in cache._chain(key) for block in range(one.start, one.end)}


def below(simulation: Simulation, place: int = 0) -> list[tuple[int, int]]:
    """What a store has, the oldest first."""
    tiers = simulation.cluster.instances[0].tiers
    assert tiers is not None
    found = tiers.tiers[place].store.spans.items()
    spans = sorted((one[2], -one[0], key, one[0], one[1]) for key, spans in found for one in spans)
    return [(key, block) for _, _, key, first, end in spans for block in range(first, end)[::-1]]


def test_who_lacked_blocks_is_tried_again_when_another_has_computed_its_prefix() -> None:
    """With stores as without: the third has no room for its prompt, but for its last block once the second is hits."""
    found = []
    for tiers in ((), (DrawnTier("cpu", 1, 10**12, LATENCY_PS),)):
        requests = [(0, of(A, 85), 85, 30), (2000, of(B, 20), 20, 8), (2000, of(B, 20), 20, 2)]
        scenario = Scenario(
            requests=requests,
            instances=1,
            blocks=32,
            block_tokens=4,
            max_batch_tokens=128,
            max_batch_size=8,
            latency=Affine(step=100, a=10),
            policy="round-robin",
            tiers=tiers,
            offload="lazy",
            offload_level=1,
            block_bytes=1000,
        )
        recorder = engine(scenario, True, open_loop(requests)).recorder
        found.append((list(recorder.started_ps), list(recorder.cached_tokens)))
    assert found[0] == found[1]
    assert found[0][1] == [0, 0, 16]


def test_a_hit_in_the_cpu_tier_delays_the_first_token_by_latency_and_bytes_over_bandwidth_and_saves_the_prefill() -> (
    None
):
    again = [(0, of(A, 13)), (1000, of(B, 13)), (10_000, of(A, 13))]
    with_tier, without = run(again, 4, "eager", CPU), run(again, 4, "eager")
    computed = 100 + 13 * 10
    assert list(without.recorder.first_token_ps) == [computed, 1000 + computed, 10_000 + computed]
    assert list(without.recorder.cached_tokens) == [0, 0, 0]
    loaded = LATENCY_PS + 3 * BLOCK_PS
    assert list(with_tier.recorder.first_token_ps) == [computed, 1000 + computed, 10_000 + loaded + 100 + 10]
    assert list(with_tier.recorder.cached_tokens) == [0, 0, 12]
    assert list(with_tier.recorder.started_ps) == [0, 1000, 10_000]


def test_who_is_there_already_goes_on_while_another_waits_for_its_blocks() -> None:
    # After 230 ps what C has computed is copied down, and the load has half the link for the 2770 ps that it needs.
    simulation = run([(0, of(A, 13)), (1000, of(B, 29)), (50_000, of(A, 13)), (50_000, of(C, 13))], 8, "eager", CPU)
    loaded = 230 + 2 * 2770 + LATENCY_PS
    assert list(simulation.recorder.first_token_ps)[2:] == [50_000 + loaded + 110, 50_000 + 230]


def test_two_loads_on_one_link_share_it() -> None:
    simulation = run(
        [(0, of(A, 13)), (1000, of(B, 13)), (2000, of(C, 29)), (40_000, of(A, 13)), (40_000, of(B, 13))],
        8,
        "eager",
        CPU,
    )
    both = 40_000 + 2 * 3 * BLOCK_PS + LATENCY_PS + 100 + 2 * 10
    assert list(simulation.recorder.first_token_ps)[3:] == [both, both]


def test_an_offload_slows_a_load() -> None:
    # The load of three blocks evicts two of B's: these leave the link after 4000 ps, each at half the speed; then the
    # last block of the load has it to itself.
    simulation = run([(0, of(A, 13)), (1000, of(B, 13)), (10_000, of(A, 13))], 4, "lazy", CPU)
    assert simulation.recorder.first_token_ps[2] == 10_000 + 4000 + 1000 + LATENCY_PS + 110


def test_a_record_of_a_move_says_from_where_to_where_and_when_the_last_block_arrives() -> None:
    # As above: the offload has half the link for 4000 ps; the load then has the whole link for its last block. The last
    # offload has not arrived when the run ends.
    simulation = run([(0, of(A, 13)), (1000, of(B, 13)), (10_000, of(A, 13))], 4, "lazy", CPU, trace="full")
    assert moves(simulation) == [
        ("offload", 3, -1, "gpu", "cpu", 1000, 1000 + 3 * BLOCK_PS + LATENCY_PS),
        ("reload", 3, 2, "cpu", "gpu", 10_000, 10_000 + 5 * BLOCK_PS + LATENCY_PS),
        ("offload", 2, -1, "gpu", "cpu", 10_000, 10_000 + 4 * BLOCK_PS + LATENCY_PS),
        ("offload", 1, -1, "gpu", "cpu", 15_050, -1),
    ]


def test_a_record_of_a_move_to_a_second_store_names_the_first_one_as_its_source() -> None:
    storage = DrawnTier("storage", 100, 10**11, 700)
    simulation = run([(0, of(A, 13)), (1000, of(B, 13))], 4, "eager", replace_blocks(CPU, 4), storage, trace="full")
    assert {move[:5] for move in moves(simulation)} == {
        ("offload", 3, -1, "gpu", "cpu"),
        ("offload", 2, -1, "cpu", "storage"),
    }


def test_a_prompt_in_two_stores_comes_over_both_links_and_waits_for_the_slower() -> None:
    # A's blocks move down from the tail on: the CPU keeps the head, the storage gets the rest.
    storage = DrawnTier("storage", 100, 10**11, 700)
    requests = [(0, of(A, 13)), (1000, of(B, 13)), (100_000, of(A, 13))]
    simulation = run(requests, 4, "eager", replace_blocks(CPU, 4), storage)
    assert below(run(requests[:2], 4, "eager", replace_blocks(CPU, 4), storage), 1) == [(A, 2), (A, 1)]
    assert simulation.recorder.first_token_ps[2] == 100_000 + 2 * 10 * BLOCK_PS + 700 + 110


def replace_blocks(tier: DrawnTier, blocks: int) -> DrawnTier:
    return DrawnTier(tier.name, blocks, tier.bandwidth, tier.latency_ps, tier.shared)


def test_lazily_each_block_lies_in_one_place_and_eagerly_the_copy_stays() -> None:
    requests = [(0, of(A, 13)), (1000, of(B, 13)), (10_000, of(A, 13))]
    lazy, eager = run(requests, 4, "lazy", CPU), run(requests, 4, "eager", CPU)
    assert above(lazy) == {(A, 0), (A, 1), (A, 2)}
    assert below(lazy) == [(B, 2), (B, 1), (B, 0)]
    assert above(eager) == {(A, 0), (A, 1), (A, 2)}
    assert below(eager) == [(B, 2), (B, 1), (B, 0), (A, 2), (A, 1), (A, 0)]


def test_what_is_loaded_soon_after_it_came_down_is_thrashed_and_a_load_of_a_copy_is_no_coming_down() -> None:
    # A comes down from the first instance after a second; both load it from the fifth on, half a second apart. As the
    # first does so B comes down, and the other one wants it 0.9 s later.
    shared = DrawnTier("storage", 100, 10**12, LATENCY_PS, shared=True)
    tenths = [(0, A), (0, C), (10, B), (50, A), (55, A), (64, B)]
    requests = [(at * PS_PER_SECOND // 10, of(key, 13)) for at, key in tenths]
    for count, found in ((5, (6, 0)), (6, (9, 3))):
        tiers = run(requests[:count], 4, "lazy", shared, instances=2).cluster.instances[0].tiers
        assert tiers is not None
        assert (tiers.tiers[0].loaded, tiers.tiers[0].thrashed) == found


def test_above_its_level_the_gpu_gives_up_what_was_used_least_recently() -> None:
    # As B enters, its four blocks and A's three are one above six of eight.
    requests = [(0, of(A, 13)), (1000, of(B, 13))]
    simulation = run(requests, 8, "lazy", CPU)
    assert (len(above(simulation)), below(simulation)) == (6, [])
    simulation = run(requests, 8, "threshold", CPU, level=0.75)
    assert below(simulation) == [(A, 2)]
    assert above(simulation) == {(A, 0), (A, 1), (B, 0), (B, 1), (B, 2)}


@pytest.mark.parametrize(("offload", "level", "kept"), [("lazy", 1, 8), ("threshold", 0.95, 7)])
def test_kv_offload_under_memory_pressure(offload: str, level: float, kept: int) -> None:
    # Given instance GPU KV utilization is 95%, cached content included
    before = [(0, of(A, 40)), (10_000, of(B, 36))]
    simulation = run(before, 20, offload, CPU, level=level)
    cache = simulation.cluster.instances[0].cache
    assert (cache.held + cache.idle) / cache.total == 0.95
    # And CPU tier has available capacity
    assert below(simulation) == []
    # When a new request requires KV allocation
    simulation = run([*before, (20_000, of(C, 12))], 20, offload, CPU, level=level)
    # Then least-recently-used blocks are offloaded to CPU tier
    assert below(simulation) == [(A, n) for n in reversed(range(kept, 10))]
    assert above(simulation) == {(A, n) for n in range(kept)} | {(B, n) for n in range(9)} | {(C, n) for n in range(3)}


def look_through(simulation: Simulation) -> None:
    for instance in simulation.cluster.instances:
        check_instance(instance)
        assert instance.tiers is not None
        for tier in instance.tiers.tiers:
            tier.store.check()
            assert tier.count_used() <= tier.store.blocks + tier.swapped - tier.lent


@draws(25)
@given(tiered(st.one_of(scenarios(), twins())), st.integers(0, 2))
def test_blocks_are_conserved_in_every_store_at_every_event(scenario: Scenario, mode: int) -> None:
    watching = Watching(look_through)
    leap = (True, False, "random-cuts")[mode]
    engine(scenario, leap, open_loop(scenario.requests, (), scenario.patience), watching)
    assert watching.looks >= len(scenario.requests)


class Lru:
    """What a cache of so many blocks hits. The head of a prompt is the most recent of it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.blocks: OrderedDict[Any, None] = OrderedDict()

    def hits(self, prompt: Sequence[Any]) -> int:
        found = 0
        while found < len(prompt) and prompt[found] in self.blocks:
            found += 1
        for block in reversed(prompt):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        while len(self.blocks) > self.capacity:
            self.blocks.popitem(last=False)
        return found


def one_at_a_time(paths: list[Path], gpu: int, offload: str, *tiers: DrawnTier) -> list[int]:
    """Blocks that each prompt of whole blocks of two tokens and one more hits, each come after the one before has
    ended. The one more makes each of them whole hits, and takes a block of the GPU that then is empty again."""
    requests = [(row * 10**9, path, path.tokens, 1) for row, path in enumerate(paths)]
    scenario = Scenario(
        requests=requests,
        instances=1,
        blocks=gpu + 1,
        block_tokens=2,
        max_batch_tokens=10**6,
        max_batch_size=4,
        latency=Affine(step=1),
        policy="round-robin",
        tiers=tiers,
        offload=offload,
        block_bytes=1,
    )
    recorder = engine(scenario, True, open_loop(requests)).recorder
    finished = list(recorder.finished_ps)
    assert all(end < come for end, come in zip(finished[:-1], recorder.arrival_ps[1:], strict=True))
    return [tokens // 2 for tokens in recorder.cached_tokens]


def path_of(row: int, runs: Sequence[tuple[int, int]]) -> Path:
    """Runs of (first id, blocks), two tokens a block, and a token of its own. An id is the key and its place."""
    keys, ends, at = [], [], 0
    for first, count in runs:
        keys.append(first - at)
        at += count
        ends.append(2 * at)
    return Path((*keys, -row - 1 - 10**9), (*ends, 2 * at + 1))


@st.composite
def growing(draw: st.DrawFn) -> list[list[tuple[int, int]]]:
    """Prompts as runs of ids, fresh or grown from a part of an earlier one."""
    found: list[list[tuple[int, int]]] = []
    fresh = 0
    for _ in range(draw(st.integers(2, 30))):
        ids: list[int] = []
        if found and draw(st.sampled_from([True, True, True, False])):
            first = found[draw(st.integers(0, len(found) - 1))]
            ids = [start + n for start, count in first for n in range(count)]
            ids = ids[: draw(st.integers(1, len(ids)))]
        more = draw(st.integers(0 if ids else 1, 6))
        ids = ids[:12] + list(range(fresh, fresh + more))
        fresh += more
        found.append([(block, 1) for block in ids])
    return found


@draws(40)
@given(
    growing(),
    st.integers(0, 8),
    st.integers(1, 30),
    st.one_of(st.just(0), st.integers(1, 20)),
    st.sampled_from(["lazy", "lazy", "eager"]),
)
def test_one_request_at_a_time_hits_what_one_lru_cache_of_all_stores_would(
    prompts: list[list[tuple[int, int]]], slack: int, cpu: int, storage: int, offload: str
) -> None:
    """As large as all together where content moves, as the largest where copies stay."""
    gpu = max(len(prompt) for prompt in prompts) + slack
    tiers = [DrawnTier("cpu", cpu, 10**12, 7)]
    if storage and offload != "eager":
        tiers.append(DrawnTier("storage", storage, 10**11, 9))
    one = Lru(max(gpu, cpu) if offload == "eager" else gpu + sum(tier.blocks for tier in tiers))
    paths = [path_of(row, prompt) for row, prompt in enumerate(prompts)]
    got = one_at_a_time(paths, gpu, offload, *tiers)
    assert got == [one.hits([block for block, _ in prompt]) for prompt in prompts]


@cache
def weka() -> list[tuple[list[tuple[int, int]], int]]:
    """Blocks of the prompts, and their tokens, of real sessions that take turns."""
    trace = read_trace(TRACES / "agentic-coding-weka" / "raw-sample", None)
    sessions: dict[int, list[int]] = {}
    for row in range(len(trace)):
        sessions.setdefault(trace.session[row], []).append(row)
    rows = [row for turn in zip_longest(*sessions.values()) for row in turn if row is not None]
    return [(list(trace.runs(row)), trace.prompt_tokens[row]) for row in rows]


@pytest.mark.full
@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout (../shared/traces)")
@pytest.mark.parametrize(
    ("offload", "cpu", "either_order"),
    [
        ("threshold", 300, False),
        ("lazy", 4000, True),
        ("eager", 4900, False),
        *(
            pytest.param(*given, marks=pytest.mark.full)
            for given in (("lazy", 300, False), ("lazy", 1700, False), ("eager", 2000, False), ("eager", 7200, True))
        ),
    ],
)
def test_real_sessions_one_request_at_a_time_hit_what_the_capacity_curve_says(
    offload: str, cpu: int, either_order: bool
) -> None:
    """Exactly the tail-first curve. Touched first to last, a prompt without room loses its head and with it all: that
    curve is the lower one, and the same from where on the prompts of all sessions have room beside each other."""
    prompts = weka()
    gpu = 3230  # the longest has 3180
    capacity = max(gpu, cpu) if offload == "eager" else gpu + cpu
    paths = [path_of(row, runs) for row, (runs, _) in enumerate(prompts)]
    got = one_at_a_time(paths, gpu, offload, replace_blocks(CPU, cpu))
    one = Lru(capacity)
    assert got == [one.hits([block for first, n in runs for block in range(first, first + n)]) for runs, _ in prompts]
    assert sum(got) == reuse.hits(prompts, cycle((0,)), [capacity], 64, "tail-first").blocks[0]
    first_to_last = reuse.hits(prompts, cycle((0,)), [capacity], 64).blocks[0]
    assert sum(got) == first_to_last if either_order else sum(got) > first_to_last
    alone = one_at_a_time(paths, gpu, offload)
    assert (sum(got) > sum(alone)) == (capacity > gpu)
