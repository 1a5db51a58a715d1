"""Scorecards: what each filter removed, what each scorer said, and that explaining a decision changes none."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import Any

import pytest
from states import ToldContext, bound, prompt, views

import headway
from headway.errors import HeadwayError
from headway.policies import registry
from headway.types import Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

Json = dict[str, Any]
CARDS = ("weighted", "kv-aware", "lmetric", "lmetric-plus-one", "prefix-aware", "prefix-overlap", "cost-escalation")
CARDS += ("prefill-cost-routing", "weighted-affinity-routing", "kv-aware-spill", "unified", "least-prefill-work")
CARDS += ("least-delay",)
SINGLE = [name for name in CARDS if name not in ("weighted", "kv-aware-spill")]  # their cards have one score
PROFILE = {
    "name": "weighted",
    "scorers": {"queue-depth": 1, "prefix-affinity": 2, "load-balance": 1},
    "filters": [{"name": "kv-below", "threshold": 0.4}, {"name": "load-below", "max_load": 2}],
    "picker": "weighted-random",
}


def explained(policy: Any, instances: list[InstanceView]) -> Scorecard:
    cluster = ClusterView(instances)
    assert policy.route(prompt(), cluster).scorecard is None
    cluster.explain = True
    card = policy.route(prompt(), cluster).scorecard
    assert isinstance(card, Scorecard)
    return card


def profile(instances: list[InstanceView], **given: Any) -> Any:
    policy = registry.build("routing", {"name": "weighted", **given}, "policies.routing")
    policy.bind(ToldContext(instances))
    return policy


def test_the_scorecard_lists_what_each_filter_removed() -> None:
    instances = views(4, queued=[0, 9, 3, 1], kv_used=[1, 0, 0, 0], inflight=[0, 9, 3, 1])
    filters = [
        {"name": "kv-below", "threshold": 0.5},
        {"name": "load-below", "max_load": 0},
        {"name": "load-below", "max_load": 5},
        {"name": "load-spread", "absolute": 100},
    ]
    card = explained(profile(instances, scorers={"queue-depth": 2}, filters=filters), instances)
    assert card.candidates == ["i0", "i1", "i2", "i3"]
    assert list(card.removed.items()) == [
        ("kv-below", ["i0"]),
        ("load-below", ["i1", "i2", "i3"]),
        ("load-below#2", ["i1"]),
        ("load-spread", []),
    ]
    assert card.passed_over == ["load-below"]
    assert (card.left, card.picked) == (["i2", "i3"], "i3")


def test_scores_are_aligned_with_who_was_left_and_two_of_one_name_stay_apart(tmp_path: Path) -> None:
    instances = views(3, queued=[4, 0, 2], inflight=[9, 0, 3])
    scorers: list[Json] = [{"name": "queue-depth", "weight": 3}]
    for value in (0.25, 0.5):
        file = tmp_path / f"{value}.py"
        file.write_text(
            f"class Mine:\n    def score(self, request, some, cluster):\n        return [{value}] * len(some)\n"
        )
        scorers.append({"name": f"{file}:Mine", "weight": 1})
    filters = [{"name": "load-below", "max_load": 3}]
    card = explained(profile(instances, scorers=scorers, filters=filters), instances)
    assert card.left == ["i1", "i2"]
    assert sorted(card.scores.values()) == [[0.25, 0.25], [0.5, 0.5], [1.0, 0.0]]
    assert set(card.scores) == {"queue-depth", "Mine", "Mine#2"}
    weights = dict(zip(card.scores, profile(instances, scorers=scorers).weights, strict=True))
    for at, total in enumerate(card.totals):
        assert total == pytest.approx(sum([weights[name] * values[at] for name, values in card.scores.items()]))
    assert card.picked == "i1" and not card.lowest_wins


@pytest.mark.parametrize("name", SINGLE)
def test_a_policy_with_one_score_picks_the_best_of_its_card(name: str) -> None:
    instances = views(3, inflight=[3, 1, 2], pending_prefill_tokens=[10, 500, 20], queued=[4, 1, 0], watts=[9, 1, 5])
    card = explained(bound(name, instances, hits=[0, 0, 1]), instances)
    best = min if card.lowest_wins else max
    assert card.picked == card.left[card.totals.index(best(card.totals))]
    assert card.left == card.candidates == ["i0", "i1", "i2"]
    assert card.scores["score"] == card.totals
    assert len(set(card.totals)) > 1


TERMS: dict[str, list[str]] = {  # policy -> the terms of its score
    "kv-aware": ["kv", "load", "power", "capacity"],
    "prefix-aware": ["cache", "load"],
    "prefix-overlap": ["cache", "load"],
    "prefill-cost-routing": ["prefill", "decode", "kv"],
    "weighted-affinity-routing": ["cache", "load", "queue"],
}


@pytest.mark.parametrize("name", TERMS)
def test_the_terms_of_a_formula_are_in_the_card_and_add_up(name: str) -> None:
    instances = views(3, inflight=[3, 1, 2], pending_prefill_tokens=[10, 500, 20], queued=[4, 1, 0], watts=[9, 1, 5])
    policy = bound(name, instances, hits=[0, 0, 1])
    card = explained(policy, instances)
    assert list(card.scores) == ["score", *TERMS[name]]
    for at, total in enumerate(card.totals):
        weights = {term: getattr(policy, term) for term in TERMS[name]} if name == "kv-aware" else {}
        assert total == pytest.approx(sum([weights.get(term, 1) * card.scores[term][at] for term in TERMS[name]]))
    assert len({tuple(row) for row in card.scores.values()}) > 1


@pytest.mark.parametrize("name", ["lmetric", "lmetric-plus-one", "unified", "least-prefill-work"])
def test_policies_of_the_b3_family_show_the_quantities_of_their_scores(name: str) -> None:
    instances = views(3, inflight=[3, 1, 2], pending_prefill_tokens=[10, 500, 20])
    card = explained(bound(name, instances, hits=[0, 0, 1]), instances)
    joining = name == "lmetric-plus-one"
    for at, view in enumerate(instances):
        pending, uncached, requests = (card.scores[term][at] for term in list(card.scores)[1:])
        assert (pending, requests) == (view.pending_prefill_tokens, view.inflight + joining)
        work = pending + uncached
        assert card.totals[at] == (work if name == "least-prefill-work" else work * requests)


@pytest.mark.parametrize("name", registry.names("routing"))
def test_every_policy_gives_a_reason(name: str) -> None:
    instances = views(3, inflight=[3, 1, 2])
    instances[0].role = "prefill" if "pair" in name else "both"
    for view in instances[1:]:
        view.role = "decode" if "pair" in name else "both"
    policy = bound(name, instances, hits=[0, 0, 1])
    assert policy.route(prompt(), ClusterView(instances)).reason


def test_a_term_that_a_program_does_not_compute_for_an_instance_has_no_value() -> None:
    source = """
def score(request, instance, cluster):
    if instance.index == 1:
        return 0
    return score_term("load", 0.5 * instance.inflight) + 1
"""
    instances = views(3, inflight=[3, 1, 2])
    policy = registry.build("routing", {"name": "code", "source": source}, "policies.routing")
    policy.bind(ToldContext(instances))
    card = explained(policy, instances)
    assert card.totals == [2.5, 0, 2.0]
    assert card.scores["load"][::2] == [1.5, 1.0] and isnan(card.scores["load"][1])


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("def score(request, instance, cluster):\n    return score_term(1, 2)", "needs a name in quotes"),
        ("def route(request, instances, cluster):\n    return score_term('a', 0)", "needs the instance"),
    ],
)
def test_a_wrong_call_of_score_term_is_rejected(source: str, wrong: str) -> None:
    with pytest.raises(HeadwayError, match=wrong):
        registry.build("routing", {"name": "code", "source": source}, "policies.routing")


def test_explaining_leaves_the_memory_of_a_program_alone() -> None:
    source = """
def score(request, instance, cluster):
    seen = recall(instance.index, 0) + 1
    remember(instance.index, seen)
    return score_term("seen", seen)
"""
    instances = views(2)
    policy = registry.build("routing", {"name": "code", "source": source}, "policies.routing")
    policy.bind(ToldContext(instances))
    cluster, totals = ClusterView(instances), []
    for cluster.explain in (True, False, True):
        card = policy.route(prompt(), cluster).scorecard
        totals.append(None if card is None else card.totals)
    assert totals == [[1, 1], None, [3, 3]]


def scenario(routing: Any, **more: Any) -> Json:
    return {
        "seed": 4,
        "workload": {
            "requests": 120,
            "rate": "200/s",
            "prompt_tokens": 60,
            "output_tokens": {"dist": "exponential", "mean": 30, "max": 100},
            "prefix": {"groups": 3, "tokens": 32},
            "timeout": "400ms",
        },
        "cluster": {"instances": 3, "max_batch_size": 4, "kv": {"gpu_blocks": 40}, "latency": {"model": "fixed"}},
        "policies": {"routing": routing, **more},
    }


@pytest.mark.parametrize("flow", ["none", {"name": "bands", "queue_threshold": 1}])
@pytest.mark.parametrize(
    "routing", [*registry.names("routing"), PROFILE], ids=lambda one: one if one is not PROFILE else "profile"
)
def test_being_explained_changes_no_byte_of_the_result(routing: Any, flow: Any) -> None:
    heard: list[tuple[Request, Route]] = []
    given = scenario(routing, flow=flow)
    told = headway.simulate(given, explain=lambda request, route: heard.append((request, route)))
    plain = headway.simulate(given)
    assert told.to_json() == plain.to_json()
    assert told.requests == plain.requests
    names = [None if at < 0 else f"instance-{at}" for at in plain.requests["instance"]]
    went = {request.id: route.target for request, route in heard}
    assert [went.get(row) for row in range(len(names))] == names
    name = routing if isinstance(routing, str) else routing["name"]
    for _, route in heard:
        assert (route.scorecard is not None) == (name in CARDS)
        if route.scorecard is not None:
            assert route.scorecard.picked == route.target


def test_the_decisions_of_several_routers_are_all_explained() -> None:
    heard: list[int] = []
    given = {**scenario(PROFILE), "routers": 3}
    told = headway.simulate(given, explain=lambda request, route: heard.append(request.id))
    assert sorted(heard) == list(range(120))
    assert told.to_json() == headway.simulate(given).to_json()


def test_a_mistake_in_the_listener_is_not_blamed_on_a_policy() -> None:
    def wrong(request: Request, route: Route) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        headway.simulate(scenario("round-robin"), explain=wrong)
