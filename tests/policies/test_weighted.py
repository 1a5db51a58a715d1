"""`weighted` routing: the scorer framework's seven invariants, its configuration, and what its weights do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path as FilePath
from random import Random
from statistics import pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway.policies.basic  # noqa: F401  (registers the policies compared with)
from drawing import draws
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.policies.registry import REPORTED
from headway.policies.user_policies import outside
from headway.policies.weighted import DEFAULT, Weighted, read_scorers
from headway.types import ADMIT, Path, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

PROFILE = {"prefix-affinity": 3, "queue-depth": 2, "kv-utilization": 2}


class Always:
    def admit(self, request: Request, cluster: ClusterView) -> object:
        return ADMIT


class Steady:
    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.01 + prefill_tokens * 0.0001 + decodes * 0.001


def weighted(scorers: Any = None, **parameters: Any) -> Any:
    given = parameters if scorers is None else {"scorers": scorers, **parameters}
    return registry.build("routing", {"name": "weighted", **given}, "policies.routing")


def fleet(instances: int) -> list[InstanceView]:
    return [InstanceView(index, f"i{index}", kv_blocks=400) for index in range(instances)]


def context(views: list[InstanceView]) -> Context:
    def truth(request: Request) -> list[int]:
        return [16 * ((request.id + view.index) % 3) for view in views]

    return Context(views, lambda name: Random(f"7 {name}"), Steady(), 16, truth)


def shared_prefix_requests(count: int, share: float = 0.7, seed: int = 3) -> list[Request]:
    """A share of the prompts begins with one common prefix; the rest are all their own."""
    rng = Random(seed)
    requests = []
    for number in range(count):
        tokens = rng.randrange(300, 600)
        common = rng.random() < share
        path = Path((1, 10 + number), (256, tokens)) if common else Path((10 + number,), (tokens,))
        requests.append(Request(number, number, tokens, path, session=f"s{number % 17}"))
    return requests


def drive(policy: Any, requests: list[Request], instances: int = 4) -> list[int]:
    """Route one request a tick, each in flight for 4 to 66 ticks; the reports are always fresh."""
    views = fleet(instances)
    plane = ControlPlane(context(views), Always(), NoPriority(), policy)
    ending: dict[int, list[int]] = {}
    went = []
    for tick, request in enumerate(requests):
        for number in ending.pop(tick, ()):
            plane.on_finished(tick, number, "completed", 10)
        for view in views:
            view.running = min(view.inflight, 4)
            view.queued = view.inflight - view.running
            view.kv_used = min(view.kv_blocks, view.inflight_tokens // 16)
        target = plane.arrive(tick, request).view
        assert isinstance(target, InstanceView)
        ending.setdefault(tick + 4 + request.id * 37 % 63, []).append(request.id)
        if tick % 2:
            plane.on_first_token(tick, request.id)
        went.append(target.index)
    return went


def user_scorer(folder: FilePath, name: str, body: str, head: str = "") -> str:
    file = folder / f"{name.lower()}.py"
    file.write_text(f"{head}class {name}:\n    def score(self, request, candidates, cluster):\n        {body}\n")
    return f"{file}:{name}"


def test_the_default_profile_is_prefix_3_queue_2_kv_2() -> None:
    requests = shared_prefix_requests(200)
    assert drive(weighted(), requests) == drive(weighted(PROFILE), requests)
    assert weighted().entry.reported == ("queued", "running", "kv_used")


def test_mapping_list_and_text_say_the_same() -> None:
    requests = shared_prefix_requests(200)
    listed = [{"name": name, "weight": weight} for name, weight in PROFILE.items()]
    nested = {name: {"weight": weight} for name, weight in PROFILE.items()}
    underscored = {name.replace("-", "_"): weight for name, weight in PROFILE.items()}
    went = drive(weighted(DEFAULT), requests)
    for form in (PROFILE, listed, nested, underscored):
        assert drive(weighted(form), requests) == went


def test_a_scorer_takes_parameters_of_its_own() -> None:
    policy = weighted([{"name": "prefix-affinity", "weight": 3, "lru_blocks": 4, "block-tokens": 32}])
    drive(policy, shared_prefix_requests(50))
    # With nothing but affinity the first instance keeps everything, as much as it may.
    assert policy.metrics() == {"prefix_index_blocks": 4.0, "prefix_index_capacity": 16.0}


# The invariants of the scorer framework.


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return [5, 1, -3, 0.5]", [1.0, 1.0, 0.0, 0.5]),
        ("return [float('inf'), float('-inf'), 0.25, True]", [1.0, 0.0, 0.25, 1.0]),
    ],
)
def test_values_outside_zero_to_one_are_clamped(tmp_path: FilePath, body: str, expected: list[float]) -> None:
    policy = weighted([{"name": user_scorer(tmp_path, "Wild", body), "weight": 1}])
    views = fleet(4)
    assert policy._score[0](shared_prefix_requests(1)[0], views, ClusterView(views)) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return [0.5]", [0.5, 0.0, 0.0]),
        ("return []", [0.0, 0.0, 0.0]),
        ("return None", [0.0, 0.0, 0.0]),
        ("return [None, 0.5, None]", [0.0, 0.5, 0.0]),
        ("return (view.index / 2 for view in candidates)", [0.0, 0.5, 1.0]),
        ("return [0.5] * 9", [0.5, 0.5, 0.5]),
    ],
)
def test_missing_scores_count_zero(tmp_path: FilePath, body: str, expected: list[float]) -> None:
    policy = weighted([{"name": user_scorer(tmp_path, "Short", body), "weight": 1}])
    views = fleet(3)
    assert policy._score[0](shared_prefix_requests(1)[0], views, ClusterView(views)) == expected
    assert policy.route(shared_prefix_requests(1)[0], ClusterView(views)).target == f"i{expected.index(max(expected))}"


def test_a_score_that_is_no_number_is_an_error_that_names_the_scorer(tmp_path: FilePath) -> None:
    policy = weighted([{"name": user_scorer(tmp_path, "Odd", "return {'i0': 1.0}"), "weight": 1}])
    with pytest.raises(HeadwayError, match=r"policies.routing.scorers.Odd: scores must be numbers from 0 to 1"):
        drive(policy, shared_prefix_requests(1))


def test_a_score_that_is_nan_is_an_error_and_not_taken_for_a_low_one(tmp_path: FilePath) -> None:
    policy = weighted([{"name": user_scorer(tmp_path, "Odd", "return [0.5, float('nan')]"), "weight": 1}])
    with pytest.raises(HeadwayError, match=r"^policies\.routing\.scorers\.Odd: scores .*, got nan, at request 0\.$"):
        drive(policy, shared_prefix_requests(1))


EVERYTHING = {
    **PROFILE,
    "load-balance": 1,
    "no-hit-lru": 1,
    "active-requests": 0.5,
    "session-affinity": 1,
    "predicted-latency": 0.7,
}


def test_two_runs_of_the_same_requests_decide_alike() -> None:
    requests = shared_prefix_requests(300)
    for scorers in (DEFAULT, EVERYTHING, "oracle-prefix:1,queue-depth:1"):
        assert drive(weighted(scorers), requests) == drive(weighted(scorers), requests)


def everything_decided() -> list[int]:
    requests = shared_prefix_requests(200)
    random = {"name": "weighted-random"}
    return drive(weighted(EVERYTHING), requests) + drive(weighted(EVERYTHING, picker=random), requests)


def test_the_hash_seed_of_the_process_makes_no_difference() -> None:
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, check=True, text=True)
    assert json.loads(answer.stdout) == everything_decided()


def test_stateful_scorers_learn_from_every_routing_from_the_first_on() -> None:
    requests = shared_prefix_requests(6, share=1.0)
    assert len(set(drive(weighted("prefix-affinity:1"), requests))) == 1
    same_session = [Request(n, n, 64, Path((n,), (64,)), session="s") for n in range(6)]
    assert drive(weighted("session-affinity:2,load-balance:1"), same_session) == [0] * 6
    cold = [Request(n, n, 64, Path((n,), (64,))) for n in range(8)]
    assert drive(weighted("no-hit-lru:1"), cold) == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize("name", ["round-robin", "least-loaded", "prefix-affinity", "always-busiest"])
def test_other_routing_policies_decide_the_same_with_the_scorers_at_work_beside_them(name: str) -> None:
    class Beside:
        """Asks `weighted` first and follows the other policy, over the same views and indexes."""

        def __init__(self) -> None:
            self.policy = registry.build("routing", name, "policies.routing")
            self.scored = weighted("prefix-affinity:3,queue-depth:2,kv-utilization:2,load-balance:1")

        def bind(self, shared: Context) -> None:
            for policy in (self.policy, self.scored):
                if hasattr(policy, "bind"):
                    policy.bind(shared)

        def route(self, request: Request, cluster: ClusterView) -> Any:
            self.scored.route(request, cluster)
            return self.policy.route(request, cluster)

    requests = shared_prefix_requests(200)
    assert drive(Beside(), requests) == drive(registry.build("routing", name, "policies.routing"), requests)


def test_only_the_ratios_of_weights_count() -> None:
    requests = shared_prefix_requests(400)
    went = drive(weighted(PROFILE), requests)
    for weights in ([6, 4, 4], [0.3, 0.2, 0.2], [3.0, 2.0, 2.0], ["3e-1", ".2", "0.20"], [30e9, 20e9, 20e9]):
        assert drive(weighted(dict(zip(PROFILE, weights, strict=True))), requests) == went


@given(
    weights=st.lists(st.integers(1, 10**4), min_size=4, max_size=4),
    numerator=st.integers(1, 50),
    places=st.integers(0, 4),
)
def test_weights_are_decimals_reduced_to_coprime_integers(weights: list[int], numerator: int, places: int) -> None:
    names = ["prefix-affinity", "queue-depth", "kv-utilization", "load-balance"]
    plain = dict(zip(names, weights, strict=True))
    scaled = {name: weight * numerator / 10**places for name, weight in plain.items()}
    assert [w for _, w in read_scorers(plain)] == [w for _, w in read_scorers(scaled)]


def test_the_order_in_which_scorers_are_listed_makes_no_difference() -> None:
    requests = shared_prefix_requests(300)
    weights = {"prefix-affinity": 0.7, "queue-depth": 0.1, "kv-utilization": 0.3, "load-balance": 0.2}
    backwards = dict(reversed(weights.items()))
    assert drive(weighted(weights), requests) == drive(weighted(backwards), requests)


def test_the_index_never_exceeds_instances_times_capacity() -> None:
    policy = weighted(
        [{"name": "prefix-affinity", "weight": 1, "lru_blocks": 40}, {"name": "load-balance", "weight": 1}]
    )
    drive(policy, shared_prefix_requests(300, share=0.3))
    figures = policy.metrics()
    assert figures["prefix_index_blocks"] == figures["prefix_index_capacity"] == 160.0


@pytest.mark.parametrize("weight", [-1, -0.5, float("nan"), float("inf"), "many", True, None, "", [3]])
def test_a_weight_that_is_negative_or_no_number_is_an_error(weight: Any) -> None:
    with pytest.raises(HeadwayError) as caught:
        weighted({"prefix-affinity": 3, "queue_depth": weight})
    expected = f"policies.routing.scorers.queue-depth: a weight must be 0 or a positive number, got {weight}."
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("scorers", "message"),
    [
        ({"queue-dept": 1}, "scorers.queue-dept: no scorer is called 'queue-dept'. Did you mean 'queue-depth'?"),
        ([{"name": "queue-depth", "weight": 1}, {"name": "queue_depth", "weight": 2}], "queue-depth: .* listed twice"),
        ("queue-depth:1,queue-depth:1", "queue-depth: .* listed twice"),
        ("queue-depth", "scorers: 'queue-depth' is not of the form name:weight"),
        ("mine.py:Mine", "scorers: 'mine.py:Mine' is not of the form name:weight"),
        ("queue-depth:-2", "scorers.queue-depth: a weight must be 0 or a positive number, got -2"),
        ([{"name": "queue-depth"}], "scorers.queue-depth: the weight is missing"),
        (["queue-depth"], "scorers.queue-depth: the weight is missing"),
        ([{"weight": 3}], r"scorers\[0\]: the mapping has no name. Give the policy's"),
        ([3], r"scorers\[0\]: expected a name or a mapping"),
        ([{"name": "prefix-affinity", "weight": 3, "lru": 5}], "scorers.prefix-affinity.lru: .* has no such parameter"),
        ([{"name": "prefix-affinity", "weight": 3, "lru_blocks": 0}], "prefix-affinity.lru_blocks: must lie between"),
        ({"queue-depth": "1e400000000"}, "queue-depth: a weight must be 0 or between 1e-12 and 1e12"),
        ({}, "policies.routing.scorers: at least one scorer needs a weight above 0"),
        ("", "policies.routing.scorers: at least one scorer needs a weight above 0"),
        ("queue-depth:0", "policies.routing.scorers: at least one scorer needs a weight above 0"),
        ("queue-depth:1,prefix-afinity:0", "no scorer is called 'prefix-afinity'"),
        (5, "policies.routing.scorers: expected"),
    ],
)
def test_a_wrong_profile_is_told_at_its_place(scorers: Any, message: str) -> None:
    with pytest.raises(HeadwayError, match=message):
        weighted(scorers)


def test_a_weight_of_0_leaves_the_scorer_out() -> None:
    without, with_zero = weighted("queue-depth:2"), weighted("queue-depth:2,prefix-affinity:0")
    assert [type(scorer) for scorer in with_zero._scorers] == [type(scorer) for scorer in without._scorers]


# What the weights do.


@draws(60)
@given(st.lists(st.integers(0, 3) | st.integers(0, 10**6), min_size=1, max_size=16))
def test_load_balance_alone_decides_as_least_loaded(inflight: list[int]) -> None:
    views = fleet(len(inflight))
    for view, count in zip(views, inflight, strict=True):
        view.inflight = count
    request = shared_prefix_requests(1)[0]
    plain = registry.build("routing", "least-loaded", "policies.routing")
    routes = [policy.route(request, ClusterView(views)) for policy in (weighted("load-balance:1"), plain)]
    assert routes[0].target == routes[1].target


def test_load_balance_alone_routes_a_whole_workload_as_least_loaded() -> None:
    requests = shared_prefix_requests(400)
    least_loaded = registry.build("routing", "least-loaded", "policies.routing")
    assert drive(weighted({"load-balance": 1}), requests) == drive(least_loaded, requests)


def test_a_growing_prefix_affinity_weight_concentrates_routing() -> None:
    requests = shared_prefix_requests(1000)
    balance = "queue-depth:2,kv-utilization:2"
    spread = []
    for profile in [balance, *(f"prefix-affinity:{weight},{balance}" for weight in (1, 2, 3, 5, 8, 20))]:
        counts = Counter(drive(weighted(profile), requests, instances=8))
        spread.append(pstdev([counts[index] for index in range(8)]))
    assert spread == sorted(spread)
    # A small weight yields to any difference in load; from the default on, each step up concentrates further,
    assert len(set(spread[3:])) == 4
    # until the shared prefix has one home.
    home = sum(len(request.path.keys) == 2 for request in requests)
    assert spread[-1] == pytest.approx(pstdev([home] + [(1000 - home) / 7] * 7), rel=0.05)


def test_equal_totals_go_to_the_lowest_index() -> None:
    views = fleet(5)
    views[0].inflight = 1
    assert weighted("load-balance:1").route(shared_prefix_requests(1)[0], ClusterView(views)).target == "i1"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_total_is_the_weighted_sum_whatever_the_number_of_scorers(count: int, tmp_path: FilePath) -> None:
    rng = Random(count)
    table = [[rng.random() for _ in range(6)] for _ in range(count)]
    chosen = {user_scorer(tmp_path, f"Row{row}", f"return {values}"): row + 1 for row, values in enumerate(table)}
    totals = [sum((row + 1) * values[at] for row, values in enumerate(table)) for at in range(6)]
    policy = weighted(chosen)
    views = fleet(6)
    scores = [score(shared_prefix_requests(1)[0], views, ClusterView(views)) for score in policy._score]
    assert policy._combine(scores) == pytest.approx(totals)
    assert policy.route(shared_prefix_requests(1)[0], ClusterView(views)).target == f"i{totals.index(max(totals))}"


# What the control plane learns of it.


def test_the_route_tells_what_is_believed_cached_on_its_target() -> None:
    views = fleet(2)
    policy = weighted()
    plane = ControlPlane(context(views), Always(), NoPriority(), policy)
    first, second = (Request(n, n, 300, Path((1, 10 + n), (256, 300))) for n in range(2))
    assert plane.arrive(0, first).view is views[0]
    assert policy.route(second, plane.cluster).cached_tokens == 256
    assert weighted("load-balance:1").route(second, plane.cluster).cached_tokens == 0


def test_only_a_profile_that_listens_has_an_observe_method() -> None:
    assert not hasattr(weighted(), "observe")
    assert hasattr(weighted("session-affinity:1,load-balance:1"), "observe")
    assert hasattr(weighted("session-affinity:1,no-hit-lru:1"), "observe")


def test_the_signals_read_are_those_of_the_scorers_and_filters(tmp_path: FilePath) -> None:
    assert weighted("prefix-affinity:1,load-balance:1").entry.reported == ()
    assert weighted("kv-utilization:1", filters=["load-below"]).entry.reported == ("queued", "running", "kv_used")
    assert weighted({user_scorer(tmp_path, "Plain", "return []"): 1}).entry.reported == REPORTED
    head = "from headway.policies.registry import policy\n\n\n@policy('scorer', 'thrifty', reported=('watts',))\n"
    assert weighted({user_scorer(tmp_path, "Thrifty", "return []", head): 1}).entry.reported == ("watts",)
    exact = weighted("prefix-affinity:1,load-balance:1,active-requests:1").entry.exact
    assert sorted(exact) == ["inflight", "prefix_index"]


def test_a_class_derived_from_it_reads_what_its_scorers_read_and_what_it_declares_itself() -> None:
    class Plain(Weighted):
        pass

    @registry.policy("routing", "thrifty-profile", reported=("watts",))
    class Thrifty(Weighted):
        pass

    registry._ENTRIES.pop(("routing", "thrifty-profile"))
    assert Plain("load-balance:1").entry.reported == REPORTED
    assert Thrifty("kv-utilization:1").entry.reported == ("kv_used", "watts")
    assert Plain("oracle-prefix:1").entry.oracle and not Plain("load-balance:1").entry.oracle


def test_a_profile_is_an_oracle_if_one_of_its_scorers_is() -> None:
    assert weighted("oracle-prefix:1,queue-depth:1").entry.oracle
    assert not weighted().entry.oracle


def test_a_users_scorer_is_named_in_the_text_form_too(tmp_path: FilePath) -> None:
    reference = user_scorer(tmp_path, "Last", "return [view.index / 4 for view in candidates]")
    assert drive(weighted(f"{reference}:2,load-balance:1"), shared_prefix_requests(1)) == [3]


def test_built_in_scorers_are_trusted_and_those_of_users_are_not(tmp_path: FilePath) -> None:
    assert not any(outside(entry.make) for entry in registry.entries("scorer"))
    policy = weighted({user_scorer(tmp_path, "Mine", "return []"): 1, "load-balance": 1})
    assert isinstance(policy, Weighted)
    assert [score == scorer.score for score, scorer in zip(policy._score, policy._scorers, strict=True)] == [
        True,
        False,
    ]


if __name__ == "__main__":
    print(json.dumps(everything_decided()))
