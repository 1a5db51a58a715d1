"""The B3 policies against a transcription of their published pseudocode, and over time against the control plane."""

from __future__ import annotations

import math
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import ToldContext, bound, choice, choose, prompt, states, views

from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

BLOCK = 512


def pick_lmetric(instances, hits, input_length, plus=0):
    best, best_score = None, math.inf
    for inst in instances:
        cache_hit = hits[inst.index] * BLOCK
        new_prefill = max(0, input_length - cache_hit)
        p_tokens = inst.pending_prefill_tokens + new_prefill
        bs = inst.inflight + plus
        score = p_tokens * bs
        if score < best_score:
            best, best_score = inst, score
    return best.index


def pick_load_only(instances):
    return min(instances, key=lambda inst: inst.inflight).index


def pick_sticky(instances, session_id, affinity):
    if session_id is not None and session_id in affinity:
        return affinity[session_id]
    chosen = pick_load_only(instances)
    if session_id is not None:
        affinity[session_id] = chosen
    return chosen


class PickUnified:
    def __init__(self, overload_factor=2.0, min_hit_ratio=0.5):
        self.overload_factor = overload_factor
        self.min_hit_ratio = min_hit_ratio
        self.affinity = {}
        self.rr_counter = 0

    def __call__(self, instances, hits, input_length, session_id):
        avg_reqs = max(mean(inst.inflight for inst in instances), 1.0)
        if session_id is not None and session_id in self.affinity:
            a = instances[self.affinity[session_id]]
            a_hit_ratio = hits[a.index] * BLOCK / max(input_length, 1)
            if a_hit_ratio > self.min_hit_ratio and a.inflight <= avg_reqs * self.overload_factor:
                return a.index
        keys = []
        for idx, inst in enumerate(instances):
            cache_hit = hits[idx] * BLOCK
            new_prefill = max(0, input_length - cache_hit)
            p_tokens = inst.pending_prefill_tokens + new_prefill
            bs = inst.inflight
            score = p_tokens * bs
            keys.append((score, new_prefill, bs, idx))
        best_3tuple = min(k[:3] for k in keys)
        tied = [k for k in keys if k[:3] == best_3tuple]
        if len(tied) > 1:
            winner = tied[self.rr_counter % len(tied)]
            self.rr_counter += 1
        else:
            winner = tied[0]
        if session_id is not None:
            self.affinity[session_id] = winner[3]
        return winner[3]


class PickLeastPrefillWork:
    def __init__(self):
        self.counter = 0

    def __call__(self, instances, hits, input_length):
        keys = [
            (inst.pending_prefill_tokens + max(0, input_length - hits[inst.index] * BLOCK), inst.inflight)
            for inst in instances
        ]
        tied = [idx for idx, key in enumerate(keys) if key == min(keys)]
        if len(tied) == 1:
            return tied[0]
        self.counter += 1
        return tied[(self.counter - 1) % len(tied)]


@given(states())
def test_lmetric_is_its_pseudocode(state):
    instances, request, hits = state
    assert choose("lmetric", instances, request, hits) == pick_lmetric(instances, hits, request.prompt_tokens)


@given(states())
def test_lmetric_plus_one_multiplies_by_the_batch_with_this_request(state):
    instances, request, hits = state
    expected = pick_lmetric(instances, hits, request.prompt_tokens, plus=1)
    assert choose("lmetric-plus-one", instances, request, hits) == expected


def test_lmetric_takes_the_smallest_product():
    # (1000 + 2048) * 2 = 6096, (0 + 2048 - 1024) * 5 = 5120, (500 + 2048) * 3 = 7644
    instances = views(3, inflight=[2, 5, 3], pending_prefill_tokens=[1000, 0, 500])
    assert choose("lmetric", instances, prompt(2048), [0, 2, 0]) == 1


def test_lmetric_takes_the_first_idle_instance_whatever_its_cache_and_the_published_form_the_warmest():
    instances = views(3, inflight=[1, 0, 0])
    assert choose("lmetric", instances, prompt(2048), [3, 0, 3]) == 1
    assert choose("lmetric-plus-one", instances, prompt(2048), [0, 0, 3]) == 2


def test_lmetric_tells_the_hit_it_believes_in():
    instances = views(2, inflight=[2, 1])
    route = bound("lmetric", instances, [0, 3]).route(prompt(2000), ClusterView(instances))
    assert (route.target, route.cached_tokens) == ("i1", 3 * BLOCK)


def test_load_only_lands_on_the_first_instance_of_an_idle_cluster():
    assert choose("load-only", views(4), prompt(2048), [0, 0, 4, 0]) == 0


def random_walk(instances: list[InstanceView], hits: list[int], rng: Random, number: int) -> Request:
    """Changes the state in place and gives the next request: few values, so that ties and gates' edges are common."""
    for view in instances:
        view.inflight = rng.randrange(5)
        view.pending_prefill_tokens = rng.choice([0, 0, BLOCK, 1000])
        hits[view.index] = rng.randrange(4)
    tokens = rng.choice([3 * BLOCK, 4 * BLOCK, 6 * BLOCK, 4 * BLOCK + 100])
    return prompt(tokens, number, session=rng.choice([None, "a", "b", "c"]))


@pytest.mark.parametrize("seed", range(20))
def test_sticky_is_its_pseudocode_over_time(seed):
    rng = Random(seed)
    instances = views(rng.randrange(1, 6))
    hits = [0] * len(instances)
    policy, affinity = bound("sticky", instances, hits), {}
    for number in range(100):
        request = random_walk(instances, hits, rng, number)
        assert choice(policy, instances, request) == pick_sticky(instances, request.session, affinity)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("gates", [{}, {"overload_factor": 1.2, "min_hit_ratio": 0.25}])
def test_unified_is_its_pseudocode_over_time(seed, gates):
    rng = Random(seed)
    instances = views(rng.randrange(1, 6))
    hits = [0] * len(instances)
    policy, expected = bound("unified", instances, hits, **gates), PickUnified(**gates)
    for number in range(100):
        request = random_walk(instances, hits, rng, number)
        wanted = expected(instances, hits, request.prompt_tokens, request.session)
        assert choice(policy, instances, request) == wanted
    assert policy.metrics()["unified_ties"] == expected.rr_counter


@pytest.mark.parametrize("seed", range(20))
def test_least_prefill_work_is_its_definition_over_time(seed):
    rng = Random(seed)
    instances = views(rng.randrange(1, 6))
    hits = [0] * len(instances)
    policy, expected = bound("least-prefill-work", instances, hits), PickLeastPrefillWork()
    for number in range(100):
        request = random_walk(instances, hits, rng, number)
        assert choice(policy, instances, request) == expected(instances, hits, request.prompt_tokens)


def test_sticky_never_breaks_a_binding_under_any_load():
    instances = views(3, inflight=[1, 0, 1])
    policy = bound("sticky", instances)
    assert choice(policy, instances, prompt(session="a")) == 1
    instances[1].inflight = 1000
    assert choice(policy, instances, prompt(session="a")) == 1
    assert choice(policy, instances, prompt(session="b")) == 0


def test_sticky_binds_nothing_without_a_session():
    instances = views(2, inflight=[0, 1])
    policy = bound("sticky", instances)
    assert choice(policy, instances, prompt()) == 0
    instances[0].inflight = 2
    assert choice(policy, instances, prompt()) == 1


def test_sticky_binds_anew_when_its_instance_can_no_longer_serve():
    instances = views(3, inflight=[1, 0, 1])
    policy = bound("sticky", instances)
    assert choice(policy, instances, prompt(session="a")) == 1
    without = [instances[0], instances[2]]
    instances[0].inflight = 5
    assert choice(policy, without, prompt(session="a")) == 2
    assert choice(policy, instances, prompt(session="a")) == 2


def test_a_binding_is_found_when_earlier_instances_are_gone():
    instances = views(3, inflight=[1, 1, 0])
    policy = bound("sticky", instances)
    assert choice(policy, instances, prompt(session="a")) == 2
    assert choice(policy, instances[1:], prompt(session="a")) == 2


def test_the_session_not_seen_for_longest_is_forgotten_beyond_the_limit():
    instances = views(2, inflight=[0, 1])
    policy = bound("sticky", instances, max_sessions=2)
    for session in ("a", "b", "a", "c"):
        choice(policy, instances, prompt(session=session))
    instances[0].inflight = 2
    assert [choice(policy, instances, prompt(session=session)) for session in ("a", "c", "b")] == [0, 0, 1]


def test_unified_stays_only_above_the_hit_ratio_strictly():
    hits = [2, 0]
    instances = views(2, inflight=[0, 1])
    policy = bound("unified", instances, hits)
    assert choice(policy, instances, prompt(4 * BLOCK, session="a")) == 0
    instances[0].inflight, instances[1].inflight = 1, 0
    # Exactly half of the prompt is cached: not more than half, so LMetric decides, and the session moves.
    assert choice(policy, instances, prompt(4 * BLOCK, session="a")) == 1
    instances[0].inflight, instances[1].inflight = 0, 1
    hits[:] = [0, 3]
    assert choice(policy, instances, prompt(4 * BLOCK, session="a")) == 1


def test_unified_leaves_an_instance_above_twice_the_mean_and_stays_at_exactly_twice():
    hits = [3, 0, 0, 0]
    instances = views(4, inflight=[0, 1, 1, 1])
    policy = bound("unified", instances, hits)
    request = prompt(4 * BLOCK, session="a")
    assert choice(policy, instances, request) == 0
    for inflight, expected in (([4, 2, 1, 1], 0), ([5, 2, 1, 1], 2)):
        for view, value in zip(instances, inflight, strict=True):
            view.inflight = value
            view.pending_prefill_tokens = 3000 if view.index == 3 else 0
        assert choice(policy, instances, request) == expected


def test_unified_counts_a_quiet_cluster_as_one_request_an_instance():
    instances = views(4, inflight=[0, 1, 1, 1])
    policy = bound("unified", instances, [3, 0, 0, 0])
    request = prompt(4 * BLOCK, session="a")
    assert choice(policy, instances, request) == 0
    for view in instances:
        view.inflight = 2 if view.index == 0 else 0
    assert choice(policy, instances, request) == 0  # mean 0.5 counts as 1, and 2 <= 2 x 1
    instances[0].inflight = 3
    assert choice(policy, instances, request) == 1


def test_unified_rotates_among_equals_and_its_counter_advances_on_ties_only():
    instances = views(3)
    policy = bound("unified", instances)
    assert [choice(policy, instances, prompt(1000)) for _ in range(4)] == [0, 1, 2, 0]
    instances[2].inflight = instances[0].inflight = 1
    assert choice(policy, instances, prompt(1000)) == 1  # no tie, the counter stays at 4
    instances[2].inflight = instances[0].inflight = 0
    assert choice(policy, instances, prompt(1000)) == 1


def test_unified_prefers_the_warmer_of_two_idle_instances():
    assert choose("unified", views(3), prompt(4 * BLOCK), [0, 2, 1]) == 1


@given(st.integers(0, 40), st.integers(0, 2**40), st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]))
def test_the_hit_gate_is_exact_for_ratios_as_people_write_them(blocks, extra, ratio):
    instances = views(1)
    policy = bound("unified", instances, min_hit_ratio=ratio)
    hit, tokens = blocks * BLOCK, blocks * BLOCK + extra % 4097
    assert policy.warm(hit, tokens) == (10 * hit > round(ratio * 10) * max(tokens, 1))


def plane(name: str, count: int, hits: list[int] | None = None) -> tuple[ControlPlane, list[InstanceView]]:
    instances = views(count)
    always = registry.build("admission", "always", "policies.admission")
    return ControlPlane(
        ToldContext(instances, hits), always, NoPriority(), registry.build("routing", name, "policies.routing")
    ), instances


def arrive(control: ControlPlane, request: Request) -> int:
    flight = control.arrive(0, request)
    assert isinstance(flight, Flight)
    return flight.view.index


def test_least_prefill_work_follows_the_prefill_that_is_left():
    hits = [0, 0, 0]
    control, instances = plane("least-prefill-work", 3, hits)
    assert arrive(control, prompt(1000, 0)) == 0  # all equal: the first turn
    assert arrive(control, prompt(100, 1)) == 2  # 1 and 2 equal: the second turn of the rotation is the second of them
    assert arrive(control, prompt(100, 2)) == 1  # no tie
    assert [view.pending_prefill_tokens for view in instances] == [1000, 100, 100]
    control.on_first_token(1, 0)
    assert instances[0].pending_prefill_tokens == 0
    assert arrive(control, prompt(700, 3)) == 0  # decoding is no prefill work
    hits[:] = [0, 1, 0]
    assert arrive(control, prompt(600, 4)) == 1  # 100 + 600 - 512 = 188
    assert instances[1].pending_prefill_tokens == 188
    for number in range(5):
        control.on_finished(2, number, "completed", 5)
    assert [view.pending_prefill_tokens for view in instances] == [0, 0, 0]
    assert [view.inflight for view in instances] == [0, 0, 0]


def test_sticky_follows_a_session_from_turn_to_turn():
    control, _ = plane("sticky", 3)
    assert [arrive(control, prompt(100, n, session=s)) for n, s in enumerate("aabcac")] == [0, 0, 1, 2, 0, 2]


def test_unified_stays_with_a_warm_session_and_moves_it_when_its_instance_is_overloaded():
    instances = views(4)
    context = Context(instances, Random, None, 16)  # type: ignore[arg-type]
    always = registry.build("admission", "always", "policies.admission")
    control = ControlPlane(context, always, NoPriority(), registry.build("routing", "unified", "policies.routing"))
    history = Path((5,), (4 * BLOCK,))

    def turn(number: int, session: str | None = "a") -> int:
        return arrive(control, Request(number, 0, 4 * BLOCK, history, session=session))

    assert turn(0) == 0  # a tie: the first turn of the rotation; the router now believes the blocks there
    assert turn(1) == 0  # warm, and 1 request <= 2 x max(mean, 1)
    assert turn(2) == 0  # 2 <= 2 x 1
    assert turn(3) == 2  # 3 > 2 x 1: three idle ones are equal, the second turn of the rotation
    assert turn(4) == 2  # bound anew; 1 <= 2 x 1, and warm since the last turn
    assert turn(5, session=None) == 1  # no session: LMetric, of the two idle and cold ones the first (counter 2 of 2)
    assert turn(6) == 2
    assert control.metrics() == {"unified_stayed": 4, "unified_fell_back": 1, "unified_ties": 3}
