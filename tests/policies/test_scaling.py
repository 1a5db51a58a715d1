"""Autoscalers: each one's arithmetic by hand, and the examples of those that others have documented."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway.policies  # noqa: F401
from drawing import draws
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.answers import check_scale
from headway.types import PS_PER_SECOND, Scale
from headway.views.instance import InstanceView
from headway.views.pool import LoadSample, PoolView

NAMES = [
    "static",
    "queue-threshold",
    "slo-driven",
    "target-utilization",
    "kv-token",
    "predictive",
    "hpa",
    "concurrency",
    "target-load-scaling",
]


@dataclasses.dataclass
class Pool:
    """A `PoolView` that says what it is told to."""

    id: str = "default"
    model: str = "m"
    role: str = "both"
    minimum: int = 1
    maximum: int = 1000
    slots: int = 100
    kv_tokens: int = 10_000
    now_ps: int = 0
    since_scaled: float | None = None
    replicas: int = 4
    serving: int = 4
    starting: int = 0
    pending: int = 0
    inflight: int = 10
    inflight_tokens: int = 1000
    load: float = 0.0
    surge: float | None = None  # load over windows of 10 s or less
    came: float = 0.0
    history: Sequence[LoadSample] = ()
    attainment: Mapping[str, float] = dataclasses.field(default_factory=dict)
    mean_ttft: float | None = None
    p99_ttft: float | None = None
    mean_latency: float | None = None
    p99_latency: float | None = None
    queued: float = 0.0
    running: float = 0.0
    kv_utilization: float = 0.0
    busy: float = 0.0

    @property
    def now(self) -> float:
        return self.now_ps / PS_PER_SECOND

    def concurrency(self, seconds: float) -> float:
        return self.load if self.surge is None or seconds > 10 else self.surge

    def rate(self, seconds: float) -> float:
        return self.came

    def output_rate(self, seconds: float) -> float:
        return 0.0


def pool(now: float = 0, replicas: int = 4, **known: Any) -> Pool:
    known = {"serving": replicas - known.get("starting", 0), **known}
    return Pool(now_ps=round(now * PS_PER_SECOND), replicas=replicas, **known)


def make(name: str, **parameters: Any) -> Any:
    return registry.build("scaling", {"name": name, **parameters}, "policies.scaling")


def after(policy: Any, view: Pool) -> int:
    """The replicas that a pool then has."""
    answer = policy.scale(view)
    check_scale(policy, answer, view) if answer is not None else None
    return view.replicas if answer is None else answer.replicas


def test_the_pool_of_these_tests_shows_only_what_the_real_one_does():
    real = PoolView("p", "m", "both", 1, 2, [InstanceView(0, "a")], block_tokens=16)
    shown = {name for name in dir(Pool()) if not name.startswith("_")} - {"load", "surge", "came"}
    assert not [name for name in shown if not hasattr(real, name)]


def test_all_are_there_and_say_what_they_do():
    assert sorted(registry.names("scaling")) == sorted(NAMES)
    for entry in registry.entries("scaling"):
        assert 20 <= len(entry.summary) <= 120 and ". " not in entry.summary, entry.name
        assert inspect.signature(entry.make.scale).parameters.keys() == {"self", "pool"}


def test_an_unknown_one_is_told():
    with pytest.raises(
        HeadwayError, match=r"^policies\.scaling: no scaling policy is called 'hpb'\. Did you mean 'hpa'\?"
    ):
        make("hpb")


def test_static_never_changes_anything():
    assert make("static").scale(pool(queued=1000, pending=1000, kv_utilization=1)) is None


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("static", "concurrency", "predictive")])
def test_a_pool_without_replicas_gets_one_when_requests_wait(name):
    policy = make(name)
    assert policy.scale(pool(replicas=0, minimum=0, inflight=0)) is None
    woken = policy.scale(pool(replicas=0, minimum=0, inflight=0, pending=3))
    assert woken.replicas == 1
    assert name == "target-load-scaling" or woken.reason == "3 requests wait, and there is no replica"
    assert policy.scale(pool(replicas=1, starting=1, minimum=0, inflight=0, pending=3)) is None


# --- queue-threshold ---------------------------------------------------------------------------------------------


def test_auto_scale_up_on_sustained_high_load():
    # Given deployment config "llama-70b-v1" has 2 replicas
    policy = make("queue-threshold", above=5)

    def config(now: float) -> Pool:
        return pool(now, replicas=2, id="llama-70b-v1", queued=8.0)

    # And queue depth exceeds threshold for 60 seconds
    assert policy.scale(config(0)) is None
    assert policy.scale(config(30)) is None
    # When auto-scale policy evaluates
    decision = policy.scale(config(60))
    # Then scale decision is SCALE_UP
    assert decision == Scale(3, "8 requests wait for each replica, and more than 5 did for 60 s")


def test_a_queue_that_was_short_in_between_has_not_lasted():
    policy = make("queue-threshold", above=5)
    depths = {0: 8.0, 30: 5.0, 60: 8.0, 90: 8.0, 120: 8.0}
    assert [after(policy, pool(now, queued=depth)) for now, depth in depths.items()] == [4, 4, 4, 4, 5]


def test_the_clock_of_the_queue_begins_anew_after_a_change():
    policy = make("queue-threshold", above=5, step=2)
    found = [after(policy, pool(now, queued=20.0)) for now in range(0, 240, 30)]
    assert found == [4, 4, 6, 4, 4, 6, 4, 4]


def test_requests_at_the_router_wait_too_and_replicas_on_their_way_count():
    policy = make("queue-threshold", above=5, sustained_s=0)
    assert after(policy, pool(queued=2.0, pending=12)) == 4  # (8 + 12) / 4
    assert after(policy, pool(queued=2.0, pending=13)) == 5
    assert after(policy, pool(queued=4.0, pending=10, starting=2)) == 4  # (2 · 4 + 10) / 4


def test_a_queue_that_stays_short_takes_one_replica_away():
    policy = make("queue-threshold", below=0.5)
    found = [after(policy, pool(now, queued=0.25)) for now in range(0, 660, 60)]
    assert found == [4] * 5 + [3] + [4] * 5
    assert after(make("queue-threshold", sustained_down_s=0), pool(replicas=1)) == 1
    assert after(make("queue-threshold", sustained_down_s=0), pool(replicas=1, inflight=0)) == 0


def test_below_has_to_be_less_than_above():
    with pytest.raises(
        HeadwayError, match=r"^policies\.scaling: queue-threshold: 'below' must be less than 'above', got 5 and 5\.$"
    ):
        make("queue-threshold", above=5, below=5)


# --- slo-driven --------------------------------------------------------------------------------------------------


def test_a_missed_slo_adds_a_quarter_and_then_rests():
    policy = make("slo-driven")
    bad = {"batch": 1.0, "realtime": 0.8}
    assert policy.scale(pool(60, replicas=8, attainment=bad)) == Scale(
        10, "80.0% of realtime met their SLO, below 95.0%"
    )
    assert after(policy, pool(90, replicas=10, starting=2, attainment=bad, since_scaled=30)) == 10
    assert after(policy, pool(240, replicas=10, starting=2, attainment=bad, since_scaled=180)) == 10  # not up yet
    assert after(policy, pool(270, replicas=10, attainment=bad, since_scaled=210)) == 10  # up 30 s ago at most
    assert after(policy, pool(300, replicas=10, attainment=bad, since_scaled=240)) == 13
    assert after(make("slo-driven"), pool(replicas=1, attainment=bad)) == 2


def test_a_kept_slo_and_a_low_load_take_one_away():
    good = {"standard": 0.995}
    assert policy_after(good, load=209.0) == 3  # at most 70 on each of three
    assert policy_after(good, load=211.0) == 4
    assert policy_after({"standard": 0.98}, load=1.0) == 4  # kept, but not comfortably
    assert policy_after(good, load=1.0, since_scaled=299) == 4
    assert policy_after(good, load=1.0, minimum=4) == 4
    assert policy_after({}, load=0.0) == 4  # there may be no SLO at all


def policy_after(attainment: Mapping[str, float], **known: Any) -> int:
    return after(make("slo-driven"), pool(600, attainment=attainment, **known))


def test_low_is_meant_against_the_load_at_which_the_slo_was_missed():
    policy = make("slo-driven")
    assert after(policy, pool(0, attainment={"a": 0.5}, load=80.0)) == 5  # 20 each
    assert after(policy, pool(600, replicas=5, attainment={"a": 1.0}, load=60.0, since_scaled=600)) == 5  # 15 each
    assert after(policy, pool(630, replicas=5, attainment={"a": 1.0}, load=56.0, since_scaled=630)) == 4  # 14 each
    assert after(policy, pool(1300, replicas=4, load=0.0, since_scaled=600)) == 3  # nothing ended


# --- target-utilization ------------------------------------------------------------------------------------------


def test_replicas_follow_utilisation():
    assert make("target-utilization").scale(pool(kv_utilization=0.84)) == Scale(
        5, "kv use 0.840 of 4 replicas, target 0.7"
    )
    assert after(make("target-utilization"), pool(kv_utilization=0.77)) == 4  # 10 % above the target
    assert after(make("target-utilization"), pool(kv_utilization=0.78)) == 5
    assert after(make("target-utilization"), pool(kv_utilization=1.0)) == 6
    assert after(make("target-utilization"), pool(replicas=6, starting=2, kv_utilization=1.0)) == 6  # 5.7 wanted
    assert after(make("target-utilization"), pool(replicas=5, starting=1, kv_utilization=1.0)) == 6


def test_a_pool_shrinks_to_the_most_that_was_wanted_for_a_while():
    policy = make("target-utilization")
    found = [after(policy, pool(now, kv_utilization=use)) for now, use in ((0, 0.3), (60, 0.5), (120, 0.1), (299, 0.1))]
    assert found == [4, 4, 4, 4]
    assert after(policy, pool(300, kv_utilization=0.1)) == 3  # what 0.5 at 60 s wanted
    assert after(policy, pool(360, kv_utilization=0.1)) == 1
    assert after(make("target-utilization", scale_down_delay_s=0), pool(kv_utilization=0.35)) == 2
    assert after(make("target-utilization", scale_down_delay_s=0), pool(inflight=0)) == 0


def test_it_declares_the_signal_it_reads():
    for signal, reported in (("kv", "kv_used"), ("batch", "running"), ("busy", "busy")):
        assert registry.entry_of(make("target-utilization", signal=signal)).reported == (reported,)
        assert registry.entry_of(make("hpa", metric=signal)).reported == (reported,)
    assert after(make("target-utilization", signal="batch"), pool(running=84.0)) == 5
    assert after(make("target-utilization", signal="busy"), pool(busy=0.84)) == 5
    assert registry.entry_of(make("hpa", metric="concurrency")).exact == ("concurrency",)


# --- kv-token ----------------------------------------------------------------------------------------------------


def test_kv_tokens_of_demand_and_supply():
    # A replica holds 8,000 tokens; demand / 0.85 may be 32,000.
    assert after(make("kv-token"), pool(kv_utilization=0.68)) == 4  # 27,200 tokens
    assert make("kv-token").scale(pool(kv_utilization=0.69)) == Scale(
        5, "demand 27,600 tokens, 8,000 on each of 4 replicas and 0 to come"
    )
    # Those that wait count with the mean prompt in flight, 100 tokens.
    assert after(make("kv-token"), pool(kv_utilization=0.68, queued=1.0)) == 5
    assert after(make("kv-token"), pool(kv_utilization=0.68, pending=400)) == 10  # 67,200 / 0.85 / 8,000 = 9.88
    assert after(make("kv-token"), pool(replicas=6, starting=2, kv_utilization=1.0)) == 6  # 40,000 / 0.85 = 47,059
    assert after(make("kv-token"), pool(replicas=5, starting=1, kv_utilization=1.0)) == 6


def test_kv_tokens_to_spare():
    eager = {"scale_down_delay_s": 0}
    assert after(make("kv-token", **eager), pool(kv_utilization=0.421)) == 4
    assert after(make("kv-token", **eager), pool(kv_utilization=0.42)) == 3  # 24,000 of 32,000 are spoken for
    assert after(make("kv-token", **eager), pool(kv_utilization=0.0)) == 1
    assert after(make("kv-token", **eager), pool(kv_utilization=0.0, inflight=0, inflight_tokens=0)) == 0
    assert after(make("kv-token"), pool(kv_utilization=0.0)) == 4
    # what is on its way is nothing to spare
    assert after(make("kv-token", **eager), pool(replicas=6, starting=2, kv_utilization=0.5)) == 6


def test_a_replica_that_was_saturated_with_less_holds_less():
    policy = make("kv-token")
    assert after(policy, pool(kv_utilization=0.3, queued=5.0)) == 6  # 14,000 / 0.85 = 16,471 of 3,000 each
    assert after(policy, pool(kv_utilization=0.3)) == 5  # 12,000 / 0.85 = 14,118
    assert after(policy, pool(kv_utilization=0.5, queued=5.0)) == 7  # 4,000 each by now; 22,000 / 0.85 = 25,882


# --- concurrency: Knative ----------------------------------------------------------------------------------------


def stable(policy: Any, view: Pool) -> Any:
    """A policy that looks for the first time, when nothing serves, and so does not begin in panic."""
    policy.scale(dataclasses.replace(view, now_ps=0, serving=1, load=0.0, surge=0.0))
    return policy


def kpa(view: Pool, **parameters: Any) -> int:
    return after(stable(make("concurrency", **parameters), view), view)


def test_fifty_requests_at_ten_a_pod_are_five_pods():
    assert kpa(pool(100, load=50.0), target=10, utilization=1) == 5


def test_a_hundred_requests_at_seventy_per_cent_of_ten_are_fifteen_pods():
    assert kpa(pool(100, load=100.0, surge=0.0), target=10) == 15


def test_the_slots_are_the_target_where_none_is_given():
    assert kpa(pool(100, load=281.0)) == 5
    assert kpa(pool(100, load=280.0)) == 4


def test_a_slow_scale_up_still_grows_by_one():
    # Knative's own case: rate 1.1, 3 requests, 2 pods, target 1
    assert kpa(pool(100, replicas=2, load=3.0), target=1, utilization=1, max_scale_up_rate=1.1) == 3


def test_pods_at_most_halve_and_at_most_multiply():
    assert kpa(pool(100, replicas=10, load=1.0), target=10) == 5
    assert kpa(pool(100, replicas=11, load=1.0), target=10) == 5
    assert kpa(pool(100, replicas=2, load=1000.0), target=10, max_scale_up_rate=3) == 6
    assert kpa(pool(100, replicas=1, load=0.0, inflight=0), target=10) == 0
    assert kpa(pool(100, replicas=1, load=0.001), target=10) == 1


def test_it_panics_when_the_short_window_wants_twice_the_pods_and_never_shrinks_then():
    policy = stable(make("concurrency", target=10, utilization=1), pool(replicas=4))

    def looks(now: float, load: float, surge: float, replicas: int = 4) -> int:
        return after(policy, pool(now, replicas=replicas, load=load, surge=surge))

    assert looks(100, 40.0, 70.0) == 4  # 7 of 8
    assert looks(102, 41.0, 71.0) == 8  # 8 of 8: panic
    assert looks(104, 45.0, 95.0) == 10
    assert looks(106, 45.0, 20.0, 10) == 10
    # 104 s was the last with a surge: 10 pods on 4 that were ready
    assert looks(164, 45.0, 20.0, 10) == 10
    assert looks(164.1, 45.0, 20.0, 10) == 5
    assert policy.scale(pool(200, replicas=5, load=21.0, surge=0.0)) == Scale(
        3, "stable: 21 requests over 60 s, 0 over 6 s, 10 a replica"
    )


def test_in_panic_the_larger_of_the_two_windows_counts():
    policy = stable(make("concurrency", target=10, utilization=1), pool(replicas=2))
    assert after(policy, pool(100, replicas=2, load=90.0, surge=40.0)) == 9


def test_it_begins_in_panic_where_more_than_one_serves():
    policy = make("concurrency", target=10)
    assert after(policy, pool(30, load=0.0, inflight=0)) == 4
    assert after(policy, pool(90, load=0.0, inflight=0)) == 4
    assert after(policy, pool(91, load=0.0, inflight=0)) == 2


def test_scaling_down_may_be_delayed():
    policy = stable(make("concurrency", target=10, utilization=1, scale_down_delay_s=60), pool(replicas=4))
    assert after(policy, pool(100, load=40.0)) == 4
    assert after(policy, pool(130, load=10.0)) == 4
    assert after(policy, pool(159, load=10.0)) == 4
    assert after(policy, pool(160, load=10.0)) == 2


def test_a_panic_window_is_the_shorter_one():
    with pytest.raises(
        HeadwayError, match=r"concurrency: panic_window_s must be at most stable_window_s, got 90 and 60\.$"
    ):
        make("concurrency", panic_window_s=90)
    assert make("concurrency", stable_window_s=120).windows_s == (120, 6)


# --- hpa: Kubernetes ---------------------------------------------------------------------------------------------

QUICK = {"down_window_s": 0}


def hpa(view: Pool, **parameters: Any) -> int:
    return after(make("hpa", **{**QUICK, **parameters}), view)


def test_twice_the_target_doubles_and_half_of_it_halves():
    assert hpa(pool(load=800.0), metric="concurrency", target=100) == 8
    assert hpa(pool(load=200.0), metric="concurrency", target=100) == 2


def test_fifty_replicas_at_ninety_of_seventy_five_per_cent_become_sixty():
    assert hpa(pool(replicas=50, kv_utilization=0.9), target=0.75) == 60


def test_within_the_tolerance_nothing_changes():
    assert hpa(pool(replicas=50, kv_utilization=0.82), target=0.75) == 50
    assert hpa(pool(replicas=50, kv_utilization=0.68), target=0.75) == 50
    assert hpa(pool(replicas=50, kv_utilization=0.82), target=0.75, tolerance=0.05) == 55


def test_replicas_that_are_not_ready_count_as_zero_above_the_target_and_not_at_all_below():
    assert hpa(pool(replicas=6, starting=2, kv_utilization=1.0), target=0.5) == 8
    assert hpa(pool(replicas=8, starting=4, kv_utilization=1.0), target=0.5) == 8  # with them it is just right
    assert hpa(pool(replicas=10, starting=6, kv_utilization=1.0), target=0.5) == 10  # and they do not turn it
    assert hpa(pool(replicas=8, starting=4, kv_utilization=0.25), target=0.5) == 2


def test_each_metric_has_a_target_of_its_own():
    assert hpa(pool(queued=10.0, pending=8)) == 1  # kv, of which nothing is used
    assert hpa(pool(queued=10.0, pending=8), metric="queue") == 8  # 12 a replica are 2.4 times 5; 100 % more at most
    assert hpa(pool(queued=10.0, pending=8), metric="queue", up_pods=10) == 10
    assert hpa(pool(load=420.0), metric="concurrency") == 6
    assert hpa(pool(running=84.0), metric="batch") == 5
    assert hpa(pool(busy=0.84), metric="busy") == 5


def test_a_pool_shrinks_to_the_highest_recommendation_of_five_minutes():
    policy = make("hpa", target=0.5)
    found = [after(policy, pool(now, kv_utilization=use)) for now, use in ((0, 0.1), (15, 0.375), (285, 0.1))]
    assert found == [4, 4, 4]  # what there was at first is a recommendation, too
    assert after(policy, pool(300, kv_utilization=0.1)) == 3
    assert after(policy, pool(315, replicas=3, kv_utilization=0.1)) == 1


def test_a_pool_may_grow_to_the_lowest_recommendation_of_a_while():
    policy = make("hpa", target=0.5, up_window_s=60)
    uses = ((0, 1.0), (30, 0.75), (60, 1.0), (90, 1.0))
    assert [after(policy, pool(now, kv_utilization=use)) for now, use in uses] == [4, 4, 6, 8]


def test_growth_is_limited_to_four_pods_or_the_double_in_fifteen_seconds():
    policy = make("hpa", metric="concurrency", target=1)
    replicas, found = 1, []
    for now in range(0, 75, 15):
        replicas = after(policy, pool(now, replicas=replicas, load=1000.0))
        found.append(replicas)
    assert found == [5, 10, 20, 40, 80]
    assert after(policy, pool(65, replicas=80, load=1000.0)) == 80  # 40 came in the last 15 s


def test_eighty_replicas_go_down_by_ten_per_cent_and_then_by_four():
    # The example of the Kubernetes documentation.
    policy = make("hpa", target=0.5, **QUICK, down_percent=10, down_pods=4, down_period_s=60)
    replicas, found = 80, [80]
    for now in range(0, 1200, 60):
        replicas = after(policy, pool(now, replicas=replicas, minimum=10, kv_utilization=0.0))
        found.append(replicas)
    assert found[:6] == [80, 72, 64, 57, 51, 45]
    assert [high - low for high, low in pairwise(found[6:13])] == [4] * 6
    assert found[-1] == 10


def test_the_smaller_change_may_be_selected_and_either_direction_disabled():
    assert hpa(pool(kv_utilization=1.0), target=0.1, up_select="min") == 8
    assert hpa(pool(replicas=40, kv_utilization=1.0), target=0.1, up_select="min") == 44
    assert hpa(pool(kv_utilization=1.0), target=0.1, up_select="disabled") == 4
    assert hpa(pool(kv_utilization=1.0), target=0.1, up_percent=None, up_pods=None) == 40
    assert hpa(pool(kv_utilization=0.1), target=1.0, down_select="disabled") == 4
    assert hpa(pool(kv_utilization=0.1), target=1.0, down_percent=50, down_pods=1, down_select="min") == 3
    assert hpa(pool(kv_utilization=0.1), target=1.0, down_percent=50, down_pods=1) == 2


# --- predictive --------------------------------------------------------------------------------------------------


def samples(rates: Mapping[float, float], stay: float = 10.0, step: float = 30.0) -> list[LoadSample]:
    """A history in which each request stays for so long."""
    return [LoadSample(round(at * PS_PER_SECOND), 4, rate, rate * stay, 0.0) for at, rate in rates.items()]


def test_a_rising_trend_is_followed_one_lead_time_ahead():
    rising = samples({at: 10 + at / 30 for at in range(0, 301, 30)})  # 20 a second now, 26 in 180 s
    policy = make("predictive", rate_per_replica=5, target=1)
    assert policy.scale(pool(300, history=rising)) == Scale(
        6, "26 requests a second expected within 180 s, 5 a replica"
    )
    assert after(make("predictive", rate_per_replica=5, target=0.5), pool(300, history=rising)) == 11
    assert after(make("predictive", rate_per_replica=5, target=1, lead_s=1), pool(300, history=rising)) == 5


def test_a_falling_trend_leaves_what_is_needed_now():
    falling = samples({at: 30 - at / 30 for at in range(0, 301, 30)})  # 20 a second now
    policy = make("predictive", rate_per_replica=2, target=1, scale_down_delay_s=0)
    assert after(policy, pool(300, replicas=20, history=falling)) == 10


def test_only_the_last_while_makes_the_trend():
    turned = samples({at: max(0, at - 600) / 30 for at in range(0, 901, 30)})  # flat, then rising to 10 a second
    policy = make("predictive", rate_per_replica=1, target=1, trend_s=300, lead_s=60)
    assert after(policy, pool(900, history=turned)) == 12


def test_what_a_replica_holds_is_learnt_by_littles_law():
    steady = samples(dict.fromkeys(range(0, 301, 30), 20.0), stay=10.0)
    # A request stays for 10 s, so 70 of the 100 slots hold 7 a second.
    assert after(make("predictive"), pool(300, replicas=1, history=steady)) == 3
    assert after(make("predictive", concurrency=20), pool(300, replicas=1, history=steady)) == 15  # 1.4 a second
    assert after(make("predictive"), pool(0, history=steady[:1])) == 4  # nothing is known yet


def test_a_season_is_blended_with_the_trend_once_there_is_one():
    day = dict.fromkeys(range(0, 3601, 30), 10.0) | {1230: 40.0, 1350: 90.0}
    policy = {
        "forecast": "seasonal",
        "period_s": 3000,
        "rate_per_replica": 1,
        "target": 1,
        "lead_s": 60,
        "trend_s": 120,
    }
    flat = samples({at: rate for at, rate in day.items() if at <= 3600} | dict.fromkeys(range(3630, 4201, 30), 10.0))
    # 1,230 s lies within 60 s after 4,200 s - 3,000 s, 1,350 s does not
    assert after(make("predictive", **policy), pool(4200, history=flat)) == 25
    assert after(make("predictive", **policy, blend=1), pool(4200, history=flat)) == 40
    assert after(make("predictive", **policy), pool(2900, replicas=20, history=flat[:97])) == 20
    early = make("predictive", **policy, scale_down_delay_s=0)
    assert after(early, pool(2400, replicas=20, history=flat[:81])) == 10


# --- all of them -------------------------------------------------------------------------------------------------

shares = st.floats(0, 1)
counts = st.integers(0, 10_000)


@st.composite
def seen(draw: Any) -> list[Pool]:
    """A pool at some checks."""
    views, now, history = [], 0, []
    for _ in range(draw(st.integers(1, 8))):
        now += draw(st.integers(1, 400)) * PS_PER_SECOND // 4
        serving, starting = draw(st.integers(0, 20)), draw(st.integers(0, 5))
        minimum = draw(st.integers(0, serving + starting))
        inflight = draw(counts)
        load = draw(st.floats(0, 1e4))
        history = [*history, LoadSample(now, serving + starting, draw(st.floats(0, 1e3)), load, 0.0)]
        views.append(
            Pool(
                minimum=minimum,
                maximum=25,
                now_ps=now,
                replicas=serving + starting,
                serving=serving,
                starting=starting,
                pending=draw(counts),
                inflight=inflight,
                inflight_tokens=inflight * 50,
                load=load,
                surge=draw(st.none() | st.floats(0, 1e4)),
                since_scaled=draw(st.none() | st.floats(0, 1e4)),
                attainment=draw(st.dictionaries(st.sampled_from(["a", "b"]), shares)),
                history=history,
                queued=draw(st.floats(0, 1e3)),
                running=draw(st.floats(0, 100)),
                kv_utilization=draw(shares),
                busy=draw(shares),
            )
        )
    return views


@pytest.mark.parametrize("name", NAMES)
@draws(10)
@given(seen())
def test_whatever_is_seen_the_answer_is_proper_and_the_same_again(name: str, views: list[Pool]) -> None:
    first, second = make(name), make(name)
    for view in views:
        answer = first.scale(view)
        if answer is not None:
            check_scale(first, answer, view)
            assert answer.replicas != view.replicas and answer.reason
        assert second.scale(view) == answer
