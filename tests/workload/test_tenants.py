"""Tenants: shares, inheritance, independence, behaviour, archetypes, correlations, closed loops, and their mistakes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from math import log2, sqrt
from typing import Any

import pytest
from generated import SIGMAS, mean, near, plan, serve_workload, sessions, share, spec, takes, uneven

from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.tenants import PROMPT_SIZES
from headway.workload.traffic import Planned

LENGTHS: dict[str, Any] = {"prompt_tokens": 100, "output_tokens": 10}
PAIR: dict[str, Any] = {"a": {"weight": 3}, "b": {"weight": 1, "kind": {"kind": "chat", "turns": 1}}}


def of(planned: list[Planned], tenant: str) -> list[Planned]:
    return [item for item in planned if item.request.tenant == tenant]


def contents(planned: list[Planned]) -> list[Any]:
    """All that a request is, but for its row and its instant."""
    return [
        (
            item.request.session,
            item.request.turn,
            item.request.path,
            item.request.prompt_tokens,
            item.request.max_tokens,
            item.request.slo_class,
            item.request.kind,
            item.output_tokens,
            item.output_key,
        )
        for item in planned
    ]


# --- shares and independence --------------------------------------------------------------------------------------


def test_tenants_share_the_rate_by_weight_or_have_their_own() -> None:
    requests = plan(duration="1000s", rate="8/s", tenants=PAIR | {"c": {"rate": "3/s"}})
    counts = Counter(item.request.tenant for item in requests)
    for tenant, expected in (("a", 6000), ("b", 2000), ("c", 3000)):
        assert abs(counts[tenant] - expected) <= SIGMAS * sqrt(expected)


def test_a_tenant_inherits_what_it_does_not_say() -> None:
    tenants = {"a": {}, "b": {"prompt_tokens": 7, "priority": "batch", "kind": "chat"}}
    kinds = [{"kind": "reasoning", "turns": 1}]
    requests = plan(requests=200, rate="8/s", tenants=tenants, prompt_tokens=50, priority="realtime", kinds=kinds)
    senders = {(item.request.tenant, item.request.slo_class, item.request.kind) for item in requests}
    assert senders == {("a", "realtime", "reasoning"), ("b", "batch", "chat")}
    assert {item.request.prompt_tokens for item in of(requests, "a")} == {50}
    assert {item.request.prompt_tokens for item in of(requests, "b") if not item.request.turn} == {7}


@pytest.mark.parametrize("kind", ["completion", "chat", "agentic", "reasoning"])
def test_a_tenant_does_not_change_when_another_is_added(kind: str) -> None:
    prefix = {"groups": 5, "tokens": 64}
    first = {"a": {"rate": "4/s", "kind": kind, "prefix": prefix, "max_tokens": {"dist": "exponential", "mean": 300}}}
    noisy = {"rate": "9/s", "kind": "chat", "behaviour": "bursty", "prefix": prefix}
    alone = plan(duration="40s", tenants=first)
    for tenants in (first | {"b": noisy}, {"b": noisy} | first, first | {"b": noisy, "default": {"rate": "1/s"}}):
        both = of(plan(duration="40s", tenants=tenants), "a")
        assert contents(both) == contents(alone)
        assert [item.request.arrival_ps for item in both] == [item.request.arrival_ps for item in alone]


def test_a_share_by_weight_changes_the_time_scale_alone() -> None:
    kind = {"kind": "chat", "turns": 1}
    alone = plan(first=200, duration="400s", rate="1/s", tenants={"a": {"kind": kind}})
    half = of(plan(first=400, duration="400s", rate="1/s", tenants={"a": {"kind": kind}, "b": {}}), "a")
    count = min(len(alone), len(half))
    assert count > 100
    assert contents(alone[:count]) == contents(half[:count])
    for first, other in zip(alone, half, strict=False):
        assert abs(2 * first.request.arrival_ps - other.request.arrival_ps) <= 2 * 10**6


def test_tenants_have_no_content_in_common_but_listed_groups() -> None:
    prefix = {"groups": 3, "tokens": 50}
    requests = plan(requests=400, rate="8/s", tenants={"a": {}, "b": {}}, prefix=prefix, kind="chat")
    keys = [{key for item in of(requests, name) for key in item.request.path.keys} for name in ("a", "b")]
    assert not keys[0] & keys[1] and max(keys[0] | keys[1]) < 2**63
    listed = {"groups": [{"name": "tutor"}, {"name": "coder"}], "tokens": {"dist": "uniform", "min": 20, "max": 90}}
    requests = plan(requests=400, rate="8/s", tenants={"a": {}, "b": {}}, prefix=listed, **LENGTHS)
    heads = [{(item.request.path.keys[0], item.request.shared_prefix_tokens) for item in of(requests, n)} for n in "ab"]
    assert heads[0] == heads[1] and len(heads[0]) == 2


def test_at_one_instant_tenants_come_in_the_order_in_which_they_are_written() -> None:
    tenants = {name: {"rate": "1/s", "arrival": "constant"} for name in ("z", "a", "m")}
    requests = plan(requests=30, tenants=tenants)
    assert [item.request.tenant for item in requests] == ["z", "a", "m"] * 10
    assert [item.request.id for item in requests] == list(range(30))


def test_targets_are_those_of_the_tenants_that_have_any() -> None:
    tenants: dict[str, Any] = {"a": {"slo": {"tpot": "20ms"}}, "b": {}, "c": {"slo": {"e2e": "3s"}}}
    targets = spec(requests=5, rate="1/s", slo={"ttft": "1s"}, tenants=tenants).slos()
    assert {name: (first.ttft_ps, first.tpot_ps, first.e2e_ps) for name, first in targets.items()} == {
        "a": (None, 20 * 10**9, None),
        "b": (10**12, None, None),
        "c": (None, None, 3 * 10**12),
    }
    assert spec(requests=5, rate="1/s").slos() == {}
    assert spec(trace={"path": "t.jsonl"}).slos() == {}


# --- prefixes and correlations ------------------------------------------------------------------------------------


def test_listed_groups_have_popularity_length_and_reuse() -> None:
    groups = [{"name": "a", "popularity": 3, "reuse": 0.5}, {"name": "b", "tokens": 40}]
    requests = plan(requests=8000, rate="8/s", prefix={"groups": groups, "tokens": 20}, **LENGTHS)
    tokens = Counter(item.request.shared_prefix_tokens for item in requests)
    assert share([item.request.shared_prefix_tokens == 20 for item in requests], 0.75 * 0.5)
    assert share([item.request.shared_prefix_tokens == 40 for item in requests], 0.25)
    assert set(tokens) == {0, 20, 40}


def test_a_length_distribution_gives_each_group_its_own_length() -> None:
    prefix = {"groups": 400, "tokens": {"dist": "uniform", "min": 10, "max": 90}}
    requests = plan(requests=4000, rate="8/s", prefix=prefix, **LENGTHS)
    lengths = {item.request.path.keys[0]: item.request.shared_prefix_tokens for item in requests}
    for item in requests:
        assert item.request.shared_prefix_tokens == lengths[item.request.path.keys[0]] == item.request.path.ends[0]
    assert near(list(lengths.values()), 50, sqrt((81**2 - 1) / 12))


def test_prefix_correlation_repeats_the_prefix_of_the_session_before_and_keeps_popularity() -> None:
    prefix = {"groups": 4, "tokens": 20, "popularity": [4, 3, 2, 1]}
    for correlation in (0.0, 0.6, 1.0):
        section: dict[str, Any] = {"prefix": prefix, "correlations": {"prefix": correlation}, **LENGTHS}
        groups = [item.request.path.keys[0] for item in plan(requests=8000, rate="8/s", **section)]
        same = [a == b for a, b in pairwise(groups)]
        expected = correlation + (1 - correlation) * (16 + 9 + 4 + 1) / 100
        if correlation == 1:
            assert all(same)
            continue
        assert share(same[::2], expected)
        # a chain that forgets with probability 1 - c has (1 + c) / (1 - c) times the variance of independent draws
        slack = SIGMAS * sqrt(0.24 / 8000 * (1 + correlation) / (1 - correlation))
        first = min(groups)
        assert abs(mean([group == first for group in groups]) - 0.4) <= slack


def test_prompts_are_longer_in_larger_bursts() -> None:
    section: dict[str, Any] = {
        "behaviour": {"type": "bursty", "probability": 1, "size": 8, "interval": "10s"},
        "correlations": {"burst_size": 0.5},
    }
    requests = plan(duration="300s", rate="1/s", **section, **LENGTHS)
    at = Counter(item.request.arrival_ps for item in requests)
    for item in requests:
        burst = at[item.request.arrival_ps] >= 8 and item.request.arrival_ps % (10 * PS_PER_SECOND) == 0
        assert item.request.prompt_tokens == (100 * (1 + 0.5 * log2(8)) if burst else 100)


# --- behaviour ----------------------------------------------------------------------------------------------------


def test_bursts_come_on_top_of_the_rate_as_often_and_as_large_as_asked() -> None:
    behaviour = {
        "type": "bursty",
        "probability": 0.4,
        "size": {"dist": "uniform", "min": 5, "max": 15},
        "interval": {"dist": "exponential", "mean": "5s"},
    }
    plain = plan(duration="5000s", rate="1/s", retry={"max": 1}, **LENGTHS)
    requests = plan(duration="5000s", rate="1/s", behaviour=behaviour, **LENGTHS)
    at = Counter(item.request.arrival_ps for item in requests)
    sizes = [count for count in at.values() if count >= 5]
    # of the occasions, a Poisson process of 1000 on average, 0.4 are bursts
    assert abs(len(sizes) - 400) <= SIGMAS * sqrt(400)
    assert near(sizes, 10, sqrt((11**2 - 1) / 12))
    assert {item.request.arrival_ps for item in plain} <= set(at)
    assert len(requests) == len(plain) + sum(sizes)


def test_rapid_fire_makes_volleys_of_every_arrival() -> None:
    abuse = {"type": "abusive", "rapid_fire": {"size": 4, "gap": "3ms"}}
    plain = [item.request.arrival_ps for item in plan(requests=50, rate="1/s", **LENGTHS)]
    fired = [item.request.arrival_ps for item in plan(requests=200, rate="1/s", behaviour=abuse, **LENGTHS)]
    assert fired == sorted(at + number * 3 * 10**9 for at in plain for number in range(4))


def test_abusers_send_oversized_prompts_and_exhaust_the_cache() -> None:
    abuse = {
        "type": "abusive",
        "oversized_prompts": {"probability": 0.3, "factor": 5},
        "kv_exhaustion": {"probability": 0.2, "factor": 10},
    }
    requests = plan(requests=6000, rate="8/s", behaviour=abuse, prefix={"groups": 1, "tokens": 20}, **LENGTHS)
    assert share([item.request.prompt_tokens == 500 for item in requests], 0.3)
    assert share([item.output_tokens == 100 for item in requests], 0.2)
    assert {item.request.prompt_tokens for item in requests} == {100, 500}
    assert all((item.request.shared_prefix_tokens == 0) == (item.output_tokens == 100) for item in requests)
    both = [item.request.prompt_tokens == 500 and item.output_tokens == 100 for item in requests]
    assert share(both, 0.06)


def test_adversaries_strike_together() -> None:
    attack = {"type": "adversarial", "interval": "4s", "size": 6, "factor": 3}
    tenants = {name: {"rate": "1/s", "behaviour": attack} for name in "ab"}
    requests = plan(duration="41s", tenants=tenants, prefix={"groups": 1, "tokens": 20}, **LENGTHS)
    for name in "ab":
        struck = [item for item in of(requests, name) if item.request.prompt_tokens == 300]
        assert Counter(item.request.arrival_ps for item in struck) == {
            number * 4 * PS_PER_SECOND: 6 for number in range(1, 11)
        }
        assert {item.request.shared_prefix_tokens for item in struck} == {0}


def test_an_archetype_stands_for_the_keys_beside_it() -> None:
    archetype = {"prompt_size": "large", "reuse_affinity": 0.7, "burst_propensity": 0.2, "session_turns": 3}
    kinds = ["chat", {"kind": "reasoning", "turns": 2}]
    section = spec(requests=5, rate="1/s", kinds=kinds, archetype=archetype).resolved()
    assert section["prompt_tokens"] == PROMPT_SIZES["large"]
    assert section["correlations"]["prefix"] == 0.7
    assert (section["behaviour"]["type"], section["behaviour"]["probability"]) == ("bursty", 0.2)
    assert [kind["turns"] for kind in section["kinds"]] == [3, 2]
    assert "archetype" not in section
    own = spec(requests=5, rate="1/s", prompt_tokens=9, archetype=archetype, behaviour="normal").resolved()
    assert own["prompt_tokens"] == 9 and own["behaviour"] == {"type": "normal"}
    tenant = spec(requests=5, rate="1/s", prompt_tokens=9, tenants={"a": {"archetype": archetype}}).resolved()
    assert tenant["tenants"]["a"]["prompt_tokens"] == PROMPT_SIZES["large"]


# --- closed loops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["completion", "chat", "agentic"])
def test_a_closed_loop_never_has_more_under_way_than_its_users(kind: str) -> None:
    subagents = {"subagents": {"probability": 0.5, "count": 3, "turns": 2}} if kind == "agentic" else {}
    loop = {"concurrency": 8, "think_time": {"dist": "exponential", "mean": "2s"}}
    tenants: dict[str, Any] = {"a": {"closed_loop": loop, "kind": {"kind": kind, **subagents}}, "b": {"rate": "2/s"}}
    traffic = serve_workload(uneven, requests=900, tenants=tenants)
    assert traffic.served.most_at_once["a"] == 8
    assert len(traffic.planned) == 900
    assert len(of(traffic.planned, "a")) == 450


def test_the_next_request_of_a_user_comes_a_think_time_after_the_response() -> None:
    loop = {"concurrency": 5, "think_time": {"dist": "uniform", "min": "1s", "max": "3s"}}
    traffic = serve_workload(takes(7 * 10**12), requests=2000, closed_loop=loop, **LENGTHS)
    by_user: dict[str, list[Planned]] = {}
    for item in traffic.planned:
        by_user.setdefault(str(item.request.session).split(".")[0], []).append(item)
    assert sorted(len(items) for items in by_user.values()) == [400] * 5
    pauses = [
        (b.request.arrival_ps - traffic.served.ends[a.request.id][0]) / PS_PER_SECOND
        for items in by_user.values()
        for a, b in pairwise(items)
    ]
    assert min(pauses) >= 1 and max(pauses) <= 3
    assert near(pauses, 2, 2 / sqrt(12))


def test_a_closed_loop_lasts_as_long_as_it_should_and_survives_refusals() -> None:
    loop = {"concurrency": 3, "think_time": "1s"}
    traffic = serve_workload(lambda request: (10**12, request.id % 3 > 0), duration="100s", closed_loop=loop, **LENGTHS)
    assert len(traffic.planned) == 3 * 50
    assert max(item.request.arrival_ps for item in traffic.planned) < 100 * PS_PER_SECOND


def test_a_failed_turn_ends_its_session_or_is_tried_again() -> None:
    kind = {"kind": "chat", "turns": 3}
    refuse = lambda request: (10**9, request.turn != 1)  # noqa: E731
    ends = serve_workload(refuse, requests=30, rate="1/s", kind=kind)
    assert len(ends.planned) == 20 and ends.not_issued == 10
    again = serve_workload(refuse, requests=30, rate="1/s", kind=kind, retry={"max": 2, "backoff": "1s"})
    assert len(again.planned) == 10 + 3 * 10 and again.not_issued == 10 and again.retried == 20
    for turns in sessions(again.planned):
        assert [item.request.turn for item in turns] == [0, 1, 1, 1]


# --- mistakes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "start"),
    [
        ({"tenants": {}}, "workload.tenants: expected a mapping of names"),
        ({"tenants": {"a/b": {}}}, "workload.tenants: 'a/b' is not a valid name"),
        ({"tenants": {"a": {"wight": 1}}}, "workload.tenants.a.wight: there is no such key. Did you mean 'weight'?"),
        ({"tenants": {"a": {"requests": 1}}}, "workload.tenants.a.requests: there is no such key"),
        ({"tenants": {"a": {"weight": 0}}}, "workload.tenants.a.weight: must lie between"),
        ({"rate": None, "tenants": {"a": {"rate": 3}}}, "workload.tenants.a.rate: 3 is not a rate"),
        ({"tenants": {"a": {"rate": "3/s"}}}, "workload.rate: every tenant has its own rate or closed loop"),
        ({"rate": None, "tenants": {"a": {}}}, "workload.tenants.a.rate: is missing"),
        ({"kind": "chatty", "tenants": {"a": {"kind": "chat"}}}, "workload.kind: no kind of request"),
        ({"tenants": {"a": {"kind": "chatty"}}}, "workload.tenants.a.kind: no kind of request"),
        ({"tenants": {"a": {"prefix": {"groups": 3}}}}, "workload.tenants.a.prefix: 'tokens' is missing"),
        ({"weight": 3}, "workload.weight: there is no such key"),
        ({"priority": ""}, "workload.priority: must have 1 to 100 characters"),
        ({"slo": {"ttft": "0s"}}, "workload.slo.ttft: must be greater than zero"),
        ({"slo": {"p99": "1s"}}, "workload.slo.p99: there is no such key"),
        ({"behaviour": "bursti"}, "workload.behaviour: no behaviour is called 'bursti'. Did you mean 'bursty'?"),
        ({"behaviour": {"size": 3}}, "workload.behaviour: 'type' is missing; use one of normal, bursty"),
        ({"behaviour": {"type": "bursty", "probability": 2}}, "workload.behaviour.probability: a probability lies"),
        ({"behaviour": {"type": "bursty", "interval": "0s"}}, "workload.behaviour.interval: must be greater than zero"),
        ({"behaviour": {"type": "abusive", "rapid_fire": {"size": 0}}}, "workload.behaviour.rapid_fire.size: must lie"),
        (
            {"behaviour": {"type": "abusive", "oversized_prompts": {"factor": 0}}},
            "workload.behaviour.oversized_prompts.factor: must be above 0",
        ),
        (
            {"behaviour": {"type": "adversarial", "interval": {"dist": "exponential", "mean": "1s"}}},
            "workload.behaviour.interval: {'dist': 'exponential', 'mean': '1s'} is not a duration",
        ),
        ({"archetype": {"prompt_size": "huge"}}, "workload.archetype.prompt_size: no size is called 'huge'. Known:"),
        ({"archetype": {"reuse_affinity": 3}}, "workload.archetype.reuse_affinity: a probability"),
        ({"correlations": {"prefix": 2}}, "workload.correlations.prefix: must lie between 0 and 1"),
        ({"closed_loop": {"concurrency": 2}}, "workload.rate: is not valid with a closed loop"),
        ({"rate": None, "closed_loop": {}}, "workload.closed_loop: 'concurrency' is missing"),
        ({"rate": None, "closed_loop": {"concurrency": 0}}, "workload.closed_loop.concurrency: must lie"),
        (
            {"rate": None, "closed_loop": {"concurrency": 1}, "behaviour": "bursty"},
            "workload.behaviour: is not valid with a closed loop",
        ),
        ({"retry": {"max": -1}}, "workload.retry.max: must lie between 0 and"),
        ({"retry": {"max": 1, "backoff": 3}}, "workload.retry.backoff: 3 is not a duration"),
        ({"prefix": {"groups": []}}, "workload.prefix.groups: list at least one"),
        ({"prefix": {"groups": "many", "tokens": 3}}, "workload.prefix.groups: expected a whole number or a list"),
        ({"prefix": {"groups": [{"name": "a"}]}}, "workload.prefix.groups[0]: 'tokens' is missing"),
        (
            {"prefix": {"groups": [{"name": "a", "tokens": 3}] * 2}},
            "workload.prefix.groups[1].name: 'a' is listed twice",
        ),
        (
            {"prefix": {"groups": [{"name": "a", "tokens": 3, "reuse": 2}]}},
            "workload.prefix.groups[0].reuse: a probability",
        ),
        (
            {"prefix": {"groups": [{"name": "a", "tokens": 3}], "popularity": "zipf"}},
            "workload.prefix.popularity: is not valid with a list of groups",
        ),
        ({"preset": "chatt"}, "workload.preset: no workload is called 'chatt'. Did you mean 'chat'?"),
        (
            {"trace": {"path": "t"}, "rate": None, "requests": None, "tenants": {"a": {}}},
            "workload.tenants: is not valid with a trace",
        ),
        ({"trace": {"path": "t"}, "rate": None, "requests": None, "retry": {"max": 99}}, "workload.retry.max: must"),
    ],
)
def test_a_mistake_is_told_at_its_key(section: dict[str, Any], start: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        spec(**({"requests": 5, "rate": "1/s"} | section))
    assert str(caught.value).startswith(start) and str(caught.value).endswith((".", "?"))
