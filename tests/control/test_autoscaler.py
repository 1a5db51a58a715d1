"""The autoscaler: what it sees of a pool, when it looks, and what it decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawing import draws
from headway.control.autoscaler import Autoscaler, Decision, Triggers
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.user_policies import check_methods
from headway.types import NEVER, PS_PER_SECOND, SERVING, Path, Request, Scale
from headway.views.events import Finished, FirstToken, Handed, InstanceChanged, Routed
from headway.views.instance import InstanceView
from headway.views.pool import PoolView, RunningTotal

SECOND = PS_PER_SECOND
MINUTE = 60 * SECOND


def request(number: int, at: float = 0.0, tokens: int = 100, slo_class: str = "standard") -> Request:
    return Request(number, round(at * SECOND), tokens, Path((number,), (tokens,)), slo_class=slo_class)


def watch(first: int = 0, count: int = 4, ready: int = 2, role: str = "both", minimum: int = 1) -> PoolView:
    views = [
        InstanceView(index, f"i{index}", kv_blocks=100, max_batch_size=10) for index in range(first, first + count)
    ]
    for place, view in enumerate(views):
        view.role = role
        view.state = "ready" if place < ready else "stopped"
    return PoolView(f"pool-{first}", "m", role, minimum, count, views, block_tokens=16)


class Told:
    """Answers what it is told to, and remembers what it was shown."""

    windows_s: Sequence[float] | None = None

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[PoolView] = []

    def scale(self, pool: PoolView) -> Any:
        self.seen.append(pool)
        return self.answers.pop(0) if self.answers else None


def in_two_seconds(request: Request, first_ps: int, now_ps: int, outcome: str, output_tokens: int) -> bool | None:
    if request.slo_class == "none":
        return None
    return outcome == "completed" and now_ps - request.arrival_ps <= 2 * SECOND


def scaler(
    *pools: PoolView,
    policies: Sequence[Any] | None = None,
    interval_ps: int | None = 30 * SECOND,
    triggers: Triggers | None = None,
) -> Autoscaler:
    made = Autoscaler(pools, policies or [Told() for _ in pools], interval_ps, triggers, MINUTE, in_two_seconds)
    made.start(0)
    return made


class Traffic:
    """Sends events as a router would."""

    def __init__(self, made: Autoscaler) -> None:
        self.made = made
        self.views = {view.index: view for pool in made.pools for view in pool.views}
        self.where: dict[int, int] = {}

    def route(self, at: float, one: Request, index: int = 0, prefill: int | None = None) -> None:
        self.where[one.id] = index
        other = None if prefill is None else self.views[prefill]
        self.made.observe(Routed(round(at * SECOND), one, self.views[index], other))

    def first(self, at: float, one: Request) -> None:
        self.made.observe(FirstToken(round(at * SECOND), one, self.views[self.where[one.id]]))

    def hand(self, at: float, one: Request, prefill: int) -> None:
        self.made.observe(Handed(round(at * SECOND), one, self.views[self.where[one.id]], self.views[prefill]))

    def end(self, at: float, one: Request, outcome: str = "completed", tokens: int = 10) -> None:
        self.made.observe(Finished(round(at * SECOND), one, self.views[self.where[one.id]], outcome, tokens))

    def change(self, at: float, index: int, state: str) -> None:
        view = self.views[index]
        was, view.state = view.state, state
        self.made.observe(InstanceChanged(round(at * SECOND), view, was))


# --- windows -----------------------------------------------------------------------------------------------------


@draws(60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(1, 60)), max_size=200), st.integers(0, 9))
def test_the_area_below_a_level_is_that_of_every_picosecond(moves, start) -> None:
    kept = 60
    level, now = RunningTotal(start, kept), start
    levels: list[int] = []  # in each picosecond since the start
    for wait, height, back in moves:
        levels += [level.level] * wait
        now += wait
        level.set(now, height)
        since = max(start, now - back)
        area = level.upto(now) - level.upto(since)
        assert area == sum(levels[since - start :])
    assert len(level.times) <= 2 * (kept + 64) + 64


@draws(60)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9), st.integers(1, 60)), max_size=200))
def test_a_tally_is_what_came_after_an_instant(moves) -> None:
    tally, now, came = RunningTotal(0, 60), 0, []
    for wait, amount, back in moves:
        now += wait
        tally.add(now, amount)
        came.append((now, amount))
        assert tally.since(now - back) == sum(amount for at, amount in came if at > now - back)
    assert len(tally.times) <= 2 * (60 + 64) + 64


def test_a_log_keeps_no_more_than_its_windows_need() -> None:
    tally, level = RunningTotal(0, 100), RunningTotal(0, 100)
    for now in range(100_000):
        tally.add(now)
        level.set(now, now % 7)
    assert len(tally.times) < 400 and len(level.times) < 400
    assert tally.since(100_000 - 101) == 100


def test_a_pool_shows_its_load_over_windows() -> None:
    pool = watch()
    traffic = Traffic(made := scaler(pool))
    one, two = request(1, tokens=100), request(2, tokens=50)
    traffic.route(0, one)
    traffic.route(10, two, 1)
    assert (pool.inflight, pool.inflight_tokens) == (2, 150)
    traffic.end(15, one, tokens=40)
    pool.set_pending(18 * SECOND, 3)
    made.decide(20 * SECOND, "interval")
    assert (pool.inflight, pool.inflight_tokens, pool.pending) == (1, 50, 3)
    assert pool.concurrency(1) == 4
    assert pool.concurrency(10) == (2 * 5 + 1 * 3 + 4 * 2) / 10
    assert pool.concurrency(600) == (1 * 10 + 2 * 5 + 1 * 3 + 4 * 2) / 20  # since the start
    assert pool.rate(10) == 0.0  # that at 10 s is just outside
    assert pool.rate(10.5) == 1 / 10.5
    assert pool.rate(100) == 2 / 20  # that at the very start counts
    assert pool.output_rate(10) == 4.0
    assert (pool.slots, pool.kv_tokens, pool.now) == (10, 1600, 20.0)


def test_a_window_longer_than_what_is_kept_is_told() -> None:
    policy = Told()
    policy.windows_s = (90.0,)
    made = scaler(pool := watch(), policies=[policy])
    made.decide(200 * SECOND, "interval")
    pool.rate(90)
    for seconds in (90.1, 0.0, -1.0):
        with pytest.raises(
            HeadwayError,
            match=rf"^policies\.scaling: a window of {seconds:g} s is not available\. .* at most 90 s, the .*\.$",
        ):
            pool.concurrency(seconds)
    made = scaler(pool := watch())
    assert pool.rate(600) == 0.0


@draws(60)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 20),
            st.sampled_from(["route", "split", "hand", "end", "fail", "redirect", "crash", "pending"]),
            st.integers(0, 30),
        ),
        max_size=80,
    )
)
def test_what_a_pool_shows_is_what_happened(steps) -> None:
    """Against a plain account of who was where, second by second."""
    pools = (watch(0, 3, 3), watch(3, 3, 3))
    traffic = Traffic(made := scaler(*pools))
    there: list[dict[int, int]] = [{}, {}]  # tokens by request, by pool
    index_of: dict[int, tuple[int, int | None]] = {}
    requests: dict[int, Request] = {}
    loads: list[list[int]] = [[], []]  # by second
    came: list[list[int]] = [[], []]
    now, number = 0, 0
    for wait, what, pick in steps:
        for pool in (0, 1):
            loads[pool] += [len(there[pool]) + pools[pool].pending] * wait
        now += wait
        under_way = sorted(there[0])
        one = requests[under_way[pick % len(under_way)]] if under_way else None
        if what in ("route", "split"):
            number += 1
            one = requests[number] = request(number, now, tokens=10 + pick)
            prefill = 3 + pick % 3 if what == "split" else None
            index_of[number] = (pick % 3, prefill)
            traffic.route(now, one, pick % 3, prefill)
            for pool in (0,) if prefill is None else (0, 1):
                there[pool][number] = one.prompt_tokens
                came[pool].append(now)
        elif what == "pending":
            pools[pick % 2].set_pending(now * SECOND, pick)
        elif what == "crash":
            traffic.change(now, pick % 6, "stopped")
            traffic.change(now, pick % 6, "ready")
            for key, (decode, prefill) in index_of.items():
                if decode == pick % 6 or (prefill == pick % 6 and key in there[1]):
                    there[0].pop(key, None)
                    there[1].pop(key, None)
        elif one is not None and what == "hand":
            if index_of[one.id][1] is not None:
                traffic.hand(now, one, index_of[one.id][1])
                there[1].pop(one.id, None)
        elif one is not None:
            traffic.end(now, one, {"end": "completed", "fail": "failed", "redirect": "redirected"}[what])
            there[0].pop(one.id)
            there[1].pop(one.id, None)
    made.decide(now * SECOND, "interval")
    for pool in (0, 1):
        view = pools[pool]
        assert (view.inflight, view.inflight_tokens) == (len(there[pool]), sum(there[pool].values()))
        if now:
            for seconds in (1, 7, 60):
                span = min(seconds, now)
                assert view.concurrency(seconds) == sum(loads[pool][now - span :]) / span
                inside = [at for at in came[pool] if at > now - seconds]
                assert view.rate(seconds) == len(inside) * SECOND / (span * SECOND)


# --- latencies and states ----------------------------------------------------------------------------------------


def test_attainment_and_latencies_are_of_those_that_ended_in_the_window() -> None:
    pool = watch()
    traffic = Traffic(made := scaler(pool))
    for number in range(5):
        one = request(number, at=10 * number, slo_class="a" if number < 4 else "b")
        traffic.route(10 * number, one)
        traffic.first(10 * number + 0.5 + number, one)
        traffic.end(10 * number + 1 + number, one)  # after 1, 2, 3, 4 and 5 s
    late = request(9, at=40, slo_class="none")
    traffic.route(40, late)
    traffic.end(46, late, "timed_out")
    made.decide(50 * SECOND, "interval")
    assert pool.attainment == {"a": 0.5, "b": 0.0}
    assert (pool.mean_ttft, pool.mean_latency) == (2.5, 3.0)
    assert pool.p99_latency == 4 + 0.96 and pool.p99_ttft == 3.5 + 0.96
    made.decide(72 * SECOND, "interval")  # those that ended at 1 s and 12 s are gone
    assert pool.attainment == {"a": 0.0, "b": 0.0} and pool.mean_latency == 4.0
    made.decide(200 * SECOND, "interval")
    assert pool.attainment == {}
    assert (pool.mean_ttft, pool.p99_ttft, pool.mean_latency, pool.p99_latency) == (None,) * 4


@draws(40)
@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=300))
def test_p99_lies_between_the_two_values_next_to_it(latencies) -> None:
    pool = watch()
    scaler(pool)
    for latency in latencies:
        pool.on_finished(5 * SECOND, "a", True, -1, latency)
    pool.now_ps = 5 * SECOND
    ordered = sorted(latencies)
    exact = (len(ordered) - 1) * 0.99
    low, high = ordered[int(exact + 1e-9)], ordered[min(len(ordered) - 1, int(exact + 1e-9) + 1)]
    assert low / SECOND <= pool.p99_latency <= high / SECOND
    assert pool.p99_ttft is None and pool.mean_latency == sum(latencies) / (len(latencies) * SECOND)


def test_a_prompt_that_is_computed_apart_is_in_both_pools_until_it_is_handed_over() -> None:
    prefill, decode = watch(0, role="prefill"), watch(4, role="decode")
    traffic = Traffic(made := scaler(prefill, decode))
    one = request(1)
    traffic.route(0, one, 4, prefill=0)
    assert (prefill.inflight, decode.inflight) == (1, 1)
    traffic.hand(1, one, 0)
    assert (prefill.inflight, decode.inflight) == (0, 1)
    traffic.first(1, one)
    traffic.end(3, one, tokens=30)
    assert (prefill.inflight, decode.inflight) == (0, 0)
    made.decide(10 * SECOND, "interval")
    assert prefill.attainment == decode.attainment == {"standard": 0.0}
    assert prefill.mean_ttft == 1.0 and prefill.output_rate(10) == 0.0 and decode.output_rate(10) == 3.0
    two = request(2, at=10)
    traffic.route(10, two, 4, prefill=0)
    traffic.end(11, two, "failed")  # before it was handed over
    assert (prefill.inflight, decode.inflight) == (0, 0)


def test_a_request_that_is_redirected_keeps_its_first_token_and_has_not_ended() -> None:
    pool = watch()
    traffic = Traffic(made := scaler(pool))
    one = request(1)
    traffic.route(0, one)
    traffic.first(0.5, one)
    traffic.end(1, one, "redirected", tokens=0)
    assert pool.inflight == 0 and not pool.attainment
    traffic.route(1, one, 1)
    traffic.end(1.5, one)
    made.decide(2 * SECOND, "interval")
    assert pool.attainment == {"standard": 1.0} and pool.mean_ttft == 0.5 and pool.inflight == 0


def test_what_a_lost_instance_had_is_gone_and_may_fail_or_come_again() -> None:
    pool = watch()
    traffic = Traffic(made := scaler(pool))
    one, two = request(1), request(2)
    traffic.route(0, one)
    traffic.route(0, two)
    traffic.change(1, 0, "stopped")
    assert pool.inflight == 0
    traffic.end(1, one, "failed")
    traffic.route(1, two, 1)
    assert pool.inflight == 1
    traffic.end(2, two)
    made.decide(2 * SECOND, "interval")
    assert pool.inflight == 0 and pool.attainment == {"standard": 0.5}
    traffic.change(3, 1, "draining")
    assert pool.inflight == 0


def test_replicas_are_those_that_are_there_or_on_their_way() -> None:
    pool = watch(count=7)
    states = ("provisioning", "loading", "warming", "ready", "draining", "unreachable", "stopped")
    for view, state in zip(pool.views, states, strict=True):
        view.state, view.queued, view.running, view.kv_used, view.busy = state, 3, 5, 40, 0.5
    pool.views[3].queued, pool.views[3].kv_used, pool.views[3].busy = 6, 80, 1.0
    assert (pool.replicas, pool.serving, pool.starting) == (5, 2, 2)
    assert (pool.queued, pool.running, pool.kv_utilization, pool.busy) == (4.5, 5.0, 0.6, 0.75)
    nobody = watch(ready=0)
    assert (nobody.queued, nobody.running, nobody.kv_utilization, nobody.busy) == (0.0, 0.0, 0.0, 0.0)


# --- checks ------------------------------------------------------------------------------------------------------


def test_checks_are_at_multiples_of_the_interval_from_the_start() -> None:
    made = Autoscaler([watch()], [Told()], 30 * SECOND, None, MINUTE, in_two_seconds)
    assert made.next_ps == NEVER
    made.start(7)
    assert made.next_ps == 30 * SECOND + 7
    made.decide(made.next_ps, "interval")
    assert made.next_ps == 60 * SECOND + 7
    made.decide(61 * SECOND, "queue_depth")
    assert made.next_ps == 90 * SECOND + 7
    assert scaler(watch(), interval_ps=None).next_ps == NEVER


def test_a_check_becomes_history() -> None:
    pool, policy = watch(), Told()
    traffic = Traffic(made := scaler(pool, policies=[policy]))
    for number in range(6):
        traffic.route(5 * number, request(number, 5 * number))
    pool.views[0].queued = 3
    made.decide(30 * SECOND, "interval")
    traffic.route(30, request(7, 30))
    made.decide(40 * SECOND, "rate_change")
    made.decide(40 * SECOND, "rate_change")
    first, second = pool.history
    assert (first.at_ps, first.replicas, first.rate, first.concurrency, first.queued) == (30 * SECOND, 2, 0.2, 3.5, 1.5)
    assert (second.at_ps, second.rate, second.concurrency) == (40 * SECOND, 0.1, 7.0)
    assert policy.seen == [pool] * 3


def test_history_is_bounded() -> None:
    pool = watch()
    made = scaler(pool)
    for number in range(70_000):
        made.decide(number * SECOND, "interval")
    assert 40_000 < len(pool.history) <= 1 << 16
    assert pool.history[-1].at_ps == 69_999 * SECOND


def test_decisions_are_the_changes_within_bounds() -> None:
    pools = watch(0), watch(4), watch(8), watch(12)
    policies = [Told(Scale(3, "more")), Told(Scale(2, "as many")), Told(None), Told(Scale(0, "fewer"))]
    made = scaler(*pools, policies=policies)
    assert made.decide(30 * SECOND, "attainment") == [
        Decision(0, 2, 3, "more", "attainment", pools[0].metrics()),
        Decision(3, 2, 1, "fewer", "attainment", pools[3].metrics()),
    ]
    assert scaler(watch(), policies=[Told(Scale(10**30))]).decide(0, "interval")[0].after == 4


def test_a_pool_below_its_minimum_is_brought_up_to_it() -> None:
    pool = watch(ready=1, minimum=2)
    made = scaler(pool)
    expected = [Decision(0, 1, 2, "bounds: 2 replicas", "interval", pool.metrics())]
    assert made.decide(30 * SECOND, "interval") == expected


def test_a_decision_has_the_metrics_that_the_policy_saw() -> None:
    pool = watch()
    made = scaler(pool, policies=[Told(Scale(3, "more"))])
    traffic = Traffic(made)
    sent = [request(number, number) for number in range(6)]
    for one in sent:
        traffic.route(one.id, one)
    traffic.end(8, sent[0])
    pool.views[0].queued, pool.views[1].queued = 3, 0
    (decision,) = made.decide(10 * SECOND, "interval")
    metrics = decision.metrics
    assert (metrics.replicas, metrics.serving, metrics.starting) == (2, 2, 0)
    assert (metrics.inflight, metrics.pending, metrics.utilization) == (5, 0, 5 / 20)
    assert metrics.rate == pool.rate(made.window_ps / SECOND) > 0
    assert metrics.attainment == {"standard": 0.0}
    assert metrics.mean_latency_s == metrics.p99_latency_s == 8.0
    assert metrics.signals == {"queued": 1.5, "running": 0.0, "kv_utilization": 0.0, "busy": 0.0}


def test_a_decision_leaves_out_signals_that_the_run_does_not_maintain() -> None:
    pool = watch()
    for view in pool.views:
        view.hide("kv_used", "busy")
    (decision,) = scaler(pool, policies=[Told(Scale(3))]).decide(10 * SECOND, "interval")
    assert list(decision.metrics.signals) == ["queued", "running"]


def test_since_scaled_counts_from_when_a_change_was_carried_out() -> None:
    pool = watch()
    made = scaler(pool)
    assert pool.since_scaled is None
    made.on_scaled(30 * SECOND, 0)
    made.decide(45 * SECOND, "interval")
    assert pool.since_scaled == 15.0


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        (3, "3"),
        ("up", "'up'"),
        (Scale(-1), r"Scale\(replicas=-1, reason=''\)"),
        (Scale(2.0), r"Scale\(replicas=2.0, reason=''\)"),  # type: ignore[arg-type]
        (Scale(True), r"Scale\(replicas=True, reason=''\)"),
        (Scale(1, None), r"Scale\(replicas=1, reason=None\)"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_answer_is_told_with_its_pool_and_time(answer, shown) -> None:
    made = scaler(watch(), policies=[Told(answer)])
    sentence = (
        r"^policies\.scaling: Told\.scale must return None, or a Scale with a whole number of replicas that is not "
        rf"negative, got {shown}, for pool 'pool-0' at 30 s\.$"
    )
    with pytest.raises(HeadwayError, match=sentence):
        made.decide(30 * SECOND, "interval")


def test_a_policy_of_ones_own_needs_the_method() -> None:
    class Wrong:
        def scale(self) -> None:
            return None

    check_methods("scaling", Told(), "policies.scaling")
    with pytest.raises(HeadwayError, match=r"Wrong\.scale must accept 1 argument after self"):
        check_methods("scaling", Wrong(), "policies.scaling")


NAMES = registry.names("scaling")


@draws(40)
@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 40), st.integers(0, 100)), min_size=1, max_size=25),
    st.integers(0, 2),
    st.integers(2, 4),
)
def test_decisions_lie_within_the_bounds_whatever_the_load(name, loads, minimum, maximum) -> None:
    pool = watch(count=maximum, minimum=minimum)
    made = scaler(pool, policies=[registry.build("scaling", name, "policies.scaling")])
    traffic, now, number, under_way = Traffic(made), 0, 0, []
    for arrivals, ends, kv in loads:
        for _ in range(arrivals):
            number += 1
            under_way.append(request(number, now))
            traffic.route(now, under_way[-1], number % maximum)
        for one in under_way[:ends]:
            traffic.end(now + 1, one)
        del under_way[:ends]
        for view in pool.views:
            view.queued, view.kv_used, view.running = arrivals, kv, min(10, arrivals)
        now += 30
        for decision in made.decide(now * SECOND, "interval"):
            assert minimum <= decision.after <= maximum and decision.after != decision.before == pool.replicas
            assert decision.reason
            change = [view for view in pool.views if (view.state in SERVING) == (decision.after < decision.before)]
            for view in change[: abs(decision.after - decision.before)]:
                traffic.change(now, view.index, "stopped" if view.state in SERVING else "ready")
            made.on_scaled(now * SECOND, 0)
            assert pool.replicas == decision.after
        under_way = [one for one in under_way if one.id in made.stays]


# --- triggers ----------------------------------------------------------------------------------------------------


def test_without_triggers_nothing_is_due() -> None:
    assert scaler(watch()).trigger(10**15) is None


def test_a_long_queue_is_a_trigger_but_not_within_the_gap() -> None:
    pool = watch()
    made = scaler(pool, triggers=Triggers(queue_depth=4, gap_ps=15 * SECOND))
    pool.views[0].queued, pool.views[3].queued = 6, 100  # the last one does not serve
    pool.set_pending(SECOND, 2)
    assert made.trigger(20 * SECOND) is None  # 8 of two replicas
    pool.set_pending(SECOND, 3)
    assert made.trigger(15 * SECOND - 1) is None
    assert made.trigger(15 * SECOND) == "queue_depth"
    made.decide(15 * SECOND, "queue_depth")
    assert made.trigger(20 * SECOND) is None
    assert made.trigger(30 * SECOND) == "queue_depth"


def test_a_pool_that_cannot_grow_hears_of_no_queue() -> None:
    pool = watch(ready=4)
    made = scaler(pool, triggers=Triggers(queue_depth=1, gap_ps=0))
    pool.set_pending(0, 1000)
    assert made.trigger(SECOND) is None
    Traffic(made).change(2, 0, "draining")
    assert made.trigger(3 * SECOND) == "queue_depth"


def test_requests_that_wait_for_a_pool_of_none_are_a_trigger() -> None:
    made = scaler(pool := watch(ready=0, minimum=0), triggers=Triggers(queue_depth=100, gap_ps=0))
    assert made.trigger(SECOND) is None
    pool.set_pending(SECOND, 1)
    assert made.trigger(SECOND) == "queue_depth"


def test_attainment_below_the_target_in_any_class_is_a_trigger() -> None:
    traffic = Traffic(made := scaler(watch(), triggers=Triggers(attainment=0.5, gap_ps=0)))
    for number, latency in enumerate((1, 1, 3, 3)):
        one = request(number, slo_class="a" if number < 2 else "b")
        traffic.route(0, one)
        if number < 3:
            traffic.end(latency, one)
            assert made.trigger(round(latency * SECOND)) == (None if number < 2 else "attainment")
    assert made.trigger(62 * SECOND) == "attainment"
    assert made.trigger(63 * SECOND) is None  # it has left the window


def test_utilisation_has_to_last() -> None:
    triggers = Triggers(high=0.5, low=0.1, sustained_ps=20 * SECOND, gap_ps=0)
    traffic = Traffic(made := scaler(watch(), triggers=triggers))
    many = [request(number) for number in range(12)]
    assert made.trigger(19 * SECOND) is None
    assert made.trigger(20 * SECOND) == "utilization"  # idle since the start
    for one in many[:11]:
        traffic.route(30, one)
    assert made.trigger(49 * SECOND) is None
    traffic.end(49, many[0])  # 10 of 20 slots are not above a half
    assert made.trigger(50 * SECOND) is None
    traffic.route(55, many[11])
    assert made.trigger(75 * SECOND - 1) is None
    assert made.trigger(75 * SECOND) == "utilization"
    traffic.change(76, 2, "ready")  # 11 of 30 slots
    assert made.trigger(200 * SECOND) is None


def test_a_pool_at_its_minimum_hears_of_no_low_utilisation() -> None:
    assert scaler(watch(ready=1), triggers=Triggers(low=0.5, gap_ps=0)).trigger(SECOND) is None
    assert scaler(watch(ready=2), triggers=Triggers(low=0.5, gap_ps=0)).trigger(SECOND) == "utilization"


def test_a_rate_unlike_that_of_the_last_check_is_a_trigger() -> None:
    traffic = Traffic(made := scaler(watch(), triggers=Triggers(rate_change=0.5, gap_ps=0)))
    assert made.trigger(0) is None
    for number in range(60):
        traffic.route(number, request(number))
    assert made.trigger(60 * SECOND) == "rate_change"
    made.decide(60 * SECOND, "rate_change")  # 59 in the last minute, since that at 0 s is just outside
    for number in range(60, 89):
        traffic.route(number, request(number))
        traffic.route(number, request(1000 + number))
        assert made.trigger(number * SECOND) == (None if number < 88 else "rate_change")  # 89 are more than 88.5
