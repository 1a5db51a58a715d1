"""Each scorer by its formula, at its edges, and over random states: always one value in [0, 1] a candidate."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway.policies.weighted
from drawing import draws
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.registry import REPORTED
from headway.types import Path, Request
from headway.views.cluster import ClusterView
from headway.views.events import Finished, Routed
from headway.views.instance import InstanceView

EXACT = (
    *("inflight", "inflight_tokens", "pending_prefill_tokens", "prefix_index"),
    *("expected_output_tokens", "expected_tokens"),
)


class Estimate:
    """A millisecond a prefill token and ten a decoding sequence."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return prefill_tokens * 0.001 + decodes * 0.01


class Bench:
    """One scorer bound to a small cluster."""

    def __init__(self, name: str, instances: int = 4, truth: Any = None, **parameters: Any) -> None:
        self.views = [InstanceView(index, f"i{index}", kv_blocks=100) for index in range(instances)]
        self.context = Context(self.views, lambda name: Random(1), Estimate(), 16, truth)
        self.cluster = ClusterView(self.views)
        self.cluster._estimate = headway.types.Estimate(100)
        self.scorer = registry.build("scorer", {"name": name, **parameters}, "scorer")
        if hasattr(self.scorer, "bind"):
            self.scorer.bind(self.context)

    def score(self, request: Request, among: list[int] | None = None) -> list[float]:
        candidates = self.views if among is None else [self.views[index] for index in among]
        return self.scorer.score(request, candidates, self.cluster)  # type: ignore[no-any-return]

    def route(self, request: Request, index: int) -> None:
        """What the control plane does when a request goes to an instance."""
        for belief in self.context.indexes:
            belief.touch(index, request.path)
        if hasattr(self.scorer, "observe"):
            self.scorer.observe(Routed(0, request, self.views[index]))


def prompt(number: int, *runs: tuple[int, int], session: str | None = None) -> Request:
    path = Path(tuple(key for key, _ in runs), tuple(end for _, end in runs))
    return Request(number, 0, path.tokens, path, session=session)


def test_prefix_affinity_is_the_share_of_full_blocks_believed_cached() -> None:
    bench = Bench("prefix-affinity")
    bench.route(prompt(0, (1, 64), (2, 160)), 1)
    assert bench.score(prompt(1, (1, 64), (3, 135))) == [0.0, 4 / 8, 0.0, 0.0]
    assert bench.score(prompt(2, (1, 64), (2, 160)), among=[1, 3]) == [1.0, 0.0]
    assert bench.scorer.believed_tokens(bench.views[1]) == 160


def test_prefix_affinity_is_zero_before_any_routing_and_for_prompts_shorter_than_a_block() -> None:
    bench = Bench("prefix-affinity")
    assert bench.score(prompt(0, (1, 64))) == [0.0] * 4
    bench.route(prompt(0, (1, 15)), 0)
    assert bench.score(prompt(1, (1, 15))) == [0.0] * 4


def test_prefix_affinity_forgets_beyond_its_lru_capacity() -> None:
    bench = Bench("prefix-affinity", lru_blocks=4, block_tokens=16)
    bench.route(prompt(0, (1, 64)), 0)
    bench.route(prompt(1, (2, 32)), 0)
    assert bench.score(prompt(2, (1, 64)))[0] == 2 / 4
    assert bench.scorer.metrics() == {"prefix_index_blocks": 4.0, "prefix_index_capacity": 16.0}


def test_queue_depth_is_the_min_max_of_effective_load() -> None:
    bench = Bench("queue-depth")
    for view, (queued, running, since) in zip(bench.views, [(3, 4, 1), (0, 4, 0), (0, 0, 0), (1, 1, 0)], strict=True):
        view.queued, view.running, view.routed_since_report = queued, running, since
    assert bench.score(prompt(0, (1, 64))) == [0.0, 0.5, 1.0, 0.75]
    assert bench.score(prompt(0, (1, 64)), among=[0, 1]) == [0.0, 1.0]


def test_queue_depth_is_one_where_all_loads_are_equal() -> None:
    bench = Bench("queue-depth")
    assert bench.score(prompt(0, (1, 64))) == [1.0] * 4
    for view in bench.views:
        view.queued = 5
    assert bench.score(prompt(0, (1, 64))) == [1.0] * 4


def test_kv_utilization_is_the_share_of_blocks_not_in_use() -> None:
    bench = Bench("kv-utilization", instances=3)
    bench.views[1].kv_used, bench.views[2].kv_used = 25, 100
    assert bench.score(prompt(0, (1, 64))) == [1.0, 0.75, 0.0]


def test_load_balance_is_the_inverse_of_one_plus_the_requests_in_flight() -> None:
    bench = Bench("load-balance", instances=3)
    bench.views[1].inflight, bench.views[2].inflight = 1, 3
    assert bench.score(prompt(0, (1, 64))) == [1.0, 0.5, 0.25]


def test_active_requests_measures_from_zero() -> None:
    bench = Bench("active-requests", instances=3)
    assert bench.score(prompt(0, (1, 64))) == [1.0] * 3
    bench.views[1].inflight, bench.views[2].inflight = 1, 4
    assert bench.score(prompt(0, (1, 64))) == [1.0, 0.75, 0.0]
    assert bench.score(prompt(0, (1, 64)), among=[2]) == [0.0]


def test_oracle_prefix_is_the_share_of_tokens_truly_cached() -> None:
    bench = Bench("oracle-prefix", instances=3, truth=lambda request: [0, 48, 16])
    assert bench.score(prompt(0, (1, 64))) == [0.0, 0.75, 0.25]
    assert bench.score(prompt(0, (1, 64)), among=[2]) == [0.25]
    assert bench.scorer.believed_tokens(bench.views[1]) == 48
    assert bench.scorer.entry.oracle


def test_oracle_prefix_cannot_run_without_the_truth() -> None:
    with pytest.raises(HeadwayError, match="cannot run live"):
        Bench("oracle-prefix").score(prompt(0, (1, 64)))


def test_no_hit_lru_ranks_never_used_instances_first_and_then_the_longest_unused() -> None:
    bench = Bench("no-hit-lru")
    third = 1 / 3
    assert bench.score(prompt(0, (1, 64))) == [1.0, 1 - third, 1 - 2 * third, 0.0]
    bench.route(prompt(0, (1, 64)), 1)
    assert bench.score(prompt(1, (2, 64))) == [1.0, 0.0, 1 - third, 1 - 2 * third]
    bench.route(prompt(1, (2, 64)), 0)
    assert bench.score(prompt(2, (3, 64))) == [0.0, 1 - 2 * third, 1.0, 1 - third]
    assert bench.score(prompt(2, (3, 64)), among=[0, 1]) == [0.0, 1.0]


def test_no_hit_lru_is_neutral_for_warm_prompts_and_does_not_count_them() -> None:
    bench = Bench("no-hit-lru", instances=2)
    bench.score(prompt(0, (1, 64)))
    bench.route(prompt(0, (1, 64)), 0)
    assert bench.score(prompt(1, (1, 64), (2, 96))) == [0.5, 0.5]
    bench.route(prompt(1, (1, 64), (2, 96)), 1)
    assert bench.score(prompt(2, (3, 64))) == [0.0, 1.0]


def test_no_hit_lru_gives_a_single_candidate_one() -> None:
    assert Bench("no-hit-lru", instances=1).score(prompt(0, (1, 64))) == [1.0]


def test_session_affinity_follows_the_session_to_where_it_went_last() -> None:
    bench = Bench("session-affinity", instances=3)
    assert bench.score(prompt(0, (1, 64), session="a")) == [0.0] * 3
    bench.route(prompt(0, (1, 64), session="a"), 2)
    assert bench.score(prompt(1, (1, 64), session="a")) == [0.0, 0.0, 1.0]
    bench.route(prompt(1, (1, 64), session="a"), 0)
    assert bench.score(prompt(2, (1, 64), session="a")) == [1.0, 0.0, 0.0]
    assert bench.score(prompt(2, (1, 64), session="a"), among=[1, 2]) == [0.0, 0.0]
    assert bench.score(prompt(3, (1, 64))) == [0.0] * 3


def test_session_affinity_remembers_a_bounded_number_of_sessions() -> None:
    bench = Bench("session-affinity", instances=2, max_sessions=2)
    for number, session in enumerate(["a", "b", "a", "c"]):
        bench.route(prompt(number, (1, 64), session=session), 1)
    assert bench.score(prompt(9, (1, 64), session="a")) == [0.0, 1.0]
    assert bench.score(prompt(9, (1, 64), session="b")) == [0.0, 0.0]


def test_only_routing_moves_the_state_of_a_scorer() -> None:
    bench = Bench("session-affinity", instances=2)
    bench.scorer.observe(Finished(0, prompt(0, (1, 64), session="a"), bench.views[1], "completed", 5))
    assert bench.score(prompt(1, (1, 64), session="a")) == [0.0, 0.0]


def test_predicted_latency_is_the_lowest_predicted_first_token_time_over_the_own() -> None:
    bench = Bench("predicted-latency", instances=3)
    bench.route(prompt(0, (1, 64)), 2)
    bench.views[1].pending_prefill_tokens = bench.views[1].inflight_tokens = 3000
    bench.views[1].running = 48
    request = prompt(1, (1, 64), (2, 164))
    # 3164 tokens in chunks of 2048 - 48, two steps that decode 48 sequences as well.
    times = [0.164, 3.164 + 2 * 0.48, 0.1]
    assert bench.score(request) == pytest.approx([0.1 / time for time in times])
    assert bench.score(request, among=[0, 1])[0] == 1.0


def test_predicted_latency_computes_at_least_one_token_of_a_cached_prompt() -> None:
    bench = Bench("predicted-latency", instances=2)
    bench.route(prompt(0, (1, 64)), 0)
    assert bench.score(prompt(1, (1, 64))) == pytest.approx([1.0, 1 / 64])


@pytest.mark.parametrize("name", registry.names("scorer"))
@draws(10)
@given(data=st.data())
def test_every_scorer_gives_each_candidate_a_value_from_zero_to_one(name: str, data: st.DataObject) -> None:
    instances = data.draw(st.integers(1, 5))
    bench = Bench(name, instances, truth=lambda request: [request.prompt_tokens // (i + 1) for i in range(instances)])
    count = st.integers(0, 5000)
    for number in range(data.draw(st.integers(1, 8))):
        for view in bench.views:
            view.queued, view.running, view.routed_since_report = data.draw(st.tuples(count, count, count))
            view.inflight, view.inflight_tokens, view.pending_prefill_tokens = data.draw(st.tuples(count, count, count))
            view.kv_used = data.draw(st.integers(0, view.kv_blocks))
        group, shared, own = data.draw(st.tuples(st.integers(1, 2), st.integers(1, 80), st.integers(1, 80)))
        request = prompt(number, (group, shared), (100 + number, shared + own), session=f"s{group}")
        among = data.draw(st.lists(st.integers(0, instances - 1), min_size=1, unique=True).map(sorted))
        for candidates in (None, among):
            scores = bench.score(request, candidates)
            assert len(scores) == len(among if candidates else bench.views)
            assert all(0.0 <= score <= 1.0 for score in scores)
        bench.route(request, data.draw(st.sampled_from(among)))


@pytest.mark.parametrize("entry", registry.entries("scorer"), ids=lambda entry: entry.name)
def test_every_scorer_says_which_signals_it_reads_and_how_fresh_they_are(entry: registry.Entry) -> None:
    assert set(entry.reported) <= set(REPORTED)
    assert set(entry.exact) <= set(EXACT)
    words = [word for word, read in (("Reported", entry.reported), ("Exact", entry.exact)) if read]
    for word in words or (["Truth"] if entry.oracle else ["Exact"]):
        assert word.lower() in entry.summary.lower()
