"""The replicas of benchmarks/gpu over HTTP, behind the real gateway, with the simulator's step times."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="needs NumPy")

from benchmarks.gpu import cases
from benchmarks.gpu.live import run_live
from benchmarks.gpu.scheduler import Replica, Row
from benchmarks.gpu.steps import composition_of
from headway import simulate
from headway.experiment.engines import engines
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND

LATENCY = {"model": "hardware", "profile": "h200", "host": "400us"}
SLOWER = 20.0


class Zeros:
    def run(self, rows: list[Row]) -> list[int]:
        return [0] * len(rows)


@pytest.mark.full
def test_a_gateway_before_dilated_replicas_serves_what_the_simulator_says(tmp_path: Path) -> None:
    document = cases.document("rag", "medium", LATENCY, "lmetric")
    document["workload"]["requests"] = 80
    document["signals"] = {"poll_interval": "20ms"}
    scenario = Scenario.load(document)
    latency = engines(scenario.cluster)[0].latency

    def clock(replica: Replica) -> float:
        step = composition_of(replica.begin(0))
        context = sum(step.contexts) + len(step.contexts)
        return latency.run(len(step.contexts), context, step.chunks)[0] / PS_PER_SECOND

    live, _ = run_live(scenario, Zeros(), clock, SLOWER, 1000, tmp_path / "run")
    live_summary, simulated = live.summary(), simulate(scenario, progress=False).summary()
    assert live_summary["requests"]["completed"] == 80
    for name, most in (("ttft", 0.3), ("e2e", 0.15)):
        assert live_summary["latency"][name]["mean"] == pytest.approx(simulated["latency"][name]["mean"], rel=most)
    hits = live_summary["cache"]["token_hit_ratio"], simulated["cache"]["token_hit_ratio"]
    assert hits[0] == pytest.approx(hits[1], abs=0.05)
