"""Comparing from Python: whatever names a policy is taken, and the verdict claims no more than the figures."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway import HeadwayError, Route, registry
from headway.experiment.verdict import verdict

SCENARIO: dict[str, Any] = {
    "seed": 5,
    "workload": {"requests": 40, "rate": "20/s", "prompt_tokens": 200, "output_tokens": 10},
    "cluster": {"instances": 3, "kv": {"gpu_blocks": 400}, "latency": {"model": "fixed"}},
    "slo": {"ttft": "500ms", "tpot": "50ms"},
}


class Last:
    def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
        return Route(cluster.instances[-1].id)


class Picky(Last):
    def __init__(self, taste: str) -> None:
        self.taste = taste


class Refuse:
    def admit(self, request: headway.Request, cluster: headway.ClusterView) -> headway.Reject:
        return headway.Reject("no")


def routed(result: headway.Result) -> list[int]:
    return [instance["requests"] for instance in result.summary()["instances"]]


# --- whatever names a policy ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["always_busiest", {"name": "always-busiest"}])
def test_simulate_takes_a_name_or_a_mapping(policy: Any) -> None:
    result = headway.simulate(SCENARIO, routing=policy)
    assert routed(result) == [40, 0, 0]
    assert result.scenario["policies"]["routing"] == {"name": "always-busiest"}


@pytest.mark.parametrize("policy", [Last, Last(), Picky("sweet")])
def test_simulate_takes_a_class_or_an_object(policy: Any) -> None:
    assert routed(headway.simulate(SCENARIO, routing=policy)) == [0, 0, 40]


@pytest.mark.parametrize("policy", [Refuse, Refuse()])
def test_admission_is_taken_likewise(policy: Any) -> None:
    assert headway.simulate(SCENARIO, admission=policy).summary()["requests"]["rejected"] == 40
    assert headway.simulate(SCENARIO, admission="always").summary()["requests"]["rejected"] == 0


def test_an_object_of_the_catalogue_is_written_with_its_parameters() -> None:
    from headway.policies.b3 import Unified

    result = headway.simulate(SCENARIO, routing=Unified(overload_factor=3.0))
    spec = result.scenario["policies"]["routing"]
    assert (spec["name"], spec["overload_factor"]) == ("unified", 3.0)
    assert headway.simulate(result.scenario) == result


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (7, "routing: expected a policy's name, a mapping with 'name', or a class or object with the method 'route'"),
        (Refuse, "with the method 'route'"),
        (Picky, "routing: Picky could not be made: TypeError"),
        ("rnadom", "no routing policy is called 'rnadom'. Did you mean 'random'?"),
        ({"name": "unified", "overload": 2}, "policies.routing.overload"),
    ],
)
def test_what_is_no_policy_is_told_without_a_word_of_the_command_line(policy: Any, message: str) -> None:
    for call in (lambda: headway.simulate(SCENARIO, routing=policy), lambda: headway.compare(SCENARIO, [policy])):
        with pytest.raises(HeadwayError) as caught:
            call()
        assert "--" not in str(caught.value)
    with pytest.raises(HeadwayError) as caught:
        headway.simulate(SCENARIO, routing=policy)
    assert message in str(caught.value)


def test_a_mistake_in_an_object_is_told_and_its_cause_kept() -> None:
    class Fails(Last):
        def route(self, request: headway.Request, cluster: headway.ClusterView) -> Route:
            raise LookupError("lost")

    with pytest.raises(
        HeadwayError, match=r"test_compare\.py line \d+, in route: LookupError: lost, at request 0\."
    ) as e:
        headway.simulate(SCENARIO, routing=Fails())
    assert isinstance(e.value.__cause__, LookupError)


def test_compare_takes_names_mappings_classes_and_objects() -> None:
    chosen = ["random", {"name": "unified", "overload_factor": 3}, Last, Picky("sour")]
    comparison = headway.compare(SCENARIO, chosen)
    assert sorted(name for name, _ in comparison.ranked) == ["Last", "Picky", "random", "unified(overload_factor=3)"]
    assert comparison["Last"] == headway.simulate(SCENARIO, routing=Last).summary()
    assert comparison["unified"] == headway.simulate(SCENARIO, routing=chosen[1]).summary()


@pytest.mark.parametrize("policies", ["random", {"name": "random"}, ["random"]])
def test_a_single_policy_needs_no_list(policies: Any) -> None:
    assert [name for name, _ in headway.compare(SCENARIO, policies).ranked] == ["random"]


def test_text_may_name_several() -> None:
    found = headway.compare(SCENARIO, "random, {name: weighted, scorers: {load-balance: 1}}").ranked
    assert {name for name, _ in found} == {"random", "weighted(load-balance:1)"}


def test_no_policy_is_an_error_that_lists_them() -> None:
    with pytest.raises(HeadwayError, match=r"^policies: name at least one routing policy\. Known: .*round-robin"):
        headway.compare(SCENARIO, [])


def test_the_scenarios_own_policy_is_labelled_with_what_is_not_default() -> None:
    routing = {"name": "weighted", "scorers": [{"name": "prefix-affinity", "weight": 1, "lru_blocks": 9}]}
    own = {**SCENARIO, "policies": {"routing": routing}}
    names = [name for name, _ in headway.compare(own, ["weighted", "random"]).ranked]
    assert "weighted(prefix-affinity:1 lru_blocks=9)" in names
    profile = {"kv-utilization": 2, "prefix-affinity": 3, "queue-depth": 2}
    default = {**SCENARIO, "policies": {"routing": {"name": "weighted", "scorers": profile}}}
    assert "weighted" in [name for name, _ in headway.compare(default, ["weighted", "random"]).ranked]


# --- the verdict ------------------------------------------------------------------------------------------------------

SLO = {"slo": {"ttft": "1s", "tpot": None}, "warmup": 0}
NO_SLO = {"slo": {"ttft": None, "tpot": None}, "warmup": 0}


def summary(
    share: float = 1.0, ttft: float | None = 100.0, e2e: float | None = 1000.0, lost: int = 0
) -> dict[str, Any]:
    requests = {"arrived": 100, "completed": 100 - lost, "rejected": lost, "timed_out": 0, "failed": 0, "in_flight": 0}
    return {
        "requests": requests,
        "latency": {"ttft": {"p99": ttft}, "e2e": {"mean": e2e}},
        "slo": {"goodput_ratio": share, "ttft_attainment": share, "tpot_attainment": None},
    }


def test_a_clear_winner_is_named_against_round_robin() -> None:
    ranked = [("a", summary(0.98, 100)), ("b", summary(0.97, 120)), ("round-robin", summary(0.8, 300))]
    assert verdict(ranked, SLO) == (
        "a serves this best: 98.0 % within the SLO, TTFT p99 100.0 ms "
        "(round-robin: 80.0 % within the SLO, TTFT p99 300.0 ms)."
    )


def test_policies_that_hardly_differ_are_level() -> None:
    ranked = [
        ("unified", summary(0.9994, 100)),
        ("lmetric-plus-one", summary(0.9992, 101)),
        ("lmetric", summary(0.9991, 102)),
        ("weighted", summary(0.999, 103)),
        ("random", summary(0.9, 100)),
    ]
    assert verdict(ranked, SLO) == (
        "unified, lmetric-plus-one and lmetric are level: 99.9 % within the SLO, TTFT p99 100.0 to 102.0 ms "
        "(weighted: 99.9 % within the SLO, TTFT p99 103.0 ms)."
    )


def test_many_level_policies_are_counted() -> None:
    said = verdict([(f"p{number}", summary()) for number in range(9)], SLO)
    assert said == "p0, p1, p2, p3 and 5 others are level: 100.0 % within the SLO, TTFT p99 100.0 ms."


def test_without_an_slo_policies_are_level_by_end_to_end_time() -> None:
    ranked = [("a", summary(e2e=1000)), ("b", summary(e2e=1010)), ("c", summary(e2e=1010, lost=1))]
    said = "a and b are level: E2E 1,000 to 1,010 ms on average (c: E2E 1,010 ms on average)."
    assert verdict(ranked, NO_SLO) == said


def test_where_nobody_meets_the_slo_nobody_is_best() -> None:
    ranked = [("a", summary(0.31, 9000)), ("b", summary(0.2, 9500))]
    assert verdict(ranked, SLO) == (
        "No policy serves this within the SLO: a comes closest, 31.0 % within the SLO, TTFT p99 9,000.0 ms "
        "(b: 20.0 % within the SLO, TTFT p99 9,500.0 ms)."
    )


def test_one_alone_and_nothing_at_all_are_said_plainly() -> None:
    assert verdict([("a", summary(0.9))], SLO) == "a ran alone: 90.0 % within the SLO, TTFT p99 100.0 ms."
    nothing = summary(0.0, None, None, lost=100)
    assert verdict([("a", nothing), ("b", nothing)], SLO) == "No request was completed: of 100, 100 rejected."
    assert verdict([("a", summary())], {**SLO, "warmup": 100}).startswith("No request is left to count")


def test_an_oracle_is_marked_and_never_best_unless_all_are() -> None:
    oracle = {"name": "weighted", "scorers": {"oracle-prefix": 1}}
    name = "weighted(oracle-prefix:1)"
    comparison = headway.compare(SCENARIO, [oracle, "always-busiest"])
    assert comparison.best == "always-busiest"
    assert comparison.oracles == (name,)
    entries = {entry["name"]: entry["oracle"] for entry in comparison.summary()["policies"]}
    assert entries == {name: True, "always-busiest": False}
    assert f"{name}, an oracle, shows what more there is" in comparison.verdict
    assert headway.compare(SCENARIO, [oracle]).best == name


def test_policies_that_decide_alike_all_stay() -> None:
    names = [name for name, _ in headway.compare(SCENARIO).ranked]
    assert sorted(names) == sorted(registry.names("routing"))
