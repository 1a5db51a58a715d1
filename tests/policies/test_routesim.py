"""RouteSim's policies against its formulas, ties included."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import bound, choice, choose, prompt, states, views

import headway
from headway.errors import HeadwayError
from headway.policies.prefix_index import PrefixIndex
from headway.types import PS_PER_SECOND, Path
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView


def outstanding(view: InstanceView) -> int:
    return view.queued + view.running + view.routed_since_report


def first_best(scores: list[float]) -> int:
    best, place = -math.inf, -1
    for index, score in enumerate(scores):
        if score > best:
            best, place = score, index
    return place


@given(states(16))
def test_least_outstanding_is_the_first_of_the_lowest_effective_load(state):
    instances, request, hits = state
    expected = first_best([-outstanding(view) for view in instances])
    assert choose("least-outstanding", instances, request, hits) == expected


def test_effective_load_counts_what_was_routed_since_the_report():
    instances = views(3, queued=[0, 1, 0], running=[2, 1, 0], routed_since_report=[0, 0, 3])
    assert choose("least-outstanding", instances, prompt()) == 0


@given(states(16), st.integers(0, 60), st.sampled_from([0.0, 0.3, 0.8, 1.0]), st.sampled_from([0.5, 0.9, None]))
def test_prefix_aware_is_its_formula(state, shared, weight, max_load):
    instances, request, hits = state
    request = prompt(request.prompt_tokens, shared_prefix_tokens=min(shared, request.prompt_tokens))
    wanted = max(1, request.shared_prefix_tokens // 16)
    keys = []
    for view in instances:
        unclamped = outstanding(view) / view.max_queue
        load = min(1.0, unclamped)
        has_prefix = 1.0 if hits[view.index] >= wanted and (max_load is None or load < max_load) else 0.0
        keys.append((-(weight * has_prefix + (1.0 - weight) * (1.0 - load)), unclamped))
    chosen = choose("prefix-aware", instances, request, hits, cache_weight=weight, max_load=max_load)
    assert chosen == keys.index(min(keys))


def test_prefix_aware_tells_full_queues_apart_by_how_far_they_are_over():
    instances = views(3, queued=[900, 300, 300], max_queue=[256, 256, 256])
    assert choose("prefix-aware", instances, prompt(100), [0, 0, 0]) == 1
    assert choose("prefix-aware", instances, prompt(100), [9, 0, 0]) == 1  # above the limit a prefix counts nothing
    instances[0].max_queue = 1024
    assert choose("prefix-aware", instances, prompt(100), [0, 0, 0]) == 0  # 900 of 1024 is not full


def test_the_limit_of_prefix_aware_and_prefix_overlap_can_be_turned_off():
    instances = views(3, queued=[300, 280, 0], max_queue=[256, 256, 256])
    for name in ("prefix-aware", "prefix-overlap"):
        assert choose(name, instances, prompt(64), [4, 4, 0]) == 2
        assert choose(name, instances, prompt(64), [4, 4, 0], max_load=None) == 1


def test_overloaded_queues_grow_alike_under_prefix_aware():
    """Four instances get seven times the requests that they can serve, far beyond their queue limit."""
    scenario = {
        "seed": 1,
        "workload": {"requests": 400, "rate": "400/s", "prompt_tokens": 500, "output_tokens": 100}
        | {"prefix": {"groups": 8, "tokens": 256}},
        "cluster": {"instances": 4, "max_queue": 24, "max_batch_size": 4, "latency": {"model": "fixed"}},
    }
    counts = Counter(headway.simulate(scenario, routing="prefix-aware").requests["instance"])
    assert max(counts.values()) <= 1.5 * 100, counts


def test_prefix_aware_wants_the_whole_declared_prefix_and_else_the_first_block():
    instances = views(3)
    assert choose("prefix-aware", instances, prompt(100, shared_prefix_tokens=64), [0, 3, 4]) == 2
    assert choose("prefix-aware", instances, prompt(100), [0, 1, 4]) == 1
    assert choose("prefix-aware", instances, prompt(100, shared_prefix_tokens=10), [0, 1, 4]) == 1


def test_prefix_aware_prefers_a_hit_to_any_smaller_load_but_not_at_nine_tenths_of_the_queue():
    instances = views(2, queued=[8, 0], max_queue=[10, 10])
    assert choose("prefix-aware", instances, prompt(100), [1, 0]) == 0
    instances[0].queued = 9
    assert choose("prefix-aware", instances, prompt(100), [1, 0]) == 1


@given(states(16), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.sampled_from(["set", "leading"]))
def test_prefix_overlap_is_its_formula(state, weight, match):
    instances, request, hits = state
    blocks = request.prompt_tokens // 16
    scores = []
    for view in instances:
        load = outstanding(view) / view.max_queue
        if blocks == 0:
            scores.append(-float(outstanding(view)))
        else:
            cache = hits[view.index] / blocks if load <= 0.9 else 0.0
            scores.append(weight * cache + (1.0 - weight) * (1.0 - load))
    chosen = choose("prefix-overlap", instances, request, hits, cache_weight=weight, match=match)
    assert chosen == first_best(scores)


def test_prefix_overlap_grades_the_match_and_drops_it_above_nine_tenths_of_the_queue():
    instances = views(3, queued=[9, 0, 0], max_queue=[10, 10, 10])
    # 0.7 x 1 + 0.3 x 0.1 = 0.73; 0.7 x 0.5 + 0.3 = 0.65; 0.3
    assert choose("prefix-overlap", instances, prompt(64), [4, 2, 0]) == 0
    instances[0].queued = 10
    assert choose("prefix-overlap", instances, prompt(64), [4, 2, 0]) == 1


def test_prefix_overlap_without_a_full_block_takes_the_least_outstanding():
    instances = views(3, running=[2, 1, 1])
    assert choose("prefix-overlap", instances, prompt(15)) == 1


def test_prefix_overlap_refuses_another_way_of_matching():
    with pytest.raises(HeadwayError, match=r"policies\.routing\.match: .*'suffix'"):
        bound("prefix-overlap", views(1), match="suffix")


@pytest.mark.parametrize("seed", range(10))
def test_what_the_index_holds_of_a_prompt_is_always_its_beginning(seed):
    """So the intersection of two sets of blocks is the longest common beginning, and `match` makes no difference."""
    rng = Random(seed)
    index = PrefixIndex(1, 12, 16)
    held: list[tuple[int, ...]] = []  # block names, least recently used first
    tree = [tuple(rng.randrange(3) for _ in range(rng.randrange(1, 7))) for _ in range(30)]
    names: dict[tuple[int, ...], int] = {}
    for _ in range(200):
        blocks = [branch[: depth + 1] for branch in [rng.choice(tree)] for depth in range(len(branch))]
        keys = tuple(names.setdefault(block, len(names)) for block in blocks)
        path = Path(keys, tuple(16 * (n + 1) for n in range(len(keys))))
        assert index.matches(path) == [len([block for block in blocks if block in held])]
        index.touch(0, path)
        for block in reversed(blocks):
            if block in held:
                held.remove(block)
            held.append(block)
        del held[:-12]


def test_session_affinity_keeps_a_conversation_and_else_takes_the_least_outstanding():
    instances = views(3, running=[1, 0, 0])
    policy = bound("session-affinity", instances)
    assert choice(policy, instances, prompt(session="a")) == 1
    instances[1].running = 50
    assert choice(policy, instances, prompt(session="a")) == 1
    assert choice(policy, instances, prompt(session="b")) == 2
    assert choice(policy, instances, prompt()) == 2
    instances[2].queued = 2
    assert choice(policy, instances, prompt()) == 0


def test_session_affinity_forgets_the_conversation_not_seen_for_longest():
    instances = views(2, running=[0, 1])
    policy = bound("session-affinity", instances, max_sessions=1)
    choice(policy, instances, prompt(session="a"))
    choice(policy, instances, prompt(session="b"))
    instances[0].running = 2
    assert choice(policy, instances, prompt(session="b")) == 0
    assert choice(policy, instances, prompt(session="a")) == 1


@pytest.mark.parametrize("seed", range(10))
def test_cost_escalation_is_its_formula_over_time(seed):
    rng = Random(seed)
    instances = views(4, kv_blocks=[10] * 4)
    policy = bound("cost-escalation", instances)
    costs, now = [0.0] * 4, 0
    for number in range(200):
        elapsed = rng.choice([0, 0, 10**9, 5 * 10**11, 3 * PS_PER_SECOND])
        now += elapsed
        for view in instances:
            view.queued, view.kv_used = rng.randrange(6), rng.randrange(11)
        costs = [cost * math.exp(-0.1 * elapsed / PS_PER_SECOND) for cost in costs]
        best = min(costs)
        expected = next(index for index, cost in enumerate(costs) if cost - best < 1e-6)
        chosen = choice(policy, instances, prompt(100, number), now)
        assert chosen == expected
        view = instances[chosen]
        costs[chosen] += 1 + 0.5 * view.queued + 2 * view.kv_used / 10
        assert policy.costs == pytest.approx([cost * 1e9 for cost in costs], abs=1000)


def test_cost_escalation_by_hand():
    instances = views(2, queued=[2, 0], kv_used=[1, 0], kv_blocks=[4, 4])
    policy = bound("cost-escalation", instances)
    assert choice(policy, instances, prompt()) == 0  # equal: the first; charged 1 + 0.5 x 2 + 2 x 0.25 = 2.5
    assert policy.costs == [2_500_000_000, 0]
    assert choice(policy, instances, prompt()) == 1
    assert choice(policy, instances, prompt()) == 1  # 1 < 2.5
    assert choice(policy, instances, prompt()) == 1  # 2 < 2.5
    assert choice(policy, instances, prompt()) == 0  # 3 > 2.5
    choice(policy, instances, prompt(), now_ps=10 * PS_PER_SECOND)
    assert policy.costs[0] == round(5_000_000_000 / math.e)


def test_costs_of_an_idle_cluster_fade_to_nothing():
    instances = views(2)
    policy = bound("cost-escalation", instances)
    choice(policy, instances, prompt())
    assert choice(policy, instances, prompt(), now_ps=1000 * PS_PER_SECOND) == 0


def test_the_cache_aware_ones_tell_the_hit_they_believe_in():
    instances = views(2)
    for name in ("prefix-aware", "prefix-overlap"):
        assert bound(name, instances, [0, 3]).route(prompt(60), ClusterView(instances)).cached_tokens == 48
