"""The replicas of benchmarks/gpu over HTTP, behind the real gateway, with the simulator's step times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")

from benchmarks.gpu import cases
from benchmarks.gpu.live import Zeros, run_live, simulated_clock
from headway import simulate
from headway.scenario.scenario import Scenario

LATENCY = {"model": "hardware", "profile": "h200", "host": "400us"}
SLOWER = 20.0


def served_and_simulated(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The summaries of 80 requests through the gateway in dilated time, and in the simulator."""
    document = cases.document("rag", "medium", LATENCY, "lmetric")
    document["workload"]["requests"] = 80
    document["signals"] = {"poll_interval": "20ms"}
    scenario = Scenario.load(document)
    clock = simulated_clock(scenario, spin=False)
    live, _, _ = run_live(scenario, Zeros(), clock, SLOWER, 1000, folder)
    return live.summary(), simulate(scenario, progress=False).summary()


@pytest.mark.full
def test_a_gateway_before_dilated_replicas_serves_every_request_no_faster_than_the_simulator(tmp_path: Path) -> None:
    live, simulated = served_and_simulated(tmp_path / "run")
    assert live["requests"]["completed"] == 80
    assert 0 < live["cache"]["token_hit_ratio"] < 1
    # A busy machine makes live steps late, never early: the upper bounds are in the next test.
    for name, least in (("ttft", 0.7), ("e2e", 0.85)):
        assert live["latency"][name]["mean"] > least * simulated["latency"][name]["mean"]


@pytest.mark.long
def test_on_a_quiet_machine_dilated_replicas_are_as_fast_as_the_simulator(tmp_path: Path) -> None:
    live, simulated = served_and_simulated(tmp_path / "run")
    for name, most in (("ttft", 0.3), ("e2e", 0.15)):
        assert live["latency"][name]["mean"] == pytest.approx(simulated["latency"][name]["mean"], rel=most)
    hits = live["cache"]["token_hit_ratio"], simulated["cache"]["token_hit_ratio"]
    assert hits[0] == pytest.approx(hits[1], abs=0.05)
