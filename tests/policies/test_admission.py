"""Admission policies: the rules of each by hand, the token bucket against fractions, all of them in runs."""

from __future__ import annotations

import inspect
from fractions import Fraction
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import views

import headway
from conftest import TRACES
from drawing import draws
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.testing.bench import Watch, WatchedView
from headway.types import ADMIT, PS_PER_SECOND, Delay, Path, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.events import Finished, FirstToken, InstanceChanged, Routed
from headway.views.instance import InstanceView

SECOND = PS_PER_SECOND
LEAPS: tuple[bool | str, ...] = (True, False, "random-cuts")
ENTRIES = [entry for entry in registry.entries("admission") if not entry.blank]
NAMES = [
    *("all-of", "always", "deadline", "max-concurrency", "never", "probabilistic"),
    *("saturation", "tenant-fair", "tier-shed", "token-bucket", "load-shedding"),
]


class Steps:
    """An estimator: a millisecond a prompt token, ten a decode, one a thousand tokens of context."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return (prefill_tokens + 10 * decodes + context / 1000) / 1000


class Bench:
    """A policy with a clock and instances that a test sets by hand."""

    def __init__(self, spec: Any, instances: list[InstanceView] | None = None, seed: int = 1) -> None:
        self.policy = registry.build("admission", spec, "policies.admission")
        self.views = instances or views(2)
        self.cluster = ClusterView(self.views)
        context = Context(self.views, lambda name: Random(f"{seed}/{name}"), Steps(), 16)
        if hasattr(self.policy, "bind"):
            self.policy.bind(context)
        self.count = 0

    def request(self, tokens: int = 100, **fields: Any) -> Request:
        self.count += 1
        fields.setdefault("arrival_ps", self.cluster.now_ps)
        return Request(id=self.count, prompt_tokens=tokens, path=Path((self.count,), (tokens,)), **fields)

    def ask(self, request: Request, at_ps: int | None = None) -> Any:
        if at_ps is not None:
            self.cluster.now_ps = at_ps
        return self.policy.admit(request, self.cluster)

    def tell(self, kind: Any, request: Request, index: int = 0) -> None:
        rest = ("completed", 1) if kind is Finished else ()
        self.policy.observe(kind(self.cluster.now_ps, request, self.views[index], *rest))

    def sends(self, **fields: Any) -> Request | None:
        """One more request, routed where it is admitted."""
        request = self.request(**fields)
        if self.ask(request) is not ADMIT:
            return None
        self.tell(Routed, request)
        return request


def test_all_of_them_are_there():
    assert sorted(registry.names("admission")) == sorted(NAMES)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_first_sentence_fits_a_line_and_the_rest_says_what_is_read(entry):
    assert 10 <= len(entry.summary) <= 120 and ". " not in entry.summary
    text = " ".join(inspect.getdoc(entry.make).split())
    words = ("reads no", "reads nothing", "as reported", "reads the signals", "exact")
    assert any(word in text for word in words)


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry.name != "all-of"], ids=lambda entry: entry.name)
def test_the_signals_that_are_read_are_those_declared(entry):
    watch = Watch()
    instances = [
        WatchedView(watch, index, f"i{index}", running=1) for index in range(3)
    ]  # an estimate looks at decodes
    bench = Bench(entry.name, instances)
    watch.on = True
    for slo_class in ("realtime", "standard", "batch") * 3:
        bench.ask(bench.request(slo_class=slo_class))
    loads = {"routed_since_report", "finished_since_report"}  # which count as parts of a load
    assert watch.names - loads == {*entry.exact, *entry.reported} - loads


def test_never_turns_all_away():
    bench = Bench("never")
    assert bench.ask(bench.request()) == Reject("503: the policy admits no requests")


# --- the token bucket -------------------------------------------------------------------------------------------------


class Plain:
    """The rule of the bucket in fractions of a unit and of a second."""

    def __init__(self, rate: str, burst: int) -> None:
        self.rate, self.burst = Fraction(rate), burst
        self.left, self.at = Fraction(burst), Fraction(0)

    def left_at(self, at: Fraction) -> Fraction:
        return min(Fraction(self.burst), self.left + (at - self.at) * self.rate)

    def take(self, cost: int, at: Fraction) -> None:
        self.left, self.at = self.left_at(at) - cost, at

    def due(self, cost: int, at: Fraction) -> int:
        """The first picosecond at which it holds what it costs."""
        seconds = at + max(Fraction(0), (cost - self.left_at(at)) / self.rate)
        return -(-(seconds * SECOND).numerator // (seconds * SECOND).denominator)


CALLS = st.lists(st.tuples(st.sampled_from([0, 1, 3, 10**9, 333_333_333_333, 10**12, 7 * 10**12]), st.integers(1, 12)))
RATES = st.sampled_from(["0.001", "0.3", "1", "3.0", "7.7", "1e6", "123456.789"])


@draws(60)
@given(CALLS, RATES, st.integers(1, 10), st.sampled_from(["requests", "tokens"]))
def test_the_bucket_rejects_exactly_what_fractions_reject(calls, rate, burst, by):
    bench = Bench({"name": "token-bucket", "by": by, "rate": float(rate), "burst": burst})
    plain = Plain(rate, burst)
    now = 0
    for gap, tokens in calls:
        now += gap
        cost = tokens if by == "tokens" else 1
        fits = cost <= plain.left_at(Fraction(now, SECOND))
        request = bench.request(tokens)
        assert (bench.ask(request, now) is ADMIT) == fits
        if fits:
            plain.take(cost, Fraction(now, SECOND))
            bench.tell(Routed, request)
    assert not bench.policy.paid


@draws(60)
@given(CALLS, RATES, st.integers(1, 10))
def test_the_bucket_delays_to_the_very_picosecond_in_order_of_arrival(calls, rate, burst):
    spec = {"name": "token-bucket", "by": "tokens", "rate": float(rate), "burst": burst, "on_empty": "delay"}
    bench, plain = Bench({**spec, "max_wait_s": 1e6}), Plain(rate, burst)
    now, last = 0, 0
    for gap, tokens in calls:
        now += gap
        request = bench.request(tokens)
        answer = bench.ask(request, now)
        if tokens > burst:
            assert answer == Reject("429: the request costs more tokens than the allowance can hold")
            continue
        due = plain.due(tokens, Fraction(now, SECOND))
        if due - now > 10**18:
            assert answer == Reject("429: the allowance of tokens is spent")
            continue
        assert answer == (ADMIT if due == now else Delay(due - now))
        plain.take(tokens, Fraction(now, SECOND))
        assert due >= last
        last = due
        if due > now + 1:
            assert bench.ask(request, due - 1) == Delay(1)
        assert bench.ask(request, due) is ADMIT  # and is charged no second time
        bench.cluster.now_ps = now


def test_a_bucket_does_not_drift():
    bench = Bench({"name": "token-bucket", "rate": 0.1, "burst": 1})
    admitted = []
    for step in range(20_000):
        request = bench.request()
        if bench.ask(request, step * SECOND // 10) is ADMIT:
            admitted.append(step)
            bench.tell(Routed, request)
    assert admitted == list(range(0, 20_000, 100))


def test_every_tenant_has_a_bucket_of_its_own_if_asked():
    spec = {"name": "token-bucket", "rate": 1.0, "burst": 2, "per": "tenant"}
    bench = Bench(spec)
    answers = [bench.ask(bench.request(tenant=tenant)) is ADMIT for tenant in "aaabab"]
    assert answers == [True, True, False, True, False, True]
    assert bench.ask(bench.request(tenant="b")) == Reject("429: the tenant's allowance of requests is spent")
    assert bench.ask(bench.request(tenant="a"), SECOND - 1) != ADMIT
    assert bench.ask(bench.request(tenant="a"), SECOND) is ADMIT


def test_what_would_wait_too_long_is_turned_away_at_no_cost():
    spec = {"name": "token-bucket", "rate": 1.0, "burst": 1, "on_empty": "delay", "max_wait_s": 2.0}
    bench = Bench(spec)
    answers = [bench.ask(bench.request()) for _ in range(5)]
    spent = Reject("429: the allowance of requests is spent")
    assert answers == [ADMIT, Delay(SECOND), Delay(2 * SECOND), spent, spent]
    assert bench.ask(bench.request(), SECOND) == Delay(2 * SECOND)


def test_a_request_pays_once_though_a_later_policy_puts_it_off():
    slow = {"name": "token-bucket", "rate": 1.0, "burst": 1, "on_empty": "delay"}
    bench = Bench({"name": "all-of", "policies": [{"name": "token-bucket", "rate": 0.001, "burst": 2}, slow]})
    first, second = bench.request(), bench.request()
    assert bench.ask(first) is ADMIT
    assert bench.ask(second) == Delay(SECOND)
    assert bench.ask(second, SECOND) is ADMIT
    assert isinstance(bench.ask(bench.request()), Reject)


# --- budgets ----------------------------------------------------------------------------------------------------------


def test_permits_are_taken_at_routing_and_given_back_at_the_end():
    bench = Bench({"name": "max-concurrency", "max_queue": 2})
    asked = [bench.request(model="a") for _ in range(3)]
    assert [bench.ask(request) for request in asked] == [ADMIT] * 3  # nothing is routed yet
    bench.tell(Routed, asked[0], 0)
    bench.tell(Routed, asked[1], 1)
    full = Reject("503: the model has reached its limit of requests in flight")
    assert bench.ask(asked[2]) == full
    assert bench.ask(bench.request(model="made up")) == full  # these instances serve any name, and have one limit
    bench.tell(FirstToken, asked[0], 0)
    assert bench.ask(asked[2]) == full
    bench.tell(Finished, asked[0], 0)
    assert bench.ask(asked[2]) is ADMIT


def test_every_role_needs_a_free_permit():
    instances = views(2)
    instances[0].role, instances[1].role = "prefill", "decode"
    bench = Bench({"name": "max-concurrency", "max_queue": 1}, instances)
    request = bench.request()
    bench.tell(Routed, request, 1)
    assert isinstance(bench.ask(bench.request()), Reject)
    bench.tell(Finished, request, 1)
    assert bench.ask(bench.request()) is ADMIT


def test_a_permit_goes_back_as_what_it_was_taken_for_though_its_instance_is_another_now():
    instances = views(2)
    bench = Bench({"name": "max-concurrency", "max_queue": 1}, instances)
    request = bench.request(model="a")
    bench.tell(Routed, request, 0)
    instances[0].role, instances[0].serves, instances[0].model = "decode", ("b",), "b"
    bench.tell(Finished, request, 0)
    instances[0].role, instances[0].serves, instances[0].model = "both", (), ""
    assert bench.policy.in_use == {} == bench.policy.held
    assert bench.ask(bench.request(model="a")) is ADMIT


def test_without_a_number_the_limit_is_what_batches_and_queues_of_the_serving_instances_hold():
    instances = views(3)
    for view, batch in zip(instances, (2, 1, 5), strict=True):
        view.max_batch_size, view.max_queue = batch, 1
    instances[2].state = "unreachable"
    bench = Bench({"name": "max-concurrency", "max_queue": None}, instances)
    sent = [bench.sends() for _ in range(6)]
    assert sum(request is not None for request in sent) == 5  # (2 + 1) + (1 + 1)
    instances[0].max_batch_size = 3  # no event says so
    assert bench.sends() is not None and bench.sends() is None
    instances[2].state = "ready"
    bench.policy.observe(InstanceChanged(0, instances[2], "unreachable"))
    assert [bench.sends() is not None for _ in range(7)] == [True] * 6 + [False]


def test_while_no_instance_serves_the_limit_counts_all_of_them():
    instances = views(2)
    for view in instances:
        view.state, view.max_batch_size, view.max_queue = "unreachable", 1, 1
    bench = Bench({"name": "max-concurrency", "max_queue": None}, instances)
    assert [bench.sends() is not None for _ in range(5)] == [True] * 4 + [False]


def test_a_tenant_alone_may_use_all_and_one_who_comes_late_gets_a_share():
    bench = Bench({"name": "tenant-fair", "total": 8})
    hog = [bench.sends(tenant="hog") for _ in range(9)]
    assert hog.count(None) == 1
    late = [bench.sends(tenant="late") for _ in range(5)]
    assert late.count(None) == 1  # half of 8, though 8 were in flight
    assert bench.sends(tenant="third") is not None  # 8/3: two
    assert bench.sends(tenant="third") is not None and bench.sends(tenant="third") is None
    for request in hog[:8]:
        bench.tell(Finished, request)
    assert bench.sends(tenant="late") is not None  # the work of all, 6, leaves room for two
    assert bench.sends(tenant="late") is not None
    assert bench.sends(tenant="late") is None
    assert bench.sends(tenant="hog") is not None


def test_weights_divide_the_share_exactly():
    bench = Bench({"name": "tenant-fair", "total": 10, "weights": {"gold": 0.3, "tin": 0.1}})
    for _ in range(10):
        bench.sends(tenant="gold")
    tin = [bench.sends(tenant="tin") for _ in range(4)]
    assert tin.count(None) == 2  # 10 × 0.1 ÷ 0.4 = 2.5


def test_work_may_be_counted_in_tokens_and_the_total_told_by_the_instances():
    bench = Bench({"name": "tenant-fair", "by": "tokens"}, views(2, kv_blocks=[4, 6]))
    assert bench.policy.limit == 160
    assert bench.sends(tokens=1000, tenant="a") is not None  # who has nothing in flight is never shut out
    assert bench.sends(tokens=1, tenant="a") is None
    assert bench.sends(tokens=70, tenant="b") is not None
    assert bench.sends(tokens=11, tenant="b") is None
    assert bench.sends(tokens=10, tenant="b") is not None
    assert Bench("tenant-fair").policy.limit == 512


@draws(60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.integers(1, 9))), st.integers(1, 30))
def test_room_is_never_left_unused_and_counts_end_at_nothing(steps, total):
    bench = Bench({"name": "tenant-fair", "total": total, "by": "tokens", "weights": {"a": 2.5}})
    flying: list[Request] = []
    for tenant, ends, tokens in steps:
        if ends and flying:
            bench.tell(Finished, flying.pop(0))
            continue
        used = sum(request.prompt_tokens for request in flying)
        request = bench.sends(tokens=tokens, tenant=tenant)
        assert request is not None or used + tokens > total
        flying += [request] if request is not None else []
        assert sum(one.prompt_tokens for one in flying) <= 2 * total + 3 * 9
    for request in flying:
        bench.tell(Finished, request)
    policy = bench.policy
    assert (policy.used, policy.active, policy.work, policy.requests) == (0, 0, {}, {})


# --- shedding ---------------------------------------------------------------------------------------------------------


def test_low_tiers_go_when_one_instance_has_too_much():
    instances = views(2, queued=[1, 0], running=[4, 0], routed_since_report=[1, 0])
    bench = Bench({"name": "tier-shed", "max_load": 6}, instances)
    shed = Reject("429: the load is too high for requests of this class")
    assert bench.ask(bench.request(slo_class="batch")) is ADMIT  # exactly at the threshold
    instances[0].queued = 2
    answers = [bench.ask(bench.request(slo_class=name)) for name in ("realtime", "standard", "batch", "unheard-of")]
    assert answers == [ADMIT, ADMIT, shed, shed]
    strict = Bench({"name": "tier-shed", "max_load": 6, "classes": ["gold", "tin"], "keep": "gold"}, instances)
    assert [strict.ask(strict.request(slo_class=name)) for name in ("gold", "tin", "standard")] == [ADMIT, shed, shed]


def test_one_instance_that_is_not_saturated_is_enough():
    instances = views(2, queued=[6, 5], kv_blocks=[10, 10], kv_used=[0, 8])
    bench = Bench("saturation", instances)
    assert bench.ask(bench.request(slo_class="batch")) is ADMIT  # the second is at both thresholds
    instances[1].kv_used = 9
    assert bench.ask(bench.request(slo_class="batch")) == Reject("429: the model is saturated")
    assert bench.ask(bench.request()) is ADMIT
    all_shed = Bench({"name": "saturation", "sheddable": None}, instances)
    assert isinstance(all_shed.ask(all_shed.request()), Reject)


@pytest.mark.parametrize(
    ("queued", "k", "power", "probability"),
    [(0, 1, 1, 0), (2, 1, 1, 0), (3, 1, 1, 0.25), (4, 1, 1, 0.5), (4, 1, 3, 0.125), (3, 2, 1, 0.5), (6, 1, 1, 1)],
)
def test_the_probability_grows_from_the_threshold_on(queued, k, power, probability):
    instances = views(2, queued=[queued, queued], kv_blocks=[10, 10])
    spec = {"name": "probabilistic", "low": 0.5, "k": k, "power": power, "queue_threshold": 4.0}
    bench = Bench(spec, instances)
    assert bench.policy.probability(bench.cluster) == probability
    asked = [bench.ask(bench.request(slo_class="batch")) for _ in range(4000)]
    assert abs(asked.count(ADMIT) / 4000 - (1 - probability)) < 0.03
    assert bench.ask(bench.request()) is ADMIT


def test_pressure_is_the_worse_of_queue_and_memory_and_the_mean_counts():
    instances = views(2, queued=[5, 0], kv_blocks=[10, 10], kv_used=[0, 4])
    bench = Bench({"name": "probabilistic", "k": 1, "power": 1}, instances)
    assert bench.policy.probability(bench.cluster) == 0.75  # (5/5 + 0.4/0.8) / 2


@pytest.mark.parametrize(
    ("kv_used", "probability"),
    [  # s = KV use / 0.8; 300 s^5 by hand
        (0, 0.0),
        (64, 300 * 0.0000032768),  # s = 0.08
        (120, 300 * 0.0000759375),  # s = 0.15
        (160, 300 * 0.00032),  # s = 0.2
        (240, 300 * 0.00243),  # s = 0.3
        (256, 1.0),  # s = 0.32: 300 * 0.0033554432 is above 1
        (1000, 1.0),
    ],
)
def test_the_default_probabilities_are_those_of_llm_d_s_admitter(kv_used, probability):
    instances = views(1, kv_blocks=[1000], kv_used=[kv_used])
    bench = Bench("probabilistic", instances)
    assert bench.policy.probability(bench.cluster) == pytest.approx(probability)


# --- the deadline -----------------------------------------------------------------------------------------------------


def test_what_cannot_have_its_first_token_in_time_is_turned_away():
    instances = views(2, pending_prefill_tokens=[900, 1500])
    bench = Bench({"name": "deadline", "targets": {"standard": "1s"}}, instances)
    late = Reject("503: the first token would come too late")
    assert bench.ask(bench.request(100)) is ADMIT  # 1000 tokens at a millisecond each: just in time
    assert bench.ask(bench.request(101)) == late
    assert bench.ask(bench.request(101, slo_class="free")) is ADMIT
    assert bench.ask(bench.request(101, slo_class="free", deadline_ps=SECOND)) == late
    assert bench.ask(bench.request(100, arrival_ps=0), 1) == late  # a picosecond of it is gone
    careful = Bench({"name": "deadline", "targets": {"standard": "1s"}, "margin": 2}, instances)
    assert careful.ask(careful.request(100)) == late


def test_decodes_take_their_time_and_their_place_in_every_step():
    instances = views(1, max_batch_tokens=[102], inflight_tokens=[3050], pending_prefill_tokens=[50])
    bench = Bench({"name": "deadline", "targets": {"standard": "319ms"}}, instances)
    assert bench.ask(bench.request(269)) is ADMIT and bench.ask(bench.request(270)) is not ADMIT
    instances[0].running = 2
    # 100 tokens a step, two decodes of 10 ms, 3 ms for a context of 3000 tokens: three steps for 50 + 200 tokens
    assert bench.ask(bench.request(200)) is ADMIT  # 250 + 3 * 23 ms
    assert bench.ask(bench.request(201)) is not ADMIT


# --- several as one ---------------------------------------------------------------------------------------------------


def test_the_first_that_does_not_admit_decides_and_the_rest_are_not_asked():
    spec = {"name": "all-of", "policies": ["always", {"name": "token-bucket", "burst": 1}, "never"]}
    bench = Bench(spec)
    assert bench.ask(bench.request()).reason.startswith("503")
    assert bench.ask(bench.request()).reason.startswith("429")
    assert Bench("all-of").ask(bench.request()) is ADMIT


def test_what_all_of_them_read_is_declared_and_every_default_is_written_out():
    nested = {"name": "all-of", "policies": ["deadline", {"name": "all-of", "policies": ["tier-shed", "saturation"]}]}
    policy = Bench(nested).policy
    assert policy.entry.exact == ("inflight_tokens", "pending_prefill_tokens")
    assert policy.entry.reported == ("queued", "running", "kv_used")
    assert policy.policies[1]["policies"][1] == {
        "name": "saturation",
        "queue_threshold": 5.0,
        "kv_threshold": 0.8,
        "sheddable": ["batch", "best-effort"],
    }
    assert not hasattr(Bench({"name": "all-of", "policies": ["always", "tier-shed"]}).policy, "observe")
    scenario = headway.Scenario.load({**small(), "policies": {"admission": nested}})
    assert headway.Scenario.load(scenario.resolved()).resolved() == scenario.resolved()


def test_two_that_draw_have_streams_of_their_own():
    instances = views(1, queued=[4])
    one = {"name": "probabilistic", "k": 0.625, "power": 1}
    bench = Bench({"name": "all-of", "policies": [one, one]}, instances)
    asked = [bench.ask(bench.request(slo_class="batch")) for _ in range(4000)]
    assert abs(asked.count(ADMIT) / 4000 - 0.25) < 0.03  # half of the half


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"name": "all-of", "policies": []}, r"^policies\.admission\.policies: the list is empty. Name at least"),
        (
            {"name": "all-of", "policies": ["nevr"]},
            r"^policies\.admission\.policies\[0\]: no admission policy .*'never'",
        ),
        ({"name": "token-bucket", "rate": 0}, r"^policies\.admission\.rate: must lie between 0\.001 and 1e\+09, got 0"),
        ({"name": "token-bucket", "by": "bytes"}, r"admission\.by: expected 'requests' or 'tokens', got 'bytes'"),
        ({"name": "tier-shed", "keep": "gold"}, r"keep: 'gold' is not in `classes`, which has: realtime, standard"),
        ({"name": "probabilistic", "k": 0}, r"admission\.k: must lie between 1e-06 and 1e\+09, got 0"),
        ({"name": "deadline", "targets": {"a": 5}}, r"targets\.a: 5 is not a duration"),
        ({"name": "deadline", "targets": {"a": "0s"}}, r"targets\.a: must be greater than zero, got '0s'"),
        ({"name": "tenant-fair", "weights": {"a": 0.0}}, r"weights\.a: must lie between 1e-9 and 1e9, got 0\.0"),
    ],
)
def test_mistakes_are_told_at_their_place(spec, told):
    with pytest.raises(HeadwayError, match=told):
        registry.build("admission", spec, "policies.admission")


# --- in runs ----------------------------------------------------------------------------------------------------------

TENANTS = {
    "chatty": {"weight": 3, "priority": "realtime", "slo": {"ttft": "300ms"}},
    "nightly": {"weight": 2, "priority": "batch", "retry": {"max": 1, "backoff": "100ms"}},
    "plain": {"weight": 2, "timeout": "900ms"},
}
IN_RUNS: dict[str, Any] = {
    "always": {},
    "never": {},
    "token-bucket": {"rate": 60, "burst": 8},
    "token-bucket delays": {"rate": 20_000, "burst": 4000, "by": "tokens", "per": "tenant", "on_empty": "delay"},
    "max-concurrency": {"max_queue": 12},
    "tier-shed": {"max_load": 6},
    "saturation": {"queue_threshold": 1, "kv_threshold": 0.5, "sheddable": None},
    "deadline": {"targets": {"realtime": "150ms", "standard": "400ms"}},
    "tenant-fair": {"total": 10, "weights": {"chatty": 2}},
    "probabilistic": {"low": 0.1, "k": 0.9, "power": 2, "sheddable": None},
    "all-of": {
        "policies": [
            {"name": "token-bucket", "rate": 80, "burst": 6, "on_empty": "delay", "max_wait_s": 1},
            {"name": "probabilistic", "low": 0.1, "sheddable": None},
            {"name": "tenant-fair", "total": 12},
            {"name": "deadline", "targets": {"standard": "400ms"}},
        ]
    },
}


def small(**changes: Any) -> dict[str, Any]:
    """Three tenants on two instances that cannot serve them all."""
    return {
        "seed": 5,
        "workload": {
            "requests": 160,
            "rate": "110/s",
            "prompt_tokens": {"dist": "lognormal", "mean": 300, "std": 300, "min": 8, "max": 1500},
            "output_tokens": {"dist": "lognormal", "mean": 30, "std": 20, "min": 1, "max": 120},
            "tenants": TENANTS,
        },
        "cluster": {
            "instances": 2,
            "max_batch_size": 8,
            "max_batch_tokens": 512,
            "kv": {"gpu_blocks": 260},
            "latency": {"model": "linear"},
        },
        **changes,
    }


@pytest.mark.parametrize("label", IN_RUNS)
def test_every_leap_gives_the_same_bytes_and_nobody_is_lost(label):
    admission = {"name": label.split()[0], **IN_RUNS[label]}
    results = [headway.simulate(small(leap=leap), admission=admission) for leap in LEAPS]
    first = results[0]
    for other in results[1:]:
        assert other.to_json() == first.to_json()
        for name, column in first.requests.items():
            assert other.requests[name] == column, name
    counts = first.summary()["requests"]
    outcomes = ("completed", "rejected", "timed_out", "failed", "in_flight")
    assert counts["arrived"] == sum(counts[name] for name in outcomes) and counts["in_flight"] == 0
    assert (counts["rejected"] == 0) == (label in ("always", "token-bucket delays"))
    assert counts["completed"] > 0 or label == "never"
    for row, outcome in enumerate(first.requests["outcome"]):
        assert (outcome == "rejected") == bool(first.requests["reason"][row])


def test_a_delaying_bucket_paces_what_is_admitted():
    result = headway.simulate(
        small(), admission={"name": "token-bucket", "rate": 40, "burst": 1, "on_empty": "delay", "max_wait_s": 100}
    )
    admitted = sorted(at for at in result.requests["admitted_ps"] if at >= 0)
    gaps = [later - earlier for earlier, later in pairwise(admitted)]
    # A client that gives up leaves a hole; whoever is admitted comes 25 ms after another, on the bucket's own grid.
    assert min(gaps) == SECOND // 40 and all(gap % (SECOND // 40) == 0 for gap in gaps[:40])


def test_never_more_in_flight_than_the_hard_cap():
    result = headway.simulate(small(), admission={"name": "max-concurrency", "max_queue": 7})
    changes = []
    for came, ended, reason in zip(
        *(result.requests[name] for name in ("enqueued_ps", "finished_ps", "reason")), strict=True
    ):
        if not reason:
            # what ends at an instant is told after what arrives at it
            changes += [(came, 0, 1), (ended, 1, -1)]
    level = most = 0
    for _, _, change in sorted(changes):
        level += change
        most = max(most, level)
    assert most == 7


class Answers:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def admit(self, request: Request, cluster: ClusterView) -> Any:
        if request.id < 3:
            return ADMIT
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, r"Answers\.admit must return .*, got None, at request 3\."),
        (Delay(-5), r"Answers\.admit must return .*, got Delay\(duration_ps=-5\), at request 3\."),
        (Delay(float("nan")), r"Answers\.admit must return .*, got Delay\(duration_ps=nan\), at request 3\."),  # type: ignore[arg-type]
        (float("nan"), r"Answers\.admit must return .*, got nan, at request 3\."),
        (Reject(7), r"Answers\.admit must return .*, got Reject\(reason=7\), at request 3\."),  # type: ignore[arg-type]
        (ValueError("odd"), r"line \d+, in Answers\.admit: ValueError: odd, at request 3\."),
    ],
)
def test_a_wrong_answer_ends_the_run_with_name_request_and_value(answer, told):
    with pytest.raises(HeadwayError, match=told):
        headway.simulate(small(), admission=Answers(answer))


OWN = """
from headway.types import ADMIT, Delay


class Odd:
    def admit(self, request, cluster):
        if request.id < 3:
            return ADMIT
        if request.slo_class == "batch":
            raise KeyError("batch")
        return Delay(0)
"""


@pytest.mark.parametrize(
    ("slo_class", "told"),
    [
        ("batch", r"odd\.py line 10, in Odd\.admit: KeyError: 'batch', at request 3\."),
        ("standard", r"policies\[1\]: Odd\.admit must return .*, got Delay\(duration_ps=0\), at request 3\."),
    ],
)
def test_a_wrong_answer_within_all_of_is_told_by_the_one_who_gave_it(tmp_path, slo_class, told):
    file = tmp_path / "odd.py"
    file.write_text(OWN)
    inner = {"name": "all-of", "policies": ["always", f"{file}:Odd"]}
    scenario = small(workload={"requests": 20, "rate": "10/s", "priority": slo_class})
    with pytest.raises(HeadwayError, match=told):
        headway.simulate(scenario, admission={"name": "all-of", "policies": [inner]})


# --- a burst trace ----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout (../shared/traces)")
def test_shedding_on_the_azure_code_trace_shows_its_trade():
    scenario = {
        "workload": {
            "trace": {"path": str(TRACES / "azure-llm-2023" / "AzureLLMInferenceTrace_code.csv"), "limit": 2000}
        },
        "cluster": {"instances": 1},
        "policies": {"routing": "least-loaded"},
        "slo": {"ttft": "1s"},
    }
    deadline = {"name": "deadline", "targets": {"standard": "1s"}}
    given = {"always": "always", "deadline": deadline}
    found = {name: headway.simulate(scenario, admission=admission).summary() for name, admission in given.items()}
    counts = {name: summary["requests"] for name, summary in found.items()}
    assert counts["always"]["rejected"] == 0 and counts["always"]["completed"] == 2000
    assert counts["deadline"]["rejected"] > 0
    assert counts["deadline"]["completed"] + counts["deadline"]["rejected"] == 2000
    goodput = {name: summary["slo"]["goodput_ratio"] for name, summary in found.items()}  # per planned request
    assert goodput["deadline"] > goodput["always"]
    served = {name: summary["slo"]["ttft_attainment"] for name, summary in found.items()}
    assert served["deadline"] > served["always"]


@pytest.mark.parametrize("admission", ["max-concurrency", "all-of"])
def test_max_concurrency_is_a_hard_cap_beside_a_queue_of_the_router_s_too(admission: str) -> None:
    """Many are admitted while nothing is in flight and wait; when the queue opens, no more than the cap go out."""
    cap: dict[str, Any] = {"name": "max-concurrency", "max_queue": 4}
    result = headway.simulate(
        {
            "seed": 3,
            "workload": {"requests": 300, "rate": "200/s", "prompt_tokens": 200, "output_tokens": 50},
            "cluster": {"instances": 2},
            "signals": {"poll_interval": "300ms"},
            "policies": {
                "admission": cap if admission == "max-concurrency" else {"name": "all-of", "policies": ["always", cap]},
                "flow": {"name": "bands", "saturation": "utilization", "queue_threshold": 1},
            },
        }
    )
    outcomes = result.summary()["requests"]
    assert busiest(result.requests) == 4
    assert outcomes["rejected"] > 0
    assert outcomes["completed"] + outcomes["rejected"] + outcomes["timed_out"] == 300


def busiest(requests: Any) -> int:
    """The most requests that were at instances at a time."""
    changes = []
    for row in requests.rows():
        if row["routed_ps"] >= 0 and row["outcome"] == "completed":
            changes += [(row["routed_ps"], 1), (row["finished_ps"], -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def test_tenant_fair_shares_what_the_instances_that_serve_can_take() -> None:
    there = views(3)
    there[2].state = "stopped"
    bench = Bench("tenant-fair", there)
    assert bench.policy.limit == 2 * 256
    there[1].state = "draining"
    bench.policy.observe(InstanceChanged(0, there[1], "ready"))
    assert bench.policy.limit == 256
