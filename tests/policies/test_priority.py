"""Priority policies: scores by hand, orders that hold at every instant, all of them in runs."""

from __future__ import annotations

import inspect
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from states import prompt, views
from test_admission import LEAPS, small

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.types import NO_PRIORITY, PS_PER_SECOND, Path, Priority, Request, Route
from headway.views.cluster import ClusterView
from headway.views.events import Finished, Routed

SECOND = PS_PER_SECOND
ENTRIES = [entry for entry in registry.entries("priority") if not entry.blank]
NAMES = ["aging", "by-class", "none", "shortest-prompt", "slo-deadline", "tenant-weighted", "weighted-priority"]


def made(spec: Any) -> Any:
    policy = registry.build("priority", spec, "policies.priority")
    if hasattr(policy, "bind"):
        policy.bind(Context(views(1), Random, None, 16))  # type: ignore[arg-type]
    return policy


def cluster(now_ps: int = 0) -> ClusterView:
    found = ClusterView(views(1))
    found.now_ps = now_ps
    return found


def asked(number: int, arrival_ps: int, slo_class: str = "standard") -> Request:
    return Request(number, arrival_ps, 10, Path((number,), (10,)), slo_class=slo_class)


def test_all_of_them_are_there():
    assert sorted(registry.names("priority")) == NAMES


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_every_one_says_its_rule_and_reads_no_signal(entry):
    assert 10 <= len(entry.summary) <= 120
    assert entry.exact == entry.reported == ()
    assert entry.name == "none" or "reads no signal" in " ".join(inspect.getdoc(entry.make).split())


def test_none_gives_the_one_priority_that_costs_nothing():
    assert made("none").prioritise(prompt(), cluster()) is NO_PRIORITY


def test_a_class_has_its_score():
    policy = made({"name": "by-class", "scores": {"gold": 5, "tin": -1.5}, "other": 0.5})
    scores = [policy.prioritise(prompt(slo_class=name), cluster()).score for name in ("gold", "tin", "standard")]
    assert scores == [5, -1.5, 0.5]
    defaults = [made("by-class").prioritise(prompt(slo_class=name), cluster()).score for name in CLASSES]
    assert defaults == sorted(defaults, reverse=True) and len(set(defaults)) == 4


CLASSES = ("realtime", "standard", "batch", "best-effort")


def test_short_prompts_come_first():
    policy = made("shortest-prompt")
    assert policy.prioritise(prompt(70), cluster()) == Priority(-70.0, reason="length of the prompt")


def test_the_slack_is_what_is_left_of_the_target():
    policy = made({"name": "slo-deadline", "targets": {"realtime": "500ms"}, "other": "1m"})
    found = policy.prioritise(asked(1, 2 * SECOND, "realtime"), cluster(3 * SECOND))
    assert found == Priority(-2.5, {"slack_s": -0.5}, "deadline of the first token")
    found = policy.prioritise(asked(1, 2 * SECOND), cluster(3 * SECOND))
    assert found == Priority(-62.0, {"slack_s": 59.0}, "deadline of the first token")


TIMES = st.integers(0, 10_000).map(lambda tenths: tenths * SECOND // 10)


@given(TIMES, TIMES, TIMES, TIMES, st.sampled_from(CLASSES), st.sampled_from(CLASSES))
def test_the_least_slack_is_the_highest_score_whenever_either_was_scored(came, other, wait, more, one, two):
    """Scored at different instants, compared at a later one."""
    policy = made({"name": "slo-deadline", "targets": {"realtime": "500ms", "standard": "2s", "batch": "60s"}})
    targets = {"realtime": SECOND // 2, "standard": 2 * SECOND, "batch": 60 * SECOND, "best-effort": 3600 * SECOND}
    first = policy.prioritise(asked(1, came, one), cluster(came + wait)).score
    second = policy.prioritise(asked(2, other, two), cluster(other + more)).score
    now = max(came + wait, other + more)
    slacks = (came + targets[one] - now, other + targets[two] - now)
    assert (first > second) == (slacks[0] < slacks[1]) and (first == second) == (slacks[0] == slacks[1])


@given(TIMES, TIMES, TIMES, TIMES, st.sampled_from(CLASSES), st.sampled_from(CLASSES))
def test_ageing_keeps_the_order_that_holds_at_any_common_instant(came, other, wait, more, one, two):
    scores = {"realtime": 3.0, "standard": 2.0, "batch": 0.0}
    policy = made({"name": "aging", "scores": scores, "other": -1.0, "per_second": 0.5})
    first = policy.prioritise(asked(1, came, one), cluster(came + wait))
    second = policy.prioritise(asked(2, other, two), cluster(other + more))
    now = max(came + wait, other + more) + SECOND
    aged = [
        20 * SECOND * int(scores.get(name, -1.0)) + 10 * (now - at) for name, at in ((one, came), (two, other))
    ]  # twenty times the rule, in whole numbers
    if aged[0] != aged[1]:
        assert (first.score > second.score) == (aged[0] > aged[1])
    else:
        assert first.score == pytest.approx(second.score)
    assert first.hints == {"waited_s": wait / SECOND}


def test_who_has_waited_long_overtakes_a_class_above():
    policy = made({"name": "aging", "per_second": 0.5})  # standard is 1 above batch: two seconds
    batch = policy.prioritise(asked(1, 0, "batch"), cluster()).score
    assert batch < policy.prioritise(asked(2, 2 * SECOND - 1, "standard"), cluster(2 * SECOND)).score
    assert batch > policy.prioritise(asked(3, 2 * SECOND + 1, "standard"), cluster(3 * SECOND)).score


def test_a_tenant_with_much_in_flight_for_its_weight_comes_later():
    policy = made({"name": "tenant-weighted", "weights": {"gold": 3}})
    gold, other = prompt(tenant="gold"), prompt(tenant="other")
    view = views(1)[0]
    assert policy.prioritise(gold, cluster()) == Priority(3.0, {"weight": 3.0}, "share of the tenant")
    assert policy.prioritise(other, cluster()) == Priority(1.0, {"weight": 1.0}, "share of the tenant")
    for _ in range(3):
        policy.observe(Routed(0, gold, view))
    assert policy.prioritise(gold, cluster()).score == 0.75
    for _ in range(3):
        policy.observe(Finished(0, gold, view, "completed", 1))
    assert policy.prioritise(gold, cluster()).score == 3.0


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        (
            {"name": "by-class", "scores": {"a": float("nan")}},
            r"^policies\.priority: scores\.a: must lie .*, got nan\.$",
        ),
        (
            {"name": "by-class", "scores": {"a": "high"}},
            r"^policies\.priority\.scores: expected .*, got \{'a': 'high'\}",
        ),
        (
            {"name": "aging", "per_second": -1},
            r"^policies\.priority\.per_second: must lie between 0 and 1000, got -1\.$",
        ),
        ({"name": "slo-deadline", "other": "soon"}, r"other: 'soon' is not a duration; write it with its unit"),
        ({"name": "tenant-weighted", "weights": {"a": -1}}, r"weights\.a: must lie between 1e-9 and 1e9, got -1"),
        ("bycalss", r"^policies\.priority: no priority.* is called 'bycalss'\. Did you mean 'by-class'\?"),
    ],
)
def test_mistakes_are_told_at_their_place(spec, told):
    with pytest.raises(HeadwayError, match=told):
        registry.build("priority", spec, "policies.priority")


# --- in runs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_leap_gives_the_same_bytes(name):
    results = [headway.simulate(small(leap=leap), priority=name) for leap in LEAPS]
    for other in results[1:]:
        assert other.to_json() == results[0].to_json()
        assert all(other.requests[name] == column for name, column in results[0].requests.items())


class Watching:
    """Routes to the first, and keeps what it was told of the request's importance."""

    def __init__(self) -> None:
        self.seen: list[Priority] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.seen.append(cluster.priority)
        return Route(cluster.instances[0].id)


def test_routing_is_told_score_and_hints():
    watching = Watching()
    headway.simulate(small(), priority="slo-deadline", routing=watching)
    assert len(watching.seen) >= 160 and {tuple(one.hints) for one in watching.seen} == {("slack_s",)}
    slacks = {round(one.hints["slack_s"], 9) for one in watching.seen}
    assert slacks == {0.5, 2.0, 60.0}


class Answers:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def prioritise(self, request: Request, cluster: ClusterView) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if request.id == 4 else NO_PRIORITY


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (
            Priority(float("nan")),
            r"Answers\.prioritise must return .* finite score, got Priority\(score=nan.* request 4\.",
        ),
        (
            Priority(float("inf")),
            r"Answers\.prioritise must return .* finite score, got Priority\(score=inf.* request 4\.",
        ),
        (7.0, r"Answers\.prioritise must return .* finite score, got 7\.0, at request 4\."),
        (
            Priority(1.0, {"weight": float("nan")}),
            r"Answers\.prioritise must give hints as .* finite numbers, got \{'weight': nan\}, at request 4\.",
        ),
        (
            Priority(1.0, ["weight"]),  # type: ignore[arg-type]
            r"Answers\.prioritise must give hints as .* finite numbers, got \['weight'\], at request 4\.",
        ),
        (
            Priority(1.0, reason=7),  # type: ignore[arg-type]
            r"Answers\.prioritise must give the reason as a text, got 7, at request 4\.",
        ),
        (ValueError("odd"), r"line \d+, in Answers\.prioritise: ValueError: odd, at request 0\."),
    ],
)
def test_a_wrong_answer_ends_the_run_with_name_request_and_value(answer, told):
    with pytest.raises(HeadwayError, match=told):
        headway.simulate(small(), priority=Answers(answer))
