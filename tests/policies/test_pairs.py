"""Policies that choose pairs: which halves see what, who decides, and what the router counts of it."""

from __future__ import annotations

from typing import Any

import pytest
from states import ToldContext, prompt

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.disaggregation import Pairing, make_pairing
from headway.types import Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

ROLES = ("prefill", "prefill", "decode", "decode", "both")


def cluster(roles: tuple[str, ...] = ROLES, pools: tuple[str, ...] = ()) -> list[InstanceView]:
    found = []
    for index, role in enumerate(roles):
        view = InstanceView(index, f"i{index}", pool=pools[index] if pools else "default")
        view.role = role
        found.append(view)
    return found


def built(instances: list[InstanceView], matched: list[int] | None = None, **parameters: Any) -> Any:
    policy = registry.build("routing", {"name": "pair", **parameters}, "policies.routing")
    policy.bind(ToldContext(instances, matched))
    return policy


class Seeing:
    """Takes the last of what it is shown, and remembers that."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, ...]] = []

    def route(self, request: Request, cluster: ClusterView) -> Route:
        self.seen.append(tuple(view.id for view in cluster.instances))
        return Route(cluster.instances[-1].id)


def test_each_half_sees_its_own_instances_and_those_that_do_both_are_of_the_second() -> None:
    instances = cluster(ROLES[:4])
    prefill, decode = Seeing(), Seeing()
    pairing = Pairing(prefill, decode, registry.build("decider", "always", ""))
    pairing.bind(ToldContext(instances))
    assert pairing.route(prompt(100), ClusterView(instances)) == Route("i3", prefill="i1")
    assert (prefill.seen, decode.seen) == ([("i0", "i1")], [("i2", "i3")])
    with_both = ClusterView(cluster())
    assert pairing.route(prompt(100), with_both) == Route("i4")  # which needs nobody
    assert decode.seen[-1] == ("i2", "i3", "i4")
    assert len(prefill.seen) == 1


def test_a_prompt_is_computed_in_the_deployment_that_generates() -> None:
    instances = cluster(("prefill", "decode", "prefill", "decode"), ("a", "a", "b", "b"))
    policy = built(instances, prefill="round-robin", decode="round-robin")
    routes = [policy.route(prompt(100), ClusterView(instances)) for _ in range(4)]
    assert [(route.target, route.prefill) for route in routes] == [("i1", "i0"), ("i3", "i2")] * 2


@pytest.mark.parametrize(
    ("decider", "tokens", "apart"),
    [
        ("always", 1, True),
        ("never", 10_000, False),
        ({"name": "prompt-threshold", "colocate_below_tokens": 100}, 99, False),
        ({"name": "prompt-threshold", "colocate_below_tokens": 100}, 100, True),
        # Four blocks of 16 tokens are believed cached on the instance that generates.
        ({"name": "uncached-threshold", "colocate_below_tokens": 100}, 163, False),
        ({"name": "uncached-threshold", "colocate_below_tokens": 100}, 164, True),
    ],
)
def test_the_decider_says_whether_a_prompt_is_computed_apart(decider: Any, tokens: int, apart: bool) -> None:
    instances = cluster(("prefill", "decode"))
    policy = built(instances, [0, 4], prefill="least-loaded", decode="least-loaded", decider=decider)
    route = policy.route(prompt(tokens), ClusterView(instances))
    assert (route.target, route.prefill) == ("i1", "i0" if apart else None)
    assert policy.metrics() == {"pair_split": int(apart), "pair_whole": int(not apart)}


def test_an_ordinary_policy_is_used_for_both_halves_as_two() -> None:
    instances = cluster(("prefill", "prefill", "decode", "decode", "decode"))
    policy = make_pairing(registry.build("routing", "round-robin", ""), instances)
    policy.bind(ToldContext(instances))
    routes = [policy.route(prompt(100), ClusterView(instances)) for _ in range(4)]
    assert [(route.prefill, route.target) for route in routes] == [
        ("i0", "i2"),
        ("i1", "i3"),
        ("i0", "i4"),
        ("i1", "i2"),
    ]
    whole = registry.build("routing", "round-robin", "")
    assert make_pairing(whole, cluster(("both", "both"))) is whole


def test_a_pair_reads_what_its_parts_read() -> None:
    made = registry.build("routing", {"name": "pair", "prefill": "lmetric", "decode": "kv-aware"}, "")
    assert set(made.entry.reported) == {"busy", "watts"}
    assert set(made.entry.exact) == {"inflight", "pending_prefill_tokens", "prefix_index"}
    assert made.seeks_prefixes
    assert not registry.build("routing", "least-loaded-pair", "").seeks_prefixes
    assert registry.build("routing", "prefix-pair", "").seeks_prefixes


def test_scorecards_show_both_halves() -> None:
    instances = cluster(ROLES[:4])
    policy = built(instances, prefill="least-loaded", decode="least-loaded")
    seen = ClusterView(instances)
    seen.explain = True
    card = policy.route(prompt(100), seen).scorecard
    assert (card.candidates, card.picked) == (["i2", "i3"], "i2")
    assert (card.prefill.candidates, card.prefill.picked) == (["i0", "i1"], "i0")


class Refuses:
    def route(self, request: Request, cluster: ClusterView) -> Reject:
        return Reject(f"no {cluster.instances[0].role}")


class Odd:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def route(self, request: Request, cluster: ClusterView) -> Any:
        return self.answer


def test_what_either_half_refuses_is_refused() -> None:
    instances = cluster(ROLES[:4])
    always, seeing = registry.build("decider", "always", ""), Seeing()
    for halves, why in (((Refuses(), seeing), "no prefill"), ((seeing, Refuses()), "no decode")):
        assert Pairing(*halves, always).route(prompt(1), ClusterView(instances)) == Reject(why)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (None, r"prefill: Odd\.route must return a Route.*got None, at request 0"),
        (Route("i3"), r"prefill: Odd routed request 0 to 'i3', which is not one of its candidates \(i0, i1\)"),
        (
            Route("i0", prefill="i1"),
            r"prefill: Odd must choose one of its candidates, .*, at request 0\. .* `pairs = True` in it",
        ),
    ],
)
def test_a_half_that_answers_anything_else_is_told(answer: Any, told: str) -> None:
    pairing = Pairing(Odd(answer), Seeing(), registry.build("decider", "always", ""))
    with pytest.raises(HeadwayError, match=rf"^policies\.routing\.{told}\.$"):
        pairing.route(prompt(1), ClusterView(cluster(ROLES[:4])))


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"prefill": "least"}, r"policies\.routing\.prefill: no routing policy is called 'least'\."),
        ({"decode": "prefix-pair"}, r"policies\.routing\.decode: the policy chooses two instances"),
        ({"decider": "sometimes"}, r"policies\.routing\.decider: no decider is called 'sometimes'\."),
    ],
)
def test_a_wrong_part_is_told_at_its_place(parameters: Any, told: str) -> None:
    with pytest.raises(HeadwayError, match=f"^{told}"):
        registry.build("routing", {"name": "pair", **parameters}, "policies.routing")


# --- in a cluster --------------------------------------------------------------------------------------------------

SPLIT = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}}


def scenario(**policies: Any) -> dict[str, Any]:
    cluster = {**SPLIT, "latency": {"model": "fixed"}}
    return {"workload": {"requests": 60, "rate": "40/s"}, "cluster": cluster, "policies": policies}


class Wrong:
    pairs = True

    def __init__(self, target: str, prefill: str | None) -> None:
        self.answer = Route(target, prefill=prefill)

    def route(self, request: Request, cluster: ClusterView) -> Route:
        return self.answer


@pytest.mark.parametrize(
    ("target", "prefill", "told"),
    [
        ("prefill-0", None, "must return a decode instance as target"),
        ("decode-0", "decode-1", "must return a prefill instance as 'prefill'"),
        ("prefill-0", "prefill-1", "must return a prefill instance as 'prefill'"),
        ("decode-0", "nobody", "to 'nobody', which is not an instance"),
    ],
)
def test_a_pair_of_the_wrong_roles_is_told(target: str, prefill: str | None, told: str) -> None:
    with pytest.raises(HeadwayError, match=f"^policies.routing: Wrong.*{told}"):
        headway.simulate(scenario(), routing=Wrong(target, prefill))


def test_permits_are_of_both_halves_or_of_neither() -> None:
    result = headway.simulate(
        {**scenario(admission={"name": "max-concurrency", "max_queue": 3}, routing="least-loaded-pair")}
    )
    events = sorted(
        [(at, 1) for at in result.requests["routed_ps"] if at >= 0]
        + [
            (at, -1)
            for at, routed in zip(result.requests["finished_ps"], result.requests["routed_ps"], strict=True)
            if routed >= 0
        ]
    )
    taken, most = 0, 0
    for _, change in events:
        taken += change
        most = max(most, taken)
    assert most == 3
    assert result.summary()["requests"]["rejected"] > 0


def test_all_counts_are_given_back() -> None:
    from headway.experiment.run import prepare
    from headway.scenario.scenario import Scenario

    prepared = prepare(Scenario.load(scenario(routing="prefix-pair")))
    prepared.simulation().run(prepared.traffic())
    for view in prepared.setup.views:
        assert (view.inflight, view.inflight_tokens, view.pending_prefill_tokens, view.decode_tokens) == (0, 0, 0, 0)
    assert sum(view.routed for view in prepared.setup.views) == 120


@pytest.mark.parametrize("routing", ["least-kv", "random", "weighted", "sticky"])
def test_where_all_do_both_a_pair_decides_as_its_second_half_alone(routing: str) -> None:
    whole = {"workload": {"requests": 60, "rate": "40/s"}, "cluster": {"instances": 3, "latency": {"model": "fixed"}}}
    alone = headway.simulate(whole, routing=routing)
    pair = headway.simulate(whole, routing={"name": "pair", "decode": routing})
    assert pair.requests == alone.requests
