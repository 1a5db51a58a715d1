"""What a router knows of an instance: its own counts and windows at event boundaries, estimates, room, and the words
with which what nobody declares is refused."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from headway import ADMIT, ClusterView, Context, HeadwayError, InstanceView, Request, Route
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.errors import UndeclaredSignal
from headway.experiment.engines import engines
from headway.policies.priority import NoPriority
from headway.policies.registry import Entry, build
from headway.scenario.scenario import Scenario
from headway.types import NO_PRIORITY, PS_PER_SECOND, Path

SECOND = PS_PER_SECOND
MS = SECOND // 1000
RECENT = ("recent_ttft", "recent_tpot", "tokens_per_second")


class Steps:
    """An estimator: a millisecond a prompt token, ten a decode, one a thousand tokens of context."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return (prefill_tokens + 10 * decodes + context / 1000) / 1000


class Sender:
    """Sends request n to instance n % 2, with a quarter of its prompt believed cached there."""

    def __init__(self, *exact: str) -> None:
        self.entry = Entry("routing", "sender", Sender, exact, (), False)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return Route(cluster.instances[request.id % 2].id, cached_tokens=request.prompt_tokens // 4)


def plane(*exact: str) -> ControlPlane:
    context = Context([InstanceView(0, "i0"), InstanceView(1, "i1")], Random, Steps(), 16)
    return ControlPlane(context, build("admission", "always", ""), NoPriority(), Sender(*exact))


def request(number: int, tokens: int = 100, arrival_ps: int = 0) -> Request:
    return Request(number, arrival_ps, tokens, Path((4 * number + 1,), (tokens,)))


# --- the router's own counts ---------------------------------------------------------------------------------------


def counts(view: InstanceView) -> tuple[int, ...]:
    lifetime = (view.routed, view.completed, view.output_tokens)
    return view.inflight, view.inflight_tokens, view.pending_prefill_tokens, view.decode_tokens, *lifetime


def test_the_counts_move_with_routing_the_first_token_and_the_end() -> None:
    control = plane()
    view, other = control.cluster.instances
    control.arrive(0, request(0, 100))
    control.arrive(0, request(2, 40))
    assert counts(view) == (2, 140, 105, 0, 2, 0, 0)
    control.on_first_token(1, 0)
    assert counts(view) == (2, 140, 30, 100, 2, 0, 0)
    control.on_first_token(2, 2)
    control.on_finished(3, 0, "completed", 7)
    assert counts(view) == (1, 40, 0, 40, 2, 1, 7)
    control.on_finished(4, 2, "timed_out", 5)  # its tokens were generated, but it did not complete
    assert counts(view) == (0, 0, 0, 0, 2, 1, 12)
    control.arrive(5, request(4, 60))
    control.on_finished(6, 4, "timed_out", 0)  # without a first token
    assert counts(view) == (0, 0, 0, 0, 3, 1, 12)
    assert counts(other) == (0,) * 7


def test_a_prompt_without_anything_pending_counts_as_decoding_all_the_same() -> None:
    control = plane()
    view = control.cluster.instances[0]
    control.flights.send(Flight(request(0, 64), view, 64, 0, 0.0, NO_PRIORITY.hints, ""))
    assert (view.pending_prefill_tokens, view.decode_tokens) == (0, 0)
    control.on_first_token(1, 0)
    assert view.decode_tokens == 64
    control.on_finished(1, 0, "completed", 1)
    assert view.decode_tokens == 0


# --- the last ten seconds ------------------------------------------------------------------------------------------


def recent(control: ControlPlane, now_ps: int, index: int = 0) -> tuple[float | None, ...]:
    control.cluster.now_ps = now_ps
    return tuple(getattr(control.cluster.instances[index], name) for name in RECENT)


def test_means_are_over_what_happened_in_the_last_ten_seconds_there() -> None:
    control = plane("recent")
    assert recent(control, 0) == (None, None, 0.0)
    for number, arrival in ((0, 0), (2, SECOND), (4, SECOND), (1, 0)):
        control.arrive(arrival, request(number, arrival_ps=arrival))
    control.on_first_token(2 * SECOND, 0)  # after 2 s
    control.on_first_token(5 * SECOND, 2)  # after 4 s
    assert recent(control, 5 * SECOND) == (3.0, None, 0.0)
    control.on_finished(5 * SECOND, 0, "completed", 11)  # 3 s for ten tokens after the first
    control.on_finished(6 * SECOND, 2, "timed_out", 9)  # has no time per token
    assert recent(control, 6 * SECOND) == (3.0, 0.3, 2.0)
    control.on_first_token(7 * SECOND, 4)
    control.on_finished(7 * SECOND, 4, "completed", 1)  # nor has a single token
    assert recent(control, 7 * SECOND) == (4.0, 0.3, 2.1)
    assert recent(control, 7 * SECOND, 1) == (None, None, 0.0)
    assert recent(control, 12 * SECOND - 1) == (4.0, 0.3, 2.1)
    assert recent(control, 12 * SECOND) == (5.0, 0.3, 2.1)  # the first token of 2 s has left
    assert recent(control, 15 * SECOND) == (6.0, None, 1.0)
    assert recent(control, 17 * SECOND) == (None, None, 0.0)


def test_an_answer_that_came_all_at_once_says_nothing_of_the_time_per_token() -> None:
    control = plane("recent")
    control.arrive(0, request(0, 100))
    control.on_finished(3 * SECOND, 0, "completed", 20)
    assert recent(control, 3 * SECOND) == (None, None, 2.0)


def test_the_windows_are_there_for_those_who_declare_them_or_nothing_and_refused_to_others() -> None:
    for exact in ((), ("tenants",), ("totals", "inflight")):
        view = plane(*exact).cluster.instances[0]
        for name in RECENT:
            with pytest.raises(UndeclaredSignal, match=r"^policies: the signal 'recent' .* Add exact=\(\"recent\",\) "):
                getattr(view, name)
            assert not hasattr(view, name)
    for exact in (("recent",), ("all",)):
        assert recent(plane(*exact), 0) == (None, None, 0.0)
    with pytest.raises(UndeclaredSignal, match=r"'cluster\.tenants' was read"):
        _ = plane("recent").cluster.tenants


def test_a_run_s_windows_are_those_of_its_records() -> None:
    """At every decision each window is what the table of the finished run says of it."""
    looked: list[tuple[int, int, float | None, float | None, float, int, int, int]] = []

    class Looking:
        def admit(self, asked: Request, cluster: ClusterView) -> Any:
            for view in cluster.instances:
                means = view.recent_ttft, view.recent_tpot, view.tokens_per_second
                looked.append((cluster.now_ps, view.index, *means, view.routed, view.completed, view.output_tokens))
            return ADMIT

    scenario = {
        "seed": 2,
        "workload": {
            "requests": 150,
            "rate": "5/s",
            "prompt_tokens": 200,
            "output_tokens": {"dist": "exponential", "mean": 30},
        },
        "cluster": {"instances": 3, "latency": {"model": "fixed", "decode_tokens_per_s": 40}},
        "policies": {"routing": "least-loaded"},
    }
    table = headway.simulate(scenario, admission=Looking()).requests
    rows = list(
        zip(
            *(table[name] for name in ("instance", "arrival_ps", "first_token_ps", "finished_ps", "output_tokens")),
            strict=True,
        )
    )
    assert len(looked) == 450
    for now, index, ttft, tpot, rate, routed, completed, output in looked:
        mine = [row for row in rows if row[0] == index]
        waits = [first - came for _, came, first, _, _ in mine if now - 10 * SECOND < first <= now]
        # A token that comes at this very instant has been heard of, an end has not: it comes after the arrivals.
        ended = [row for row in mine if now - 10 * SECOND < row[3] < now]
        paces = [(end - first) // (tokens - 1) for _, _, first, end, tokens in ended if tokens > 1]
        assert ttft == (sum(waits) / (len(waits) * SECOND) if waits else None)
        assert tpot == (sum(paces) / (len(paces) * SECOND) if paces else None)
        assert rate == sum(row[4] for row in ended) / 10
        assert (routed, completed) == (sum(row[1] < now for row in mine), sum(row[3] < now for row in mine))
        assert output == sum(row[4] for row in mine if row[3] < now)


# --- estimates -----------------------------------------------------------------------------------------------------


def test_drafts_leave_less_of_a_step_to_the_pending_prefill() -> None:
    """In a step of 50 tokens, 10 decodes that compute 4 tokens each leave 10, not 40, for a prompt of 40."""
    keys = {"model": "fixed", "prefill_tokens_per_s": 1000, "decode_tokens_per_s": 1000}
    cluster = {"instances": 1, "max_batch_tokens": 50, "latency": keys}
    drafts = {"speculation": {"tokens": 3, "acceptance": 0.5}}
    loaded = [
        Scenario.load({"workload": {"requests": 1, "rate": "1/s"}, "cluster": cluster | more}) for more in ({}, drafts)
    ]
    for scenario, steps in zip(loaded, (1, 4), strict=True):
        (engine,) = engines(scenario.cluster)
        engine.view._estimator = Steps()
        assert engine.view.estimate(40, 10, 0, 0) == pytest.approx(0.04 + 0.1 * steps)


def test_the_estimates_are_the_steps_that_the_pending_prefill_takes() -> None:
    view = InstanceView(0, "i0", max_batch_tokens=102)
    Context([view], Random, Steps(), 16)
    assert (view.estimated_wait, view.estimated_ttft(0), view.estimated_ttft(102)) == (0.0, 0.0, 0.102)
    view.pending_prefill_tokens = 50
    view.inflight_tokens = 3050
    assert (view.estimated_wait, view.estimated_ttft(10)) == (0.05, 0.06)  # what has no decode has no context
    view.running = 2
    # Steps of 100 prompt tokens with two decodes over 3000 tokens, 23 ms in each.
    assert view.estimated_wait == pytest.approx(0.05 + 0.023)
    assert view.estimated_ttft(50) == pytest.approx(0.1 + 0.023)
    assert view.estimated_ttft(51) == pytest.approx(0.101 + 2 * 0.023)


@given(*(st.integers(0, 5000) for _ in range(3)), st.integers(0, 300), st.integers(1, 4096))
def test_predicted_latency_s_first_token_is_the_view_s(pending, inflight, tokens, running, batch) -> None:
    """To the last bit: the rest of the last step, then the full ones."""
    view = InstanceView(0, "i0", max_batch_tokens=batch)
    context = Context([view], Random, Steps(), 16)
    view.pending_prefill_tokens, view.inflight_tokens, view.running = pending, inflight, running
    scorer = build("scorer", "predicted-latency", "")
    scorer.bind(context)
    chunk = max(1, batch - running)
    past = max(0, inflight - pending) if running else 0
    full, rest = divmod(pending + max(1, tokens), chunk)
    expected = Steps().step_seconds(view, rest, running, past) if rest else 0.0
    if full:
        expected += full * Steps().step_seconds(view, chunk, running, past)
    assert scorer.predict(request(0, tokens), view) == view.estimated_ttft(max(1, tokens)) == expected


def test_a_view_that_nobody_handed_an_estimator_says_so() -> None:
    with pytest.raises(
        HeadwayError, match=r"^i0: there is no estimator of step times\. Bind the policies to a Context"
    ):
        _ = InstanceView(0, "i0").estimated_wait


# --- room ----------------------------------------------------------------------------------------------------------


def test_room_is_what_the_reported_use_leaves() -> None:
    view = InstanceView(0, "i0", kv_blocks=10, max_batch_size=4)
    view.kv_used, view.running = 7, 3
    assert (view.free_blocks, view.free_sequences) == (3, 1)
    view.running = 5
    assert view.free_sequences == 0
    view.hide("kv_used")
    with pytest.raises(UndeclaredSignal, match="the signal 'kv_used' was read"):
        _ = view.free_blocks
