"""The cluster in virtual time of benchmarks/gpu, with the simulator's step times in place of a GPU's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("numpy", reason="needs NumPy")

from benchmarks.gpu import cases
from benchmarks.gpu.scheduler import Row
from benchmarks.gpu.steps import composition_of
from benchmarks.gpu.virtual import COLUMNS, VirtualCluster
from headway import simulate
from headway.experiment.engines import engines
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND

LATENCY = {"model": "hardware", "profile": "h200", "host": "400us"}


class Numbers:
    """Generates numbers in place of tokens."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, rows: list[Row]) -> list[int]:
        self.count += len(rows)
        return list(range(self.count - len(rows), self.count))


def serve(scenario: Scenario) -> dict[str, list[Any]]:
    latency = engines(scenario.cluster)[0].latency

    def simulated(replica: int, now_ps: int, rows: list[Row], wall_s: float) -> float:
        step = composition_of(rows)
        context = sum(step.contexts) + len(step.contexts)
        return latency.run(len(step.contexts), context, step.chunks)[0] / PS_PER_SECOND

    got = VirtualCluster(scenario, Numbers(), simulated, 128_256).run()
    return dict(zip(COLUMNS, zip(*(each.columns() for each in got.requests), strict=True), strict=True))


@pytest.mark.parametrize(("workload", "policy"), [("chat", "lmetric"), ("rag", "kv-aware-spill"), ("rag", "weighted")])
def test_the_cluster_serves_the_same_requests_as_the_simulator(workload: str, policy: str) -> None:
    case = cases.Case(policy, workload, "high", 1)
    scenario = cases.scenario(case, LATENCY, {})
    served, simulated = serve(scenario), simulate(scenario, progress=False).requests
    for name in ("prompt_tokens", "output_tokens"):
        assert sorted(served[name]) == sorted(simulated.column(name))
    assert len(served["id"]) == cases.WORKLOADS[workload]["requests"]

    def mean(columns: Any, name: str) -> float:
        return sum(end - begin for end, begin in zip(columns(name), columns("arrival_ps"), strict=True)) / 300 / 1e9

    for name in ("first_token_ps", "finished_ps"):
        assert mean(served.__getitem__, name) == pytest.approx(mean(simulated.column, name), rel=0.05)
    assert sum(served["cached_tokens"]) == pytest.approx(sum(simulated.column("cached_tokens")), rel=0.03)
