"""Findings of live traffic, whose scenario may name policies without parameters."""

import pytest
from findings_made import request, result

from headway.results.findings import find


@pytest.mark.parametrize("routing", ["lmetric", {"name": "weighted", "scorers": {"prefix-affinity": 3}}])
def test_policies_may_be_written_as_in_a_file(routing: object) -> None:
    rows = [request(k, start=k + 3, first=k + 3.1, end=k + 3.2, prompt_tokens=100) for k in range(20)]
    rows = [row | {"routed_ps": row["started_ps"], "enqueued_ps": row["started_ps"]} for row in rows]
    names = {"routing": routing, "admission": "max-concurrency", "flow": "none", "priority": "none"}
    scenario = {"policies": names, "slo": {"ttft": "1s"}, "live": True}
    requests = {"arrived": 20, "completed": 20, "rejected": 0, "timed_out": 0, "failed": 0}
    findings = find(result(rows, scenario=scenario, instances=2, summary={"requests": requests}))
    assert "bottleneck" in {finding.kind for finding in findings}
