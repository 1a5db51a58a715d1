"""Several routers in a scenario: the section, who goes to which, policies a router, and what the results tell."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import headway
from headway import HeadwayError
from headway.experiment.run import prepare
from headway.types import ADMIT, Request, Route
from headway.views.cluster import ClusterView


def scenario(**more: Any) -> dict[str, Any]:
    workload = {"requests": 120, "rate": "120/s", "prompt_tokens": 64, "prefix": {"groups": 4, "tokens": 32}}
    return {"seed": 3, "workload": workload, "cluster": {"instances": 5}, **more}


def test_one_router_is_none() -> None:
    plain = headway.simulate(scenario())
    for routers in (1, {"count": 1}, {"count": 1, "sync_interval": "1s", "spread": "sessions"}, None):
        one = headway.simulate(scenario(routers=routers))
        assert one == plain
        assert headway.Scenario.load(scenario(routers=routers)).key() == headway.Scenario.load(scenario()).key()
    assert "routers" not in plain.summary() and "routers" not in plain.scenario
    assert prepare(headway.Scenario.load(scenario(routers=1))).simulation().routers is None


def test_a_scenario_says_how_many_routers_there_are() -> None:
    given = {"count": 4, "sync_interval": "1s", "spread": "sessions"}
    loaded = headway.Scenario.load(scenario(routers=given))
    assert loaded.resolved()["routers"] == given
    assert headway.Scenario.load(loaded.resolved()).resolved() == loaded.resolved()
    short = headway.Scenario.load(scenario(), "routers=4")
    assert short.resolved()["routers"] == {"count": 4, "sync_interval": None, "spread": "requests"}
    assert len({each.key() for each in (loaded, short, headway.Scenario.load(scenario()))}) == 3
    result = headway.simulate(loaded)
    assert result.summary()["routers"]["count"] == 4
    assert sum(result.summary()["routers"]["requests"]) == 120


@pytest.mark.parametrize(
    ("routers", "message"),
    [
        (0, "routers: expected a number of routers from 1 to 1024, or a mapping as in {count: 4, sync_interval: 1s}"),
        (True, "routers: expected a number of routers"),
        ({"cont": 2}, "routers.cont: there is no such key. Did you mean 'count'?"),
        ({"count": 2, "sync_interval": "0s"}, "routers.sync_interval: must be greater than zero, got '0s'."),
        ({"count": 2, "sync_interval": 5}, "routers.sync_interval: 5 is not a duration"),
        ({"count": 2, "spread": "tenants"}, "routers.spread: expected 'requests' or 'sessions', got 'tenants'."),
    ],
)
def test_a_mistake_is_told(routers: Any, message: str) -> None:
    with pytest.raises(HeadwayError) as error:
        headway.Scenario.load(scenario(routers=routers))
    assert message in str(error.value)


@pytest.mark.parametrize("signals", [{}, {"poll_interval": "50ms", "poll_delay": "7ms"}])
@pytest.mark.parametrize("name", ["least-kv", "weighted"])
def test_who_goes_by_reports_alone_decides_alike_behind_any_number_of_routers(name: str, signals: Any) -> None:
    """All routers are told the same, at the same ticks."""
    routing = {"name": name} if name == "least-kv" else {"name": name, "scorers": {"kv-utilization": 1}}
    found = []
    for routers in (1, 3, {"count": 7, "sync_interval": "10ms"}):
        result = headway.simulate(scenario(routers=routers, signals=signals), routing=routing)
        found.append([result.requests[column] for column in result.requests])
    assert found[0] == found[1] == found[2]


class Home:
    """Round-robin, and a note of which router it is: the streams tell them apart."""

    def __init__(self) -> None:
        self.rows: list[Request] = []

    def bind(self, context: Any) -> None:
        self.stream = context.rng("routing").random()
        self.rows = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.rows.append(request)
        return Route(cluster.instances[len(self.rows) % len(cluster.instances)].id)

    def metrics(self) -> dict[str, float]:
        return {"routed": len(self.rows)}


@pytest.mark.parametrize("given", [Home, Home()])
def test_each_router_has_a_policy_of_its_own_with_streams_of_its_own(given: Any) -> None:
    prepared = prepare(headway.Scenario.load(scenario(routers=4)), routing=given)
    policies = [prepared.policies["routing"], *(own[2] for own in prepared.further)]
    simulation = prepared.simulation()
    recorder = simulation.run(prepared.traffic())
    assert len({id(policy) for policy in policies}) == len({policy.stream for policy in policies}) == 4
    alone = Home()
    prepare(headway.Scenario.load(scenario()), routing=alone).simulation()
    assert policies[0].stream == alone.stream  # the first draws as it would alone
    assert sorted(request.id for policy in policies for request in policy.rows) == list(range(120))
    for policy in policies:
        assert [recorder.instance[request.id] for request in policy.rows] == [
            number % 5 for number in range(1, len(policy.rows) + 1)
        ]
    assert simulation.policy_metrics == {"routed": 120}


def test_what_several_stages_share_is_shared_in_each_router() -> None:
    class Both(Home):
        def admit(self, request: Request, cluster: ClusterView) -> Any:
            return ADMIT

    both = Both()
    prepared = prepare(headway.Scenario.load(scenario(routers=3)), routing=both, admission=both)
    assert all(own[0] is own[2] and own[0] is not both for own in prepared.further)


def test_a_policy_that_cannot_be_copied_is_told() -> None:
    routing = Home()
    routing.rows = (row for row in ())  # type: ignore[assignment]
    headway.simulate(scenario(), routing=routing)
    routing.rows = (row for row in ())  # type: ignore[assignment]
    with pytest.raises(HeadwayError, match=r"routing: cannot copy the object for each router: .*\. Give a class"):
        headway.simulate(scenario(routers=2), routing=routing)


def chats(spread: str) -> list[set[int]]:
    """The routers that each session came to."""
    kind = {"kind": "chat", "think_time": "10ms"}
    given = scenario(routers={"count": 4, "spread": spread}, workload={"requests": 100, "rate": "20/s", "kind": kind})
    prepared = prepare(headway.Scenario.load(given))
    simulation = prepared.simulation()
    recorder = simulation.run(prepared.traffic())
    assert simulation.routers is not None
    found: dict[int, set[int]] = {}
    for session, router in zip(recorder.session, simulation.routers.home, strict=True):
        found.setdefault(session, set()).add(router)
    assert len(found) > 10 and max(Counter(recorder.session).values()) > 3
    return list(found.values())


def test_a_session_stays_with_its_router_where_sessions_are_spread() -> None:
    assert {len(routers) for routers in chats("sessions")} == {1}
    assert max(len(routers) for routers in chats("requests")) > 1


def test_without_sessions_requests_are_spread_all_the_same() -> None:
    counts = [
        headway.simulate(scenario(routers={"count": 4, "spread": spread})).summary()["routers"]["requests"]
        for spread in ("sessions", "requests")
    ]
    assert counts[0] == counts[1]
    assert min(counts[0]) > 15


def test_who_goes_where_depends_on_the_simulation_s_seed_and_shifts_no_draw() -> None:
    seeds = ({"workload": 3, "simulation": number} for number in (3, 4))
    runs = [headway.simulate(scenario(seed=seed, routers=2)) for seed in seeds]
    assert runs[0].requests["arrival_ps"] == runs[1].requests["arrival_ps"]
    assert runs[0].summary()["routers"] != runs[1].summary()["routers"]


def test_the_shadow_is_judged_over_all_routers() -> None:
    """Who learns late where the others have sent a prefix is surprised by more hits."""
    routing = {"name": "prefix-affinity"}
    surprises = {}
    for name, routers in {"one": 1, "told": {"count": 8, "sync_interval": "1ms"}, "alone": 8}.items():
        result = headway.simulate(scenario(routers=routers), routing=routing)
        surprises[name] = result.summary()["shadow"]["unexpected_hits"]
    assert surprises["one"] <= surprises["told"] < surprises["alone"]


@pytest.mark.parametrize("leap", [False, "random-cuts"])
def test_what_the_horizon_leaves_is_told_however_steps_are_counted(leap: bool | str) -> None:
    """All come at once, and then nothing happens but steps until the clock stops: the last exchange is still made, so
    that what the indexes hold in the end is the same."""
    given = scenario(routers={"count": 3, "sync_interval": "150ms"}, horizon="200ms")
    given["workload"] |= {"requests": 30, "rate": "10000/s", "output_tokens": 1000, "prompt_tokens": 64}
    given["policies"] = {"routing": {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1}]}}
    leapt, other = headway.simulate(given), headway.simulate({**given, "leap": leap})
    assert leapt.summary()["requests"]["in_flight"] == 30
    assert other.to_json() == leapt.to_json()
