"""The acceptance scenarios of the cluster simulator's design, section 13, as far as they concern the control plane and
the autoscaler, in the words in which they are written there. "Given" is made true by the trace and the cluster, and
checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import headway
from headway.types import PS_PER_SECOND

MS = PS_PER_SECOND // 1000
BLOCK = 16
PREFIX = [(1000, 8)]  # the blocks of prefix "0xABC123": 128 tokens


class Arrivals:
    """Builds a trace, request by request."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "requests.jsonl"
        self.lines = [json.dumps({"headway_trace": 1, "origin": "made", "block_tokens": BLOCK})]

    def request(self, at_ms: int, blocks: list[tuple[int, int]], output_tokens: int = 2, **more: Any) -> None:
        tokens = BLOCK * sum(count for _, count in blocks)
        line = {"prompt_tokens": tokens, "output_tokens": output_tokens, "at_ps": at_ms * MS, "blocks": blocks, **more}
        self.lines.append(json.dumps(line))

    def scenario(self, **cluster: Any) -> dict[str, Any]:
        self.file.write_text("\n".join(self.lines) + "\n")
        latency = {"model": "fixed", "prefill_tokens_per_s": 10000, "decode_tokens_per_s": 100}
        return {
            "workload": {"trace": {"path": str(self.file), "sessions": "none"}},
            "cluster": {"latency": latency, "kv": {"gpu_blocks": 1000}, **cluster},
        }


@pytest.fixture
def arrivals(tmp_path: Path) -> Arrivals:
    return Arrivals(tmp_path)


CACHE_AWARE = ("weighted", "lmetric-plus-one", "kv-aware", "unified", "least-prefill-work")


@pytest.mark.parametrize("policy", CACHE_AWARE)
@pytest.mark.parametrize("holder", [0, 1])
def test_scenario_route_to_instance_with_cached_prefix(arrivals: Arrivals, policy: str, holder: int) -> None:
    # Given instance 0 has prefix "0xABC123" in GPU tier (and once more the other way round, so that no tie decides)
    if holder == 1:
        arrivals.request(0, [(1, 8)], output_tokens=20)  # instance 0 is busy as the prefix first comes
    arrivals.request(10, [*PREFIX, (2000, 1)])
    # And instance 1 does not have prefix "0xABC123"
    # When a request with prefix "0xABC123" arrives
    arrivals.request(2000, [*PREFIX, (3000, 1)])
    routing = {"name": policy} if policy == "weighted" else {"name": policy, "block_tokens": BLOCK}
    requests = headway.simulate(arrivals.scenario(instances=2), routing=routing).requests
    assert requests["instance"][-2] == holder
    # Then the routing policy selects instance 0
    assert requests["instance"][-1] == holder
    assert requests["cached_tokens"][-1] == 8 * BLOCK


@pytest.mark.parametrize("holder", [0, 1])
def test_scenario_route_to_instance_with_cached_prefix_where_all_of_the_prompt_is_the_prefix(
    arrivals: Arrivals, holder: int
) -> None:
    # Given one instance has prefix "0xABC123" in GPU tier, and the other does not
    if holder == 1:
        arrivals.request(0, [(1, 8)], output_tokens=20)
    arrivals.request(10, PREFIX)
    # When a request with prefix "0xABC123" arrives
    arrivals.request(2000, PREFIX)
    requests = headway.simulate(arrivals.scenario(instances=2), routing="prefix-affinity").requests
    # Then the routing policy selects that instance
    assert requests["instance"][-2:] == [holder, holder]
    assert requests["cached_tokens"][-1] == 7 * BLOCK  # at least the last token is computed


def test_scenario_realtime_requests_scheduled_before_batch(arrivals: Arrivals) -> None:
    # Given wait queue has batch request (arrival=100) and realtime request (arrival=101)
    arrivals.request(0, [(1, 8)], output_tokens=50, slo_class="standard")  # fills the batch until both wait
    arrivals.request(100, [(100, 8)], slo_class="batch")
    arrivals.request(101, [(200, 8)], slo_class="realtime")
    scenario = arrivals.scenario(instances=1, max_batch_size=1)

    def started(scheduler: str) -> tuple[int, int]:
        requests = headway.simulate(scenario, priority="by-class", scheduler=scheduler).requests
        assert requests["slo_class"] == ["standard", "batch", "realtime"]
        assert requests["finished_ps"][0] > 101 * MS
        return requests["started_ps"][1], requests["started_ps"][2]

    # When MakeBatch is called with priority-aware scheduler
    batch, realtime = started("priority")
    # Then realtime request is scheduled first
    assert realtime < batch
    batch, realtime = started("slo-slack")
    assert realtime < batch
    batch, realtime = started("fcfs")  # ignores classes
    assert batch < realtime


def test_scenario_deterministic_replay(tmp_path: Path) -> None:
    # Given a simulation with key (policy_1, seed_42, seed_99, seed_7)
    scenario = {
        "seed": {"workload": 42, "simulation": 99, "jitter": 7},
        "leap": "random-cuts",  # the jitter seed sets the cuts
        "workload": {"preset": "mixed-tenants-2026-11", "requests": 300, "timeout": "20s"},
        "cluster": {"instances": 3},
        "policies": {
            "admission": {"name": "probabilistic", "sheddable": None, "k": 1, "power": 1},
            "priority": "by-class",
            "routing": "power-of-two",
            "scheduler": "priority",
        },
    }
    # When the simulation runs twice
    folders = [tmp_path / "first", tmp_path / "second"]
    for folder in folders:
        headway.simulate(scenario, trace="full").save(folder)
    # Then both runs produce identical metrics and traces
    first, second = ({file.name: file.read_bytes() for file in folder.iterdir()} for folder in folders)
    assert {"decisions.jsonl", "events.jsonl", "manifest.json", "requests.jsonl", "summary.json"} <= set(first)
    assert first == second
    for seed in ({"workload": 43, "simulation": 99, "jitter": 7}, {"workload": 42, "simulation": 98, "jitter": 7}):
        assert headway.simulate({**scenario, "seed": seed}).requests != headway.Result.load(folders[0]).requests
    other = headway.simulate({**scenario, "seed": {"workload": 42, "simulation": 99, "jitter": 8}})
    assert other.requests == headway.Result.load(folders[0]).requests  # cuts leave no trace


@pytest.mark.parametrize("policy", ["weighted", "prefix-affinity", "lmetric"])
def test_scenario_shadow_divergence_tracking(arrivals: Arrivals, policy: str) -> None:
    # Given router's shadow model predicts prefix "0xABC" is on instance 0
    arrivals.request(0, PREFIX)
    # And actual cache state shows prefix was evicted
    arrivals.request(1000, [(5000, 20)])  # all blocks of the cache
    # When request with prefix "0xABC" is routed to instance 0
    arrivals.request(2000, PREFIX)
    routing = {"name": policy} if policy == "weighted" else {"name": policy, "block_tokens": BLOCK}
    result = headway.simulate(arrivals.scenario(instances=1, kv={"gpu_blocks": 21}), routing=routing)
    requests, summary = result.requests, result.summary()
    assert requests["instance"] == [0, 0, 0]
    assert summary["instances"][0]["evicted_blocks"] > 0
    # Then a shadow_divergence anomaly is logged
    assert (summary["shadow"]["divergences"], summary["shadow"]["unexpected_misses"]) == (1, 1)
    assert summary["shadow"]["divergence_rate"] == pytest.approx(1 / 3)
    # And routing record shows ExpectedCacheHit=true, CacheHit=false
    assert requests["predicted_tokens"][2] > 0
    assert requests["cached_tokens"][2] == 0


def waiting(requests: Any, at_s: int) -> int:
    """Count the requests that have arrived by then and have not started."""
    at = at_s * PS_PER_SECOND
    return sum(came <= at < start for came, start in zip(requests["arrival_ps"], requests["started_ps"], strict=True))


def scaled(arrivals: Arrivals, **scaling: Any) -> dict[str, Any]:
    """Return a scenario with two replicas, at most three, that compute one request at a time for a little over 5 s."""
    single = {"instances": 2, "max_replicas": 3, "max_batch_size": 1}
    scenario = arrivals.scenario(deployments={"llama-70b-v1": single})
    scenario["scaling"] = {"interval": "10s", **scaling}
    scenario["policies"] = {"routing": "least-loaded"}
    scenario["policies"]["scaling"] = {"name": "queue-threshold", "above": 5, "sustained_s": 60}
    return scenario


@pytest.mark.parametrize(("count", "sustained"), [(80, True), (34, False)])
def test_scenario_auto_scale_up_on_sustained_high_load(arrivals: Arrivals, count: int, sustained: bool) -> None:
    # Given deployment config "llama-70b-v1" has 2 replicas
    for number in range(count):
        arrivals.request(0, [(1000 * number, 8)], output_tokens=500)
    # And queue depth exceeds threshold for 60 seconds (or, with fewer requests, for less)
    result = headway.simulate(scaled(arrivals))
    checks = [10 * number for number in range(1, 8)]
    above = [waiting(result.requests, at_s) > 2 * 5 for at_s in checks]
    assert above[0] and all(above) == sustained
    # When auto-scale policy evaluates
    # Then scale decision is SCALE_UP
    if not sustained:
        assert result.scaling_events == []
        return
    decision = result.scaling_events[0]
    assert decision.at_ps == checks[-1] * PS_PER_SECOND  # the load has lasted 60 s only then
    assert (decision.pool, decision.before, decision.after) == ("llama-70b-v1", 2, 3)
    assert decision.trigger == "interval"


@pytest.mark.parametrize("curve", ["linear", "exponential", "step"])
def test_scenario_scale_up_includes_provisioning_delay(arrivals: Arrivals, curve: str) -> None:
    # Given auto-scaler decides to scale up
    for number in range(80):
        arrivals.request(0, [(1000 * number, 8)], output_tokens=500)
    for at_s in (104, 106, 140):  # as it loads, as it warms up, and after
        arrivals.request(at_s * 1000, [(1000 * at_s, 8)], output_tokens=100)
    warmup = {"duration": "30s", "curve": curve, "penalty": 2}
    result = headway.simulate(scaled(arrivals, provisioning="20s", model_load="15s", warmup=warmup))
    (decided, *_) = [event.at_ps for event in result.scaling_events]
    # When ScaleActionEvent is processed
    changes = [(change.at_ps - decided, change.state) for change in result.states if change.instance == 2]
    # Then new instance enters PROVISIONING state
    assert changes[1] == (0, "provisioning")
    # And instance becomes READY after ProvisioningDelay + ModelLoadTime
    assert changes[2:] == [
        (20 * PS_PER_SECOND, "loading"),
        (35 * PS_PER_SECOND, "warming"),  # it serves from then on
        (65 * PS_PER_SECOND, "ready"),
    ]
    loading, warming, ready = (result.requests["instance"][row] for row in (80, 81, 82))
    assert loading != 2
    assert warming == ready == 2
    # And instance has degraded performance during WarmupDuration
    took = [result.requests["finished_ps"][row] - result.requests["arrival_ps"][row] for row in (81, 82)]
    alone = 128 * MS // 10 + 99 * 10 * MS
    assert took[1] == alone
    assert alone < took[0] <= 2 * alone
    assert took[0] == {"linear": 1.95, "exponential": 1.875, "step": 2}[curve] * alone
