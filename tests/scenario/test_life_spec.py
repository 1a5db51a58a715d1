"""The keys of a scenario about instances that come and go: what they mean, what is told of mistakes, and that they
resolve to something that reads the same."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from headway.config.section import read
from headway.errors import HeadwayError
from headway.experiment.run import prepare
from headway.policies.scaling.thresholds import Static
from headway.scenario.life_spec import Drain, Fault, Scaling, Warmup
from headway.scenario.scenario import Scenario

S = 10**12
APART = {"architecture": "disaggregated", "prefill": {"instances": 1}, "decode": {"instances": 2}}


def load(cluster: dict[str, Any] | None = None, **keys: Any) -> Scenario:
    return Scenario.load(
        {"workload": {"requests": 10, "rate": "10/s"}, "cluster": {"instances": 2} | (cluster or {}), **keys}
    )


def slow(**changes: Any) -> list[dict[str, Any]]:
    return [{"at": "3s", "instance": "instance-0", "kind": "slow", "factor": 2} | changes]


# --- what they mean ----------------------------------------------------------------------------------------------


def test_an_empty_section_is_all_defaults() -> None:
    found = load(scaling={}).scaling
    assert found == Scaling()
    assert (found.interval_ps, found.window_ps, found.patience_ps) == (30 * S, 60 * S, 300 * S)
    assert (found.triggers, found.warmup, found.drain, found.provisioning) == (None, None, Drain(), "0s")


def test_without_any_of_the_keys_nothing_comes_or_goes() -> None:
    assert prepare(load()).setup.life is None
    assert prepare(load(scaling=None, faults=[], retries=3)).setup.life is None
    keys: list[tuple[Any, dict[str, Any]]] = [
        ({}, {"scaling": {}}),
        ({}, {"faults": slow()}),
        ({}, {"policies": {"scaling": "hpa"}}),
        ({"max_replicas": 2}, {}),
        ({"min_replicas": 0}, {}),
        ({"scaling": "static"}, {}),
    ]
    for cluster, more in keys:
        assert prepare(load(cluster, **more)).setup.life is not None, (cluster, more)


def test_pools_are_deployments_or_their_halves() -> None:
    hpa = {"name": "hpa", "metric": "kv"}
    deployments = {
        "chat": {**APART, "prefill": {"instances": 1, "max_replicas": 3, "scaling": "static"}, "scaling": hpa},
        "plain": {"instances": 2, "min_replicas": 0, "serves": ["other"]},
    }
    workload = {"requests": 10, "rate": "10/s", "models": {"other": 1}}
    policies = {"scaling": "queue-threshold"}
    scenario = Scenario.load({"workload": workload, "cluster": {"deployments": deployments}, "policies": policies})
    setup = prepare(scenario).setup
    assert setup.life is not None
    found = [
        (pool.id, pool.view_pool, pool.first, pool.initial, pool.minimum, pool.maximum) for pool in setup.life.pools
    ]
    assert found == [
        ("chat-prefill", "chat", 0, 1, 1, 3),
        ("chat-decode", "chat", 3, 2, 2, 2),
        ("plain", "plain", 5, 2, 0, 2),
    ]
    names = [type(pool.scaling).__name__ for pool in setup.life.pools]
    assert names == ["Static", "Hpa", "QueueThreshold"]
    assert [view.id for view in setup.views][2:6] == ["chat-prefill-2", "chat-decode-0", "chat-decode-1", "plain-0"]


@pytest.mark.parametrize(
    ("cluster", "names"),
    [({}, ["default"]), (APART, ["prefill", "decode"]), ({"deployments": {"a": {"instances": 1}}}, ["a"])],
)
def test_each_pool_has_a_policy_of_its_own(cluster: dict[str, Any], names: list[str]) -> None:
    if cluster:
        cluster = {**cluster, "instances": 3} if "prefill" in cluster else cluster
    life = prepare(load(cluster, policies={"scaling": "queue-threshold"})).setup.life
    assert life is not None
    assert [pool.id for pool in life.pools] == names
    assert len({id(pool.scaling) for pool in life.pools}) == len(names)
    assert not any(isinstance(pool.scaling, Static) for pool in life.pools)


@pytest.mark.parametrize(
    ("curve", "pieces", "factors"),
    [
        ("step", 4, [(0, Fraction(2)), (40, Fraction(1))]),
        ("linear", 2, [(0, Fraction(7, 4)), (20, Fraction(5, 4)), (40, Fraction(1))]),
        ("exponential", 1, [(0, 1 + Fraction(188, 1000)), (40, Fraction(1))]),  # 2^-2.5 by its chord: 3/16
        ("linear", 1, [(0, Fraction(3, 2)), (40, Fraction(1))]),
    ],
)
def test_a_warm_up_is_a_step_function(curve: str, pieces: int, factors: list[tuple[int, Fraction]]) -> None:
    assert Warmup(40, curve, Fraction(2), pieces).steps() == factors


@pytest.mark.parametrize("curve", ["linear", "exponential", "step"])
@pytest.mark.parametrize("pieces", [1, 3, 10, 1000])
@pytest.mark.parametrize("duration_ps", [1, 7, 10**13])
def test_a_warm_up_only_gets_faster_and_ends_at_its_duration(curve: str, pieces: int, duration_ps: int) -> None:
    steps = Warmup(duration_ps, curve, Fraction(3), pieces).steps()
    times, factors = [at for at, _ in steps], [factor for _, factor in steps]
    assert (times[0], times[-1], factors[-1]) == (0, duration_ps, 1)
    assert times == sorted(times)
    assert factors == sorted(factors, reverse=True)
    assert 1 < factors[0] <= 3


def test_faults_strike_places_that_may_be_used_only_later() -> None:
    faults = [*slow(instance="instance-3", duration="2m"), {"at": "1s", "instance": "instance-0", "kind": "crash"}]
    found = load({"max_replicas": 4}, faults=faults).faults
    assert found == (
        Fault(3 * S, "instance-3", "slow", Fraction(2), 120 * S),
        Fault(1 * S, "instance-0", "crash"),
    )


# --- mistakes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"scaling": "hpa"}, "scaling: expected a mapping, got 'hpa'."),
        ({"scaling": {"intervall": "1s"}}, "scaling.intervall: there is no such key. Did you mean 'interval'?"),
        ({"scaling": {"interval": "0s"}}, "scaling.interval: must be greater than zero, got '0s'."),
        ({"scaling": {"interval": 30}}, "scaling.interval: 30 is not a duration; write it with its unit"),
        ({"scaling": {"window": "0s"}}, "scaling.window: must be greater than zero"),
        ({"scaling": {"patience": "0s"}}, "scaling.patience: must be greater than zero"),
        ({"scaling": {"provisioning": 90}}, "scaling.provisioning: 90 is not a duration"),
        (
            {"scaling": {"model_load": {"dist": "uniform", "min": "9s", "max": "3s"}}},
            "scaling.model_load.min: must be at most max",
        ),
        ({"scaling": {"model_load": {"dist": "normal", "mean": "9s"}}}, "scaling.model_load"),
        ({"scaling": {"warmup": {}}}, "scaling.warmup: 'duration' is missing."),
        ({"scaling": {"warmup": {"duration": "0s"}}}, "scaling.warmup.duration: must be greater than zero"),
        ({"scaling": {"warmup": {"duration": "9s", "curve": "cubic"}}}, "scaling.warmup.curve: expected 'linear' or"),
        (
            {"scaling": {"warmup": {"duration": "9s", "penalty": 0.5}}},
            "scaling.warmup.penalty: expected a number from 1",
        ),
        ({"scaling": {"warmup": {"duration": "9s", "pieces": 0}}}, "scaling.warmup.pieces: expected a whole number"),
        ({"scaling": {"drain": "redirect"}}, "scaling.drain: expected a mapping"),
        ({"scaling": {"drain": {"mode": "wiat"}}}, "scaling.drain.mode: expected 'wait' or 'immediate' or 'redirect'"),
        (
            {"scaling": {"drain": {"mode": "redirect", "timeout": "1s"}}},
            "scaling.drain.timeout: is valid only with 'mode: wait', but",
        ),
        ({"scaling": {"triggers": {"queue": 3}}}, "scaling.triggers.queue: there is no such key. Did you mean 'queue_"),
        ({"scaling": {"triggers": {"attainment": 2}}}, "scaling.triggers.attainment: expected a number"),
        ({"scaling": {"triggers": {"gap": "0s"}}}, "scaling.triggers.gap: must be greater than zero"),
        ({"faults": {"at": "3s"}}, "faults: expected a list, as in [{at: 60s, instance: instance-3, kind: crash"),
        ({"faults": ["crash"]}, "faults[0]: expected a mapping, got 'crash'."),
        ({"faults": [*slow(), {"at": "3s"}]}, "faults[1]: 'instance' and 'kind' are missing."),
        ({"faults": slow(at=3)}, "faults[0].at: 3 is not a duration"),
        ({"faults": slow(kind="slwo")}, "faults[0].kind: expected 'crash' or 'slow' or 'unreachable', got 'slwo'."),
        (
            {"faults": slow(instance="instance-2")},
            "faults[0].instance: no instance is called 'instance-2'. Did you mean",
        ),
        ({"faults": slow(factor=None)}, "faults[0].factor: is missing; a slow instance needs it"),
        ({"faults": slow(factor=0.5)}, "faults[0].factor: expected a number from 1 to 1000, got 0.5."),
        ({"faults": slow(factor=True)}, "faults[0].factor: expected a number from 1 to 1000, got True."),
        ({"faults": slow(factor=float("nan"))}, "faults[0].factor: expected a number from 1 to 1000, got nan."),
        ({"faults": slow(kind="crash")}, "faults[0].factor: is valid only with 'kind: slow', but the kind is crash."),
        ({"faults": slow(duration="0s")}, "faults[0].duration: must be greater than zero"),
        ({"retries": -1}, "retries: expected a whole number of at least 0"),
        (
            {"policies": {"scaling": "hpaa"}},
            "policies.scaling: no scaling policy is called 'hpaa'. Did you mean 'hpa'?",
        ),
        (
            {"cluster": {"min_replicas": 3}},
            "cluster.min_replicas: must be at most 2, the number of instances at the start, got 3.",
        ),
        (
            {"cluster": {"max_replicas": 1}},
            "cluster.max_replicas: must be at least 2, the number of instances at the start, got 1.",
        ),
        ({"cluster": {"min_replicas": -1}}, "cluster.min_replicas: expected a whole number of at least 0"),
        (
            {"cluster": {"scaling": "statc"}},
            "cluster.scaling: no scaling policy is called 'statc'. Did you mean 'static'?",
        ),
        ({"cluster": {"scaling": {"name": "hpa", "x": 1}}}, "cluster.scaling.x: 'hpa' has no such parameter."),
        (
            {"cluster": {"deployments": {"a": {"instances": 1, "max_replicas": 0}}}},
            "cluster.deployments.a.max_replicas: must be at least 1, the number of instances at the start, got 0.",
        ),
        (
            {"cluster": {**APART, "instances": 3, "decode": {"instances": 2, "min_replicas": 3}}},
            "cluster.decode.min_replicas: must be at most 2, the number of instances at the start, got 3.",
        ),
        (
            {"cluster": {"deployments": {name: {"instances": 1, "max_replicas": 60_000} for name in "ab"}}},
            "cluster.deployments: the deployments may have at most 100,000 instances together.",
        ),
    ],
)
def test_a_mistake_is_told_with_its_place(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        load(**keys)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith((".", "?"))


# --- resolved ----------------------------------------------------------------------------------------------------

FULL: dict[str, Any] = {
    "scaling": {
        "interval": "15s",
        "triggers": {"queue_depth": 4, "high": 0.9, "low": 0.1, "sustained": "20s", "gap": "10s"},
        "window": "2m",
        "provisioning": {"dist": "normal", "mean": "90s", "std": "20s", "min": "30s"},
        "model_load": "45s",
        "warmup": {"duration": "30s", "curve": "exponential", "penalty": 2.5},
        "drain": {"mode": "wait", "timeout": "5m"},
        "patience": "1m",
    },
    "faults": [
        {"at": "60s", "instance": "instance-1", "kind": "crash", "duration": "2m"},
        {"at": "10s", "instance": "instance-0", "kind": "slow", "factor": 2.5},
        {"at": "70s", "instance": "instance-4", "kind": "unreachable", "duration": "5s"},
    ],
    "retries": 2,
    "policies": {"scaling": {"name": "queue-threshold", "above": 3}},
}


def test_what_is_resolved_reads_the_same() -> None:
    scenario = load({"min_replicas": 1, "max_replicas": 5}, **FULL)
    resolved = scenario.resolved()
    again = Scenario.load(resolved)
    assert again.resolved() == resolved
    assert again.key() == scenario.key()
    assert (again.scaling, again.faults, again.retries) == (scenario.scaling, scenario.faults, scenario.retries)
    assert again.cluster.scaling_pools()["default"].bounds() == (1, 5)
    assert resolved["scaling"]["warmup"] == {"duration": "30s", "curve": "exponential", "penalty": 2.5, "pieces": 10}
    assert resolved["policies"]["scaling"]["above"] == 3


def test_a_scenario_without_the_keys_resolves_without_them() -> None:
    resolved = load().resolved()
    assert not {"scaling", "faults", "retries"} & set(resolved)
    assert not {"min_replicas", "max_replicas", "scaling"} & set(resolved["cluster"])
    assert "scaling" not in resolved["policies"]


@pytest.mark.parametrize(
    "change",
    [
        {"scaling": {"interval": "10s"}},
        {"scaling": {"interval": None}},
        {"scaling": {"window": "61s"}},
        {"scaling": {"provisioning": "1s"}},
        {"scaling": {"model_load": {"dist": "exponential", "mean": "1s"}}},
        {"scaling": {"warmup": {"duration": "1s"}}},
        {"scaling": {"drain": {"mode": "redirect"}}},
        {"scaling": {"drain": {"timeout": "1s"}}},
        {"scaling": {"patience": "1s"}},
        {"scaling": {"triggers": {"queue_depth": 1}}},
        {"scaling": {}, "faults": slow()},
        {"scaling": {}, "retries": 1},
        {"scaling": {}, "policies": {"scaling": "hpa"}},
        {"scaling": {}, "cluster": {"max_replicas": 3}},
        {"scaling": {}, "cluster": {"min_replicas": 0}},
        {"scaling": {}, "cluster": {"scaling": "hpa"}},
    ],
)
def test_each_key_counts_in_the_runs_key(change: dict[str, Any]) -> None:
    assert load(**change).key() != load(scaling={}).key()


def test_the_order_of_faults_at_one_instant_counts() -> None:
    crash = {"at": "3s", "instance": "instance-0", "kind": "crash"}
    assert load(faults=[*slow(), crash]).key() != load(faults=[crash, *slow()]).key()


def test_overrides_reach_the_keys() -> None:
    given = {"workload": {"requests": 10, "rate": "10/s"}, "cluster": {"instances": 2}}
    changes = ["scaling.interval=5s", "scaling.drain.mode=redirect", "cluster.max_replicas=4", "policies.scaling=hpa"]
    found = Scenario.load(given, changes)
    assert found.scaling is not None
    assert (found.scaling.interval_ps, found.scaling.drain.mode) == (5 * S, "redirect")
    assert found.cluster.scaling_pools()["default"].bounds() == (2, 4)


def test_penalties_are_whole_thousandths() -> None:
    found = read(Scaling, {"warmup": {"duration": "1s", "penalty": 1.2344}}, "scaling").warmup
    assert found is not None
    assert found.penalty == Fraction(1234, 1000)
