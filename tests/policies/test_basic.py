"""The plain policies against their definitions, ties included."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from states import ToldContext, bound, choice, choose, prompt, states, views

import headway.policies  # noqa: F401
from headway.control.plane import ControlPlane
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.types import ADMIT
from headway.views.cluster import ClusterView


def test_round_robin_takes_the_instances_in_turn():
    instances = views(3)
    policy = bound("round-robin", instances)
    assert [choice(policy, instances, prompt()) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_round_robin_ignores_load_and_cache():
    instances = views(3, inflight=[9, 0, 0])
    policy = bound("round-robin", instances, [0, 6, 6])
    assert [choice(policy, instances, prompt()) for _ in range(3)] == [0, 1, 2]


def test_random_is_uniform_and_repeats_with_its_seed():
    instances = views(4)
    one, two = bound("random", instances), bound("random", instances)
    draws = [choice(one, instances, prompt()) for _ in range(4000)]
    assert draws == [choice(two, instances, prompt()) for _ in range(4000)]
    assert sorted(Counter(draws)) == [0, 1, 2, 3]
    assert all(abs(count - 1000) < 150 for count in Counter(draws).values())  # five standard deviations


@given(states())
def test_least_loaded_is_the_first_of_the_fewest_in_flight(state):
    instances, request, hits = state
    expected = min(instances, key=lambda view: (view.inflight, view.index)).index
    assert choose("least-loaded", instances, request, hits) == expected
    assert choose("load-only", instances, request, hits) == expected


@given(states())
def test_always_busiest_is_the_first_of_the_most_in_flight(state):
    instances, request, hits = state
    expected = min(instances, key=lambda view: (-view.inflight, view.index)).index
    assert choose("always-busiest", instances, request, hits) == expected


@given(states())
def test_least_kv_is_the_first_of_the_lowest_utilisation(state):
    instances, request, hits = state
    expected = min(instances, key=lambda view: (view.kv_utilization, view.index)).index
    assert choose("least-kv", instances, request, hits) == expected


@given(states(block_tokens=16))
def test_prefix_affinity_takes_the_least_loaded_full_match_or_the_least_loaded_of_all(state):
    instances, request, hits = state
    blocks = request.prompt_tokens // 16
    full = [view for view in instances if blocks > 0 and hits[view.index] == blocks]
    expected = min(full or instances, key=lambda view: (view.inflight, view.index)).index
    assert choose("prefix-affinity", instances, request, hits) == expected


def test_prefix_affinity_counts_a_match_that_lacks_one_block_as_none():
    instances = views(3, inflight=[1, 0, 1])
    assert choose("prefix-affinity", instances, prompt(48), [2, 0, 2]) == 1
    assert choose("prefix-affinity", instances, prompt(48), [2, 0, 3]) == 2


def test_prefix_affinity_never_matches_a_prompt_shorter_than_a_block():
    instances = views(3, inflight=[2, 1, 0])
    assert choose("prefix-affinity", instances, prompt(15), [0, 0, 0]) == 2


@pytest.mark.parametrize("seed", range(5))
def test_prefix_affinity_equals_least_loaded_on_prompts_that_share_no_block(seed):
    def decisions(name: str) -> list[int]:
        rng = Random(seed)
        context = Context(views(4), Random, None, 16)  # type: ignore[arg-type]
        always = registry.build("admission", "always", "policies.admission")
        control = ControlPlane(context, always, NoPriority(), registry.build("routing", name, "policies.routing"))
        made, flying = [], []
        for number in range(300):
            made.append(control.arrive(0, prompt(rng.randrange(1, 200), number)).view.index)
            flying.append(number)
            while flying and rng.random() < 0.48:
                control.on_finished(0, flying.pop(rng.randrange(len(flying))), "completed", 1)
        return made

    assert decisions("prefix-affinity") == decisions("least-loaded")


def test_prefix_affinity_tells_what_it_believes_cached():
    instances = views(3, inflight=[1, 0, 1])
    policy = bound("prefix-affinity", instances, [3, 1, 0])
    assert policy.route(prompt(50), ClusterView(instances)).cached_tokens == 48
    assert policy.route(prompt(70), ClusterView(instances)).cached_tokens == 16


def test_power_of_two_never_takes_the_single_most_loaded():
    instances = views(5, inflight=[1, 2, 9, 0, 1])
    policy = bound("power-of-two", instances)
    chosen = Counter(choice(policy, instances, prompt()) for _ in range(2000))
    assert 2 not in chosen
    # The least loaded wins whenever it is drawn: 2 of 5.
    assert abs(chosen[3] - 800) < 110


def test_power_of_two_takes_the_lower_index_on_a_tie():
    instances = views(2)
    policy = bound("power-of-two", instances)
    assert {choice(policy, instances, prompt()) for _ in range(100)} == {0}


def test_power_of_two_draws_every_pair_equally_often():
    instances = views(4, inflight=[3, 2, 1, 0])
    policy = bound("power-of-two", instances)
    chosen = Counter(choice(policy, instances, prompt()) for _ in range(6000))
    # Of six pairs, the best is in three, the next is the best of two, then of one.
    for index, pairs in ((3, 3), (2, 2), (1, 1)):
        assert abs(chosen[index] - 1000 * pairs) < 200


def test_power_of_two_takes_a_single_candidate_as_it_is():
    instances = views(1, inflight=[7])
    assert choose("power-of-two", instances, prompt()) == 0


@pytest.mark.parametrize("name", registry.names("routing"))
def test_every_policy_decides_alike_when_built_and_asked_twice(name):
    def decisions() -> list[int]:
        rng = Random(3)
        instances = views(5)
        policy = registry.build("routing", name, "policies.routing")
        if hasattr(policy, "bind"):
            policy.bind(ToldContext(instances, [0, 1, 0, 2, 0]))
        made = []
        for number in range(60):
            for view in instances:
                view.inflight, view.queued, view.running = rng.randrange(3), rng.randrange(2), rng.randrange(2)
                view.kv_used, view.kv_blocks = rng.randrange(4), 4
            session = f"s{number % 7}" if number % 3 else None
            request = prompt(1100, number, session=session)
            made.append(choice(policy, instances, request, now_ps=number * 10**11))
        return made

    assert registry.find("routing", name, "x").oracle or decisions() == decisions()


def test_always_admits():
    assert registry.build("admission", "always", "policies.admission").admit(prompt(), ClusterView(views(1))) is ADMIT
