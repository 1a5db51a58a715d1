"""The live router's score against its formula, and its band."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import bound, choice, choose, prompt, states, views

from headway import hashing
from headway.errors import HeadwayError
from headway.policies import kv_aware
from headway.types import Path, Request
from headway.views.cluster import ClusterView

WEIGHTS = (0.55, 0.25, 0.10, 0.10)


def scores(instances, request, hits, weights=WEIGHTS, prefix_tokens=64, max_concurrent=None):
    blocks = request.prompt_tokens // 16
    if prefix_tokens is not None:
        blocks = min(blocks, prefix_tokens // 16)
    most = max(view.watts for view in instances)
    made = []
    for view in instances:
        overlap = min(hits[view.index], blocks) / blocks if blocks else 0.0
        util = min(1.0, max(view.inflight / (max_concurrent or view.max_batch_size), view.busy))
        watts = view.watts / most if most else 0.0
        terms = (overlap, 1.0 - util, 1.0 - watts, view.capacity)
        made.append(sum(weight * term for weight, term in zip(weights, terms, strict=True)))
    return made


@given(
    states(16),
    st.sampled_from([None, 16, 32, 64]),
    st.sampled_from([None, 2, 100]),
    st.sampled_from([WEIGHTS, (0.0, 1.0, 0.0, 0.0), (1.0, 0.5, 0.25, 0.0)]),
    st.sampled_from([0, 8]),
)
def test_kv_aware_is_the_highest_hash_within_epsilon_of_the_best(state, prefix_tokens, max_concurrent, weights, few):
    """Also where those who have nothing of the prompt are not scored unless they can win."""
    instances, request, hits = state
    made = scores(instances, request, hits, weights, prefix_tokens, max_concurrent)
    band = [view for view, score in zip(instances, made, strict=True) if score >= max(made) - 0.01 - 1e-12]
    expected = max(band, key=lambda view: (hashing.stable(view.id, request.path.keys[0]), -view.index))
    kv, load, power, capacity = weights
    given_ = {"kv": kv, "load": load, "power": power, "capacity": capacity}
    limits = {"prefix_tokens": prefix_tokens, "max_concurrent": max_concurrent}
    with patch.object(kv_aware, "FEW", few):
        assert choose("kv-aware", instances, request, hits, **given_, **limits) == expected.index


def test_of_many_instances_only_those_who_can_win_are_scored():
    instances = views(12)
    policy = bound("kv-aware", instances, [0, 4, 4] + [0] * 9)
    asked = []
    plain = policy.scores
    policy.scores = lambda among, *given: asked.append(len(among)) or plain(among, *given)
    assert choice(policy, instances, prompt(64)) in (1, 2) and asked == [2]
    instances[1].inflight = instances[2].inflight = 256
    asked.clear()
    assert choice(policy, instances, prompt(64)) in (1, 2) and asked == [2]  # 0.75 is more than 0.45
    few = bound("kv-aware", instances, [0, 1, 1] + [0] * 9)
    assert choice(few, instances, prompt(64)) not in (1, 2)  # 0.3375 is less


def test_kv_aware_by_hand():
    instances = views(3, inflight=[0, 64, 0], busy=[0.0, 0.0, 0.9], watts=[350.0, 700.0, 0.0], capacity=[0.5, 1.0, 1.0])
    policy = bound("kv-aware", instances)
    assert policy.scores(instances, [0, 3, 2], 4, 700.0) == pytest.approx(
        [
            0.25 + 0.10 * 0.5 + 0.10 * 0.5,
            0.55 * 0.75 + 0.25 * 0.75 + 0.10,
            0.55 * 0.5 + 0.25 * 0.1 + 0.10 + 0.10,
        ]
    )
    assert choose("kv-aware", instances, prompt(64), [0, 3, 2]) == 1


def test_only_the_first_64_tokens_count_unless_the_whole_prompt_is_asked_for():
    instances = views(2, inflight=[20, 0])
    assert choose("kv-aware", instances, prompt(1600), [100, 4]) == 1
    assert choose("kv-aware", instances, prompt(1600), [100, 4], prefix_tokens=None) == 0


def test_utilisation_is_the_larger_of_in_flight_share_and_busy_share_and_at_most_one():
    instances = views(2, inflight=[300, 256], busy=[0.0, 0.0])
    policy = bound("kv-aware", instances)
    first, second = policy.scores(instances, [0, 0], 0, 1.0)
    assert first == second == pytest.approx(0.10 + 0.10)
    instances[1].inflight, instances[1].busy = 0, 1.0
    assert policy.scores(instances, [0, 0], 0, 1.0)[1] == first


def test_a_difference_of_exactly_epsilon_is_inside_the_band():
    # 4 of 100 requests make 0.25 x 0.04 = 0.01.
    instances = views(2, inflight=[0, 4])
    policy = bound("kv-aware", instances, max_concurrent=100)
    assert {choice(policy, instances, prompt(100, number)) for number in range(40)} == {0, 1}
    instances[1].inflight = 5
    assert {choice(policy, instances, prompt(100, number)) for number in range(40)} == {0}


def test_inside_the_band_equal_prefixes_meet_again_and_different_ones_spread():
    instances = views(4)
    policy = bound("kv-aware", instances)

    def prefixed(number: int, group: int) -> Request:
        return Request(number, 0, 200, Path((hashing.key(hashing.GROUP, group), 4 * number + 1), (80, 200)))

    assert len({choice(policy, instances, prefixed(number, 3)) for number in range(20)}) == 1
    spread = Counter(choice(policy, instances, prefixed(group, group)) for group in range(400))
    assert all(70 < spread[index] < 130 for index in range(4))


def test_the_hash_goes_by_the_last_block_of_the_first_64_tokens():
    instances = views(8)
    policy = bound("kv-aware", instances)
    # The run that holds tokens 48 to 63 names the prefix; what comes after does not matter.
    route = lambda keys, ends: choice(policy, instances, Request(0, 0, ends[-1], Path(keys, ends)))  # noqa: E731
    expected = max(instances, key=lambda view: hashing.stable(view.id, 77)).index
    assert route((5, 77, 9), (40, 64, 200)) == expected
    assert route((5, 77, 13), (40, 70, 300)) == expected
    assert route((5, 77), (3, 15)) == max(instances, key=lambda view: hashing.stable(view.id, 5)).index


def test_a_prompt_of_no_tokens_still_goes_somewhere():
    instances = views(3)
    assert choose("kv-aware", instances, Request(0, 0, 0, Path((), ()))) in (0, 1, 2)


def test_it_tells_the_hit_it_believes_in_beyond_the_prefix_it_scores():
    instances = views(2)
    assert bound("kv-aware", instances, [0, 50]).route(prompt(1000), ClusterView(instances)).cached_tokens == 800


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"kv": 0, "load": 0, "power": 0, "capacity": 0}, "must be positive"),
        ({"kv": -0.1}, r"policies\.routing\.kv: must lie between 0 and"),
        ({"load": float("nan")}, r"policies\.routing\.load: must lie between"),
        ({"epsilon": 2}, r"epsilon: must lie between 0 and 1"),
        ({"prefix_tokens": 8}, "less than one block"),
        ({"prefix_tokens": "all"}, r"policies\.routing\.prefix_tokens: "),
        ({"max_concurrent": 0}, r"max_concurrent: must lie between 1 and"),
    ],
)
def test_wrong_parameters_are_told(parameters, message):
    with pytest.raises(HeadwayError, match=message):
        bound("kv-aware", views(1), **parameters)
