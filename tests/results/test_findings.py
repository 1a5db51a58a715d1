"""What holds of all findings: their order, their form, where they come from, and what they cost."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import msgspec
import pytest
from findings_made import drawn, kinds, result

import headway
from headway.results.findings import KINDS, ROLES, WEIGHTS, find, first_cause, rank
from headway.results.recorder import ScaleRecord
from headway.results.records import EXAMPLES, Finding, Preemption, Thrash
from headway.results.result import Result
from headway.results.table import COLUMNS, Coded, Table
from headway.types import OUTCOMES

Json = dict[str, Any]
CROWDED: Json = {
    "workload": {
        "requests": 600,
        "rate": "80/s",
        "tenants": {
            "now": {"weight": 1, "priority": "realtime", "prompt_tokens": 200},
            "later": {"weight": 1, "priority": "batch", "prompt_tokens": 4000},
        },
    },
    "cluster": {"instances": 2, "kv": {"gpu_blocks": 2500}},
    "policies": {"routing": "always-busiest"},
    "slo": {"ttft": "500ms"},
}


@pytest.fixture(scope="module")
def crowded() -> Result:
    return headway.simulate(CROWDED)


def test_a_quiet_run_has_no_findings() -> None:
    scenario = {"workload": {"requests": 200, "rate": "5/s"}, "cluster": {"instances": 4}, "slo": {"ttft": "5s"}}
    assert find(headway.simulate(scenario)) == []


def test_the_worst_comes_first_and_each_has_all_that_a_reader_needs(crowded: Result) -> None:
    findings = find(crowded)
    assert {"priority_inversion", "slo_violation", "hot_spot", "herding", "saturation"} <= {
        finding.kind for finding in findings
    }
    assert findings == sorted(findings, key=rank)
    assert first_cause(findings) == findings[0] and findings[0].explains >= 0.5
    weighted = [finding.explains * WEIGHTS[ROLES[finding.kind]] for finding in findings]
    assert weighted == sorted(weighted, reverse=True)
    last = max(crowded.requests["finished_ps"])
    for finding in findings:
        assert finding.kind in KINDS
        assert 0 <= finding.at_ps <= finding.until_ps <= last
        assert 0 <= finding.severity <= 1
        assert finding.count > 0
        assert finding.title[0] == finding.title[0].upper() or finding.title.startswith("instance-")
        assert finding.title.endswith(".")
        assert 0 < len(finding.requests) <= EXAMPLES and len(set(finding.requests)) == len(finding.requests)
        assert all(0 <= row < 600 for row in finding.requests)
        assert set(finding.instances) <= {0, 1}
        assert finding.evidence
        assert msgspec.json.decode(msgspec.json.encode(finding), type=Finding) == finding


def test_a_run_read_from_its_folder_has_the_same_findings(crowded: Result, tmp_path: Path) -> None:
    crowded.save(tmp_path / "run")
    assert find(Result.load(tmp_path / "run")) == find(crowded)


def test_reading_columns_as_lists_first_changes_nothing(crowded: Result) -> None:
    fresh = headway.simulate(CROWDED)
    dict(fresh.requests)
    assert find(fresh) == find(crowded)


@pytest.mark.parametrize("seed", range(10))
def test_any_run_that_can_be_written_down_is_looked_through(seed: int) -> None:
    rng = Random(seed)
    rows = drawn(rng, 60)
    preempted = sorted((Preemption(rng.randrange(50), rng.randrange(3), rng.randrange(60)) for _ in range(40)), key=at)
    thrashed = sorted(
        (Thrash(rng.randrange(50), rng.randrange(3), rng.randrange(60), "cpu", 3) for _ in range(40)), key=at
    )
    scaled = sorted((ScaleRecord(rng.randrange(50), "p", 1, 1 + rng.choice((-1, 1))) for _ in range(9)), key=at)
    run = result(
        rows, instances=3, preemptions=preempted, thrashes=thrashed, scaling_events=scaled,
        scenario={"slo": {"ttft": "3ps"}, "warmup": rng.randrange(5)},
        summary={"shadow": {"tolerance_tokens": 0}},
    )  # fmt: skip
    assert {"slo_violation", "preemption_storm", "cache_thrashing", "shadow_divergence"} <= kinds(run)
    assert all(0 <= finding.severity <= 1 for finding in find(run))


def at(record: Preemption | Thrash | ScaleRecord) -> int:
    return record.at_ps


def test_a_run_in_which_no_request_is_admitted_has_only_the_limit_of_admission() -> None:
    scenario = {"workload": {"requests": 200, "rate": "50/s"}, "cluster": {"instances": 2}, "slo": {"ttft": "1s"}}
    assert [finding.kind for finding in find(headway.simulate(scenario, admission="never"))] == ["tight_limit"]


# --- what it costs ---------------------------------------------------------------------------------------------------


def busy(count: int, instances: int = 4) -> Result:
    """A run of so many requests with every trouble that columns can show, made without simulating."""
    rng = Random(count)
    names = {"tenant": ["a", "b", ""], "slo_class": ["standard", "realtime", "batch", ""]}
    names |= {name: [""] for name in ("session", "kind", "model", "adapter", "loaded_from")}
    columns: Json = {name: array("q", [-1]) * count for name in COLUMNS}
    columns |= {"request": range(count), "reason": [""] * count, "priority": array("d", [0.0]) * count}
    columns |= {name: array("q", [0]) * count for name in ("redirects", "retries", "preemptions", "cached_tokens")}
    free, now = [0] * instances, 0
    for row in range(count):
        now += int(rng.expovariate(40) * 10**12)
        where = 0 if row % 100 < 40 else rng.randrange(instances)
        tokens = rng.choice((100, 200, 8000))
        start = max(now, free[where])
        free[where] = first = start + tokens * 10**7
        values = {
            **dict.fromkeys(("arrival_ps", "admitted_ps", "routed_ps", "enqueued_ps"), now), "started_ps": start,
            "first_token_ps": first, "finished_ps": first + 10**12, "instance": where, "prompt_tokens": tokens,
            "output_tokens": 10, "outcome": 0, "tenant": int(row % 1000 < 100), "slo_class": rng.randrange(3),
            "predicted_tokens": rng.choice((0, 50)), "priority": rng.random(),
        }  # fmt: skip
        for name, value in values.items():
            columns[name][row] = value
    columns |= {name: Coded(columns[name], words) for name, words in names.items()}
    columns["outcome"] = Coded(columns["outcome"], OUTCOMES)
    seconds = (max(columns["finished_ps"]) - columns["arrival_ps"][0]) / 10**12
    summary = {"duration_s": seconds, "instances": [{"id": f"i{k}"} for k in range(instances)], "shadow": {}}
    return Result({"slo": {"ttft": "500ms"}}, Table(columns), summary)


def lines_run(work: Callable[[], object]) -> int:
    """How many lines of Python it takes."""
    count = 0

    def line(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.full
def test_the_work_grows_with_the_requests_and_not_with_their_square() -> None:
    small, large = busy(1000), busy(8000)
    expected = {"priority_inversion", "slo_violation", "shadow_divergence", "herding", "head_of_line_blocking"}
    assert expected <= kinds(large)
    assert len(find(large)) <= 25
    assert lines_run(lambda: find(large)) < 8 * 1.25 * lines_run(lambda: find(small))
