"""Estimators of output lengths: what they expect, what they learn from, who reads it, and how wrong it is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import headway
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.errors import HeadwayError
from headway.policies import registry
from headway.policies.context import Context
from headway.types import Estimate, Path, Request
from headway.views.cluster import ClusterView
from headway.views.events import Finished
from headway.views.instance import InstanceView

Json = dict[str, Any]
VIEW = InstanceView(0, "a")


def ask(number: int, tokens: int = 100, **fields: Any) -> Request:
    return Request(number, 0, tokens, Path((4 * number + 1,), (tokens,)), **fields)


def bound(spec: Any, lengths: Any = None) -> Any:
    policy = registry.build("estimator", spec, "policies.estimator")
    if hasattr(policy, "bind"):
        context = Context([VIEW], lambda name: Random(name), None, 16)  # type: ignore[arg-type]
        policy.bind(context if lengths is None else context.with_lengths(lengths))
    return policy


def expects(policy: Any, request: Request) -> Estimate:
    answer: Estimate = policy.estimate(request, ClusterView([VIEW]))
    return answer


def teach(policy: Any, lengths: list[int], outcome: str = "completed", **fields: Any) -> None:
    for number, tokens in enumerate(lengths):
        policy.observe(Finished(0, ask(number, **fields), VIEW, outcome, tokens))


# --- what each expects -----------------------------------------------------------------------------------------------


def test_constants_and_ratios_stay_within_what_the_client_allows() -> None:
    assert expects(bound({"name": "constant", "tokens": 300}), ask(0)) == Estimate(300)
    assert expects(bound({"name": "constant", "tokens": 300}), ask(0, max_tokens=20)) == Estimate(20)
    assert expects(bound("ratio"), ask(0, 101)) == Estimate(152)  # 151.5
    assert expects(bound({"name": "ratio", "most_tokens": 90}), ask(0, 101)) == Estimate(90)


def test_a_tenant_s_class_is_like_its_class_until_it_has_answers_of_its_own() -> None:
    policy = bound({"name": "by-class", "least": 3, "unknown_tokens": 77})
    batch, other = ask(0, slo_class="batch", tenant="a"), ask(1, slo_class="batch", tenant="b")
    assert expects(policy, batch) == Estimate(77)
    teach(policy, [10, 20], slo_class="batch", tenant="a")
    assert expects(policy, batch) == Estimate(77)
    teach(policy, [30], slo_class="batch", tenant="a")
    assert expects(policy, batch) == expects(policy, other) == expects(policy, ask(2)) == Estimate(20)
    teach(policy, [500, 600, 700], slo_class="batch", tenant="b")
    # the errors by hand, of the median before each answer: a tenant's class has none yet, its class has
    # (500 - 20) + (600 - 20) + (700 - 30) of 1800 tokens
    assert expects(policy, batch) == Estimate(20)
    assert expects(policy, other) == Estimate(600)
    third = expects(policy, ask(3, slo_class="batch", tenant="c"))
    assert third.tokens == 30 and third.error == pytest.approx((480 + 580 + 670) / 1800)


@pytest.mark.parametrize(("quantile", "tokens"), [(0.01, 1), (0.5, 5), (0.51, 6), (0.9, 9), (0.99, 10)])
def test_a_quantile_is_the_shortest_length_that_covers_this_share(quantile: float, tokens: int) -> None:
    policy = bound({"name": "by-class", "quantile": quantile, "least": 10})
    teach(policy, [3, 1, 2, 10, 9, 8, 4, 5, 6, 7])
    assert expects(policy, ask(0)).tokens == tokens


def test_only_the_newest_answers_count_and_only_completed_ones() -> None:
    policy = bound({"name": "by-class", "least": 1, "kept": 3})
    teach(policy, [1, 1, 1, 50, 60, 70])
    teach(policy, [9999], outcome="failed")
    teach(policy, [0])
    assert expects(policy, ask(0)).tokens == 60


def test_prompts_of_about_the_same_length_share_a_bucket() -> None:
    policy = bound({"name": "by-prompt", "least": 2})
    teach(policy, [10, 10], tokens=256)
    teach(policy, [900, 900], tokens=512)
    assert [expects(policy, ask(0, tokens)).tokens for tokens in (256, 511, 512, 1023)] == [10, 10, 900, 900]
    assert expects(policy, ask(0, 300, slo_class="batch")).tokens == 10  # no bucket of its own: the median of all
    both = bound({"name": "by-prompt", "least": 2, "by_class": False})
    teach(both, [10, 10], tokens=256)
    assert expects(both, ask(0, 300, slo_class="batch")).tokens == 10


def test_the_noisy_oracle_errs_as_told_and_once_for_each_request() -> None:
    exact = bound({"name": "noisy-oracle", "error": 0}, lambda request: 400)
    assert expects(exact, ask(0)) == Estimate(400, 0.0)
    noisy = bound({"name": "noisy-oracle", "error": 0.5}, lambda request: 100_000)
    found = [expects(noisy, ask(number)).tokens for number in range(400)]
    assert found == [expects(noisy, ask(number)).tokens for number in range(400)]
    from math import log

    logs = [log(tokens / 100_000) for tokens in found]
    mean = sum(logs) / 400
    spread = (sum((value - mean) ** 2 for value in logs) / 400) ** 0.5
    assert abs(mean) < 0.08 and 0.45 < spread < 0.55


# --- who reads it ----------------------------------------------------------------------------------------------------


def plane(estimator: Any, routing: Any = "least-loaded", count: int = 2) -> ControlPlane:
    views = [InstanceView(index, f"i{index}", kv_blocks=100) for index in range(count)]
    context = Context(views, lambda name: Random(name), None, 16)  # type: ignore[arg-type]
    stages = {"admission": "always", "priority": "none", "routing": routing}
    built = [registry.build(stage, spec, f"policies.{stage}") for stage, spec in stages.items()]
    return ControlPlane(context, *built, estimator=registry.build("estimator", estimator, "policies.estimator"))


def test_an_instance_shows_what_its_requests_in_flight_are_expected_to_generate() -> None:
    control = plane({"name": "constant", "tokens": 50})
    flights = [control.arrive(0, ask(number)) for number in range(3)]
    assert all(isinstance(flight, Flight) and flight.expected == 50 for flight in flights)
    assert [view.expected_output_tokens for view in control.ordered] == [100, 50]
    assert control.ordered[0].expected_kv_tokens == 300
    control.on_first_token(1, 0)
    control.on_finished(2, 0, "completed", 7)
    assert [view.expected_output_tokens for view in control.ordered] == [50, 50]


def test_a_scorer_prefers_the_instance_with_the_least_expected_kv() -> None:
    """By hand: 100 blocks of 16 tokens. After a request of 100 + 60 tokens, the first instance would hold 320 of 1600
    tokens, the second 160."""
    control = plane({"name": "constant", "tokens": 60}, {"name": "weighted", "scorers": {"expected-kv": 1}})
    first = control.arrive(0, ask(0))
    assert isinstance(first, Flight) and first.view.index == 0
    scorer = registry.build("scorer", "expected-kv", "")
    scorer.bind(control.context)
    assert scorer.score(ask(1), control.ordered, control.cluster) == [1 - 320 / 1600, 1 - 160 / 1600]
    control.ordered[0].inflight_tokens += 3000  # beyond the cache, the fullest instance scores 0
    assert scorer.score(ask(1), control.ordered, control.cluster) == [0.0, 1 - 160 / 3320]
    second = control.arrive(0, ask(1))
    assert isinstance(second, Flight) and second.view.index == 1


def scenario(**changes: Any) -> Json:
    return {
        "seed": 1,
        "workload": {
            "requests": 60,
            "rate": "20/s",
            "prompt_tokens": {"dist": "normal", "mean": 400, "std": 100, "min": 1},
            "output_tokens": {"dist": "exponential", "mean": 60},
        },
        "cluster": {"instances": 2, "max_batch_size": 2, "kv": {"gpu_blocks": 200}},
        **changes,
    }


def test_an_estimator_runs_by_itself_only_if_a_policy_reads_it() -> None:
    assert "estimates" not in headway.simulate(scenario()).summary()
    for policies in (
        {"scheduler": "shortest-expected"},
        {"routing": {"name": "weighted", "scorers": {"expected-kv": 1}}},
    ):
        found = headway.simulate(scenario(policies=policies)).summary()["estimates"]
        assert found["requests"] == 60 and set(found["classes"]) == {"standard"}
    assert headway.simulate(scenario(policies={"estimator": "constant"})).summary()["estimates"]["requests"] == 60


def test_the_summary_has_the_errors_by_hand() -> None:
    workload = {**scenario()["workload"], "output_tokens": 40}
    found = headway.simulate(scenario(workload=workload, policies={"estimator": {"name": "constant", "tokens": 50}}))
    errors = {"requests": 60, "bias": 0.25, "error": 0.25, "mape": 0.25}
    assert found.summary()["estimates"] == {**errors, "classes": {"standard": errors}}


def test_a_policy_that_does_not_declare_the_estimate_cannot_read_it() -> None:
    class Curious:
        def route(self, request: Request, cluster: ClusterView) -> headway.Route:
            return headway.Route(cluster.instances[cluster.expected_tokens % 2].id)

    with pytest.raises(HeadwayError, match=r'exact=\("expected_tokens",\)'):
        headway.simulate(scenario(), routing=Curious())


def test_the_shortest_expected_goes_first() -> None:
    """One place in the batch: while the first is served, the others line up by what the oracle expects."""
    lengths = [30, 50, 10, 40, 20]
    workload = {"requests": 5, "arrival": "constant", "rate": "1000/s", "prompt_tokens": 20}
    workload["output_tokens"] = {"dist": "empirical", "values": lengths}
    cluster = {"instances": 1, "max_batch_size": 1, "latency": {"model": "fixed"}}
    policies = {
        "estimator": {"name": "noisy-oracle", "error": 0},
        "scheduler": {"name": "shortest-expected", "aging": 0},
    }
    found = headway.simulate({"seed": 1, "workload": workload, "cluster": cluster, "policies": policies}).requests
    rest = sorted(range(1, 5), key=lambda row: found["started_ps"][row])
    assert rest == sorted(rest, key=lambda row: found["output_tokens"][row])


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (0, "estimate must return a whole number of tokens from 1"),
        (1.5, "got 1.5"),
        (None, "got None"),
        (Estimate(5, -1.0), "estimate must return"),
    ],
)
def test_a_wrong_estimate_is_told(answer: Any, told: str) -> None:
    class Wrong:
        def estimate(self, request: Request, cluster: ClusterView) -> Any:
            return answer

    with pytest.raises(HeadwayError, match=told):
        headway.simulate(scenario(), estimator=Wrong())


# --- the leap --------------------------------------------------------------------------------------------------------

SPECS: list[Any] = ["by-class", "by-prompt", "ratio", {"name": "noisy-oracle", "error": 0.7}]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_the_leap_equals_the_walk_and_random_cuts(spec: Any) -> None:
    policies = {
        "estimator": spec,
        "scheduler": "shortest-expected",
        "routing": {"name": "weighted", "scorers": {"expected-kv": 1}},
    }
    cluster = {"instances": 2, "max_batch_size": 8, "kv": {"gpu_blocks": 80}}
    found = []
    for leap in (True, False, "random-cuts"):
        result = headway.simulate(
            scenario(policies=policies, cluster=cluster, leap=leap, routers={"count": 2, "sync_interval": "50ms"})
        )
        found.append(({name: result.requests[name] for name in result.requests}, result.summary()))
    assert found[0] == found[1] == found[2]
    assert sum(found[0][0]["preemptions"]) > 0


def test_decisions_have_the_estimate_and_runs_can_be_ranked_by_its_error() -> None:
    plain = headway.simulate(scenario(), trace="decisions")
    assert plain.decisions is not None and {one.expected_tokens for one in plain.decisions} == {None}
    given = scenario(policies={"estimator": {"name": "noisy-oracle", "error": 0.4}})
    result = headway.simulate(given, trace="decisions")
    assert result.decisions is not None
    lengths = result.requests["output_tokens"]
    assert [one.expected_error for one in result.decisions] == [0.4] * 60
    wrong = sum(abs(one.expected_tokens - lengths[one.request]) for one in result.decisions)
    assert wrong / sum(lengths) == pytest.approx(result.summary()["estimates"]["error"])
    assert result.decisions.columns()["expected_tokens"][::2] == [one.expected_tokens for one in result.decisions]
    ranked = headway.compare(scenario(), ["by-class", "constant"], stage="estimator", by="estimates.error")
    errors = {name: ranked[name]["estimates"]["error"] for name in ("by-class", "constant")}
    assert ranked.best == min(errors, key=errors.__getitem__) and len(set(errors.values())) == 2
