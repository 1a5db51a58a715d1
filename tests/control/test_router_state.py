"""What a router remembers of its own past, and how what it believes cached compares with what is found."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

import headway
from headway.control.flights import Flight
from headway.control.plane import ControlPlane
from headway.control.router_state import RouterState
from headway.errors import HeadwayError, UndeclaredSignal
from headway.policies import registry
from headway.policies.context import Context
from headway.policies.priority import NoPriority
from headway.types import ADMIT, PS_PER_SECOND, Delay, Path, Reject, Request
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

SECOND = PS_PER_SECOND


def request(number: int, tenant: str = "a", slo_class: str = "standard") -> Request:
    return Request(number, 0, 100, Path((4 * number + 1,), (100,)), tenant=tenant, slo_class=slo_class)


class Looking:
    """Admits what it is told to, and remembers what it saw of the tenants and totals."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[tuple[Any, ...]] = []

    def admit(self, asked: Request, cluster: ClusterView) -> Any:
        tenant = cluster.tenants[asked.tenant]
        self.seen.append((tenant.requests, tenant.active, tenant.rate, cluster.totals.inflight, cluster.totals.rate))
        return self.answers.pop(0) if self.answers else ADMIT


def plane(admission: Any, routing: Any = None) -> ControlPlane:
    context = Context([InstanceView(0, "i0")], Random, None, 16)  # type: ignore[arg-type]
    routing = routing or registry.build("routing", "round-robin", "")
    return ControlPlane(context, admission, NoPriority(), routing)


# --- windows -----------------------------------------------------------------------------------------------------


def test_a_request_leaves_the_rate_ten_seconds_after_it_came() -> None:
    cluster = ClusterView([])
    state = RouterState(cluster)
    state.on_arrival(5, request(0))
    state.on_arrival(7, request(1, "b"))
    for now, rates in ((7, (0.1, 0.2)), (10 * SECOND + 4, (0.1, 0.2)), (10 * SECOND + 5, (0.0, 0.1))):
        cluster.now_ps = now
        assert (cluster.tenants["a"].rate, cluster.totals.rate) == rates


def test_throughput_is_the_output_of_what_ended_in_the_window() -> None:
    cluster = ClusterView([])
    state = RouterState(cluster)
    for number in range(3):
        state.on_routed(request(number))
    view = InstanceView(0, "i0")
    state.on_finished(SECOND, request(0), view, 30, None)
    state.on_finished(3 * SECOND, request(1), view, 70, None)
    cluster.now_ps = 3 * SECOND
    assert (cluster.totals.throughput, cluster.totals.inflight) == (10.0, 1)
    cluster.now_ps = 11 * SECOND
    assert cluster.totals.throughput == 7.0


def test_a_burst_is_a_second_with_twice_the_usual_and_five_requests_at_least() -> None:
    cluster = ClusterView([])
    state = RouterState(cluster)
    number = 0

    def come(at: float, count: int = 1, tenant: str = "a") -> bool:
        nonlocal number
        for _ in range(count):
            number += 1
            cluster.now_ps = int(at * SECOND)
            state.on_arrival(cluster.now_ps, request(number, tenant))
        return cluster.tenants[tenant].burst

    assert not any(come(at / 5) for at in range(100))  # 5/s, from its first request on
    assert not come(20, 5)
    assert come(20.1, 6)  # 10 and more in a second, where 5 are usual
    cluster.now_ps = int(21.5 * SECOND)
    assert not cluster.tenants["a"].burst
    assert not come(40, 4, "quiet")
    assert not come(60, 4, "quiet")  # more than usual, but four are chance
    assert come(60, 1, "quiet")


# --- tenants and totals ------------------------------------------------------------------------------------------


def test_a_request_counts_once_however_often_admission_is_asked() -> None:
    door = Looking(Delay(5), ADMIT, Reject("no"))
    control = plane(door)
    control.arrive(SECOND, request(0))
    assert control.wake(SECOND + 5) is not None
    control.arrive(SECOND + 9, request(1))
    control.on_finished(SECOND + 11, 0, "completed", 3)
    control.arrive(SECOND + 12, request(2))
    assert door.seen == [(1, 0, 0.1, 0, 0.1), (1, 0, 0.1, 0, 0.1), (2, 1, 0.2, 1, 0.2), (3, 0, 0.3, 0, 0.3)]


def test_a_tenant_has_the_class_of_its_latest_request_and_one_never_seen_has_nothing() -> None:
    control = plane(Looking())
    control.arrive(0, request(0, "a", "batch"))
    control.arrive(1, request(1, "a", "realtime"))
    tenants = control.cluster.tenants
    assert (tenants["a"].slo_class, tenants["a"].active, list(tenants)) == ("realtime", 2, ["a"])
    nobody = tenants["nobody"]
    assert (nobody.requests, nobody.active, nobody.rate, nobody.slo_class, nobody.burst) == (0, 0, 0.0, "", False)
    assert "nobody" not in tenants and len(tenants) == 1


def declaring(exact: tuple[str, ...] | None, reported: tuple[str, ...] | None = ()) -> Any:
    made = Looking()
    made.entry = registry.Entry("admission", "looking", Looking, exact or (), reported or (), False)  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(("declared", "missing"), [((), "tenants"), (("totals",), "tenants"), (("tenants",), "totals")])
def test_what_nobody_declares_is_not_kept_and_reading_it_is_told(declared, missing) -> None:
    control = plane(declaring(declared))
    assert (control.audience.state is None) == (not declared)
    sentence = rf"^policies: 'cluster\.{missing}' was read, but no policy of this run declares it. Add exact=\("
    with pytest.raises(UndeclaredSignal, match=sentence):
        control.arrive(0, request(0))
    assert not hasattr(control.cluster, missing)


def test_who_declares_both_or_nothing_may_read_both() -> None:
    for admission in (declaring(("tenants", "totals")), Looking()):
        plane(admission).arrive(0, request(0))
        assert len(admission.seen) == 1


def test_a_policy_line_that_says_nothing_reads_everything_and_one_that_says_something_does_not(monkeypatch) -> None:
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))

    @registry.policy("admission", "silent")
    class Silent:
        def admit(self, asked: Request, cluster: ClusterView) -> Any:
            return ADMIT

    @registry.policy("admission", "terse", reported=())
    class Terse(Silent):
        pass

    assert plane(Silent()).audience.state is not None
    assert plane(Terse()).audience.state is None


def test_the_built_in_policies_keep_no_state_that_they_do_not_read() -> None:
    always = registry.build("admission", "always", "")
    assert plane(always, registry.build("routing", "least-loaded", "")).audience.state is None


def test_a_run_in_which_a_policy_reads_the_tenants_sees_them_all() -> None:
    scenario = {
        "workload": {"duration": "20s", "tenants": {"a": {"rate": "4/s"}, "b": {"rate": "1/s", "priority": "batch"}}},
        "cluster": {"instances": 2, "latency": {"model": "fixed"}},
        "policies": {"routing": "round-robin"},
    }
    seen: dict[str, tuple[int, str]] = {}

    class Door:
        def admit(self, asked: Request, cluster: ClusterView) -> Any:
            for name, tenant in cluster.tenants.items():
                seen[name] = tenant.requests, tenant.slo_class
            assert cluster.totals.inflight == sum(view.inflight for view in cluster.instances)
            assert cluster.totals.inflight == sum(tenant.active for tenant in cluster.tenants.values())
            return ADMIT

    done = headway.simulate(scenario, admission=Door())
    arrived = {group["id"]: group["requests"]["arrived"] for group in done.summary()["tenants"]}
    assert seen == {"a": (arrived["a"], "standard"), "b": (arrived["b"], "batch")}


# --- what the router believes: the seed's scenarios ---------------------------------------------------------------

CACHED: dict[str, Any] = {
    "seed": 1,
    "workload": {
        "requests": 3,
        "rate": "1/s",
        "prompt_tokens": 80,
        "output_tokens": 4,
        "prefix": {"groups": 1, "tokens": 64},
    },
    "cluster": {"instances": 2, "kv": {"gpu_blocks": 64}, "latency": {"model": "fixed"}},
    "policies": {"routing": {"name": "least-prefill-work", "block_tokens": 16}},
}
BLOCKS = {"block_tokens": 16}


@pytest.mark.parametrize("name", ["prefix-affinity", "lmetric-plus-one", "unified", "least-prefill-work", "weighted"])
def test_scenario_route_to_instance_with_cached_prefix(name) -> None:
    """Given instance 0 has prefix "0xABC123" in GPU tier, and instance 1 does not have prefix "0xABC123", when a
    request with prefix "0xABC123" arrives, then the routing policy selects instance 0."""
    prefix = Path((0xABC123,), (64,))
    routing = registry.build("routing", {"name": name, **({} if name == "weighted" else BLOCKS)}, "")
    instances = [InstanceView(0, "i0"), InstanceView(1, "i1")]
    context = Context(instances, Random, None, 16)  # type: ignore[arg-type]
    control = ControlPlane(context, registry.build("admission", "always", ""), NoPriority(), routing)
    for index in control.indexes:
        index.touch(0, prefix)
    flight = control.arrive(0, Request(0, 0, 64, prefix))
    assert isinstance(flight, Flight)
    assert flight.view is instances[0] and flight.cached == 64


def test_a_request_goes_where_its_prefix_is_and_the_prediction_is_found_true() -> None:
    done = headway.simulate(CACHED)
    assert done.requests["instance"] == [0, 0, 0]
    assert done.requests["predicted_tokens"] == done.requests["cached_tokens"] == [0, 64, 64]
    assert done.summary()["shadow"] == {
        "divergences": 0,
        "unexpected_misses": 0,
        "unexpected_hits": 0,
        "divergence_rate": 0.0,
        "too_high_tokens": 0,
        "too_high_share": 0.0,
        "too_low_tokens": 0,
        "too_low_share": 0.0,
        "tolerance_tokens": 15,
        "token_error": 0.0,
        "token_bias": 0.0,
    }


def test_scenario_shadow_divergence_tracking() -> None:
    """Given router's shadow model predicts prefix "0xABC" is on instance 0, and actual cache state shows prefix was
    evicted, when request with prefix "0xABC" is routed to instance 0, then a shadow_divergence anomaly is logged, and
    routing record shows ExpectedCacheHit=true, CacheHit=false."""
    # Two prefixes of four blocks in a cache of six, all of which a request takes: each evicts the other.
    workload = {**CACHED["workload"], "requests": 9, "prefix": {"groups": 2, "tokens": 64}}
    cluster = {**CACHED["cluster"], "instances": 1, "kv": {"gpu_blocks": 6}}
    done = headway.simulate({**CACHED, "workload": workload, "cluster": cluster})
    table, shadow = done.requests, done.summary()["shadow"]
    expected = [tokens > 0 for tokens in table["predicted_tokens"]]
    found = [tokens > 0 for tokens in table["cached_tokens"]]
    evicted = [row for row in range(9) if expected[row] and not found[row]]
    assert evicted
    assert table["instance"] == [0] * 9
    assert shadow["unexpected_misses"] == shadow["divergences"] == len(evicted)
    assert shadow["divergence_rate"] == len(evicted) / 9
    assert shadow["token_error"] == shadow["token_bias"] > 0


def test_without_a_cache_every_expected_hit_is_a_miss() -> None:
    done = headway.simulate(CACHED, overrides="cluster.kv.prefix_caching=false")
    assert done.requests["predicted_tokens"] == [0, 64, 64] and done.requests["cached_tokens"] == [0, 0, 0]
    shadow = done.summary()["shadow"]
    assert (shadow["divergences"], shadow["divergence_rate"], shadow["token_error"]) == (2, 2 / 3, 128 / 3)


def test_requests_of_the_warm_up_and_those_that_never_started_are_in_no_shadow() -> None:
    done = headway.simulate(CACHED, overrides=["cluster.kv.prefix_caching=false", "warmup=2"])
    assert (done.summary()["shadow"]["divergences"], done.summary()["shadow"]["divergence_rate"]) == (1, 1.0)


def test_a_hit_that_was_not_expected_counts_too() -> None:
    """A router that remembers one block for each instance believes less than is cached."""
    routing = {"name": "least-prefill-work", "block_tokens": 16, "lru_blocks": 1}
    done = headway.simulate(CACHED, overrides="cluster.instances=1", routing=routing)
    assert done.requests["predicted_tokens"] == [0, 16, 16] and done.requests["cached_tokens"] == [0, 64, 64]
    shadow = done.summary()["shadow"]
    assert (shadow["divergences"], shadow["unexpected_hits"], shadow["unexpected_misses"]) == (2, 2, 0)
    assert (shadow["too_low_tokens"], shadow["too_low_share"]) == (96, 96 / 240)
    assert (shadow["token_error"], shadow["token_bias"]) == (32.0, -32.0)


def test_a_belief_in_larger_blocks_than_the_engine_s_is_not_wrong_by_less_than_a_block() -> None:
    routing = {"name": "least-prefill-work", "block_tokens": 512}
    done = headway.simulate(CACHED, overrides="cluster.instances=1", routing=routing)
    assert done.requests["predicted_tokens"] == [0, 0, 0] and done.requests["cached_tokens"] == [0, 64, 64]
    shadow = done.summary()["shadow"]
    assert (shadow["divergences"], shadow["tolerance_tokens"]) == (0, 511)
    assert (shadow["token_error"], shadow["token_bias"]) == (128 / 3, -128 / 3)


def test_who_believes_nothing_has_no_shadow() -> None:
    assert "shadow" not in headway.simulate(CACHED, routing="round-robin").summary()
    assert "shadow" in headway.simulate(CACHED, overrides=["workload.requests=1"]).summary()


def test_scenario_deterministic_replay(tmp_path) -> None:
    """Given a simulation with key (policy_1, seed_42, seed_99, seed_7), when the simulation runs twice, then both runs
    produce identical metrics and traces."""
    scenario = {
        **CACHED,
        "seed": {"workload": 42, "simulation": 99, "jitter": 7},
        "workload": {"duration": "5s", "tenants": {"a": {"rate": "8/s"}, "b": {"rate": "9/s", "priority": "batch"}}},
        "policies": {
            "priority": "by-class",
            "flow": {"name": "bands", "fairness": "weighted", "ttl": "500ms", "queue_threshold": 1, "capacity": 20},
            "routing": {"name": "weighted", "picker": "weighted-random"},
        },
    }
    for name in ("one", "two"):
        headway.simulate(scenario).save(tmp_path / name)
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert len(files) >= 4
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_the_sentence_is_a_mistake_of_the_users_and_an_attribute_that_is_not_there() -> None:
    cluster = ClusterView([])
    with pytest.raises(HeadwayError):
        _ = cluster.tenants
    with pytest.raises(AttributeError, match="'ClusterView' object has no attribute 'tenant'") as error:
        _ = cluster.tenant  # type: ignore[attr-defined]
    assert not isinstance(error.value, HeadwayError)
