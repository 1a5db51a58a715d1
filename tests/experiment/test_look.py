"""Previews and inspections from Python return what the commands print with `--json`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headway
from conftest import ROOT, Run
from headway.config.dated_defaults import CURRENT, SETS
from headway.report.workload_tables import snippet

TENANTS = str(ROOT / "examples" / "07_tenants.yaml")
SESSIONS = str(ROOT / "examples" / "08_sessions.jsonl")
REPLAY = str(ROOT / "examples" / "08_traces.yaml")
Call = Callable[[str], Any]


def test_a_preview_is_the_commands_document(headway: Run) -> None:
    import headway as package

    output = headway("workload", "preview", TENANTS, "--requests", "300", "--json")
    result = package.preview(TENANTS, requests=300)
    assert json.loads(output.stdout) == json.loads(json.dumps(result))
    assert {tenant["name"] for tenant in result["tenants"]} == {"shop", "coder", "crawler"}


def test_a_preview_takes_changes_and_wants_a_request() -> None:
    result = headway.preview(TENANTS, overrides="workload.duration=20s")
    assert result["complete"] and result["first_s"] + result["span_s"] < 20
    with pytest.raises(headway.HeadwayError, match="requests: must be at least 1, got 0"):
        headway.preview(TENANTS, requests=0)


def test_an_inspection_is_the_commands_document(headway: Run) -> None:
    import headway as package

    words = ("--capacity", "200,inf", "--instances", "1,4", "--limit", "50", "--json")
    output = headway("trace", "inspect", SESSIONS, *words)
    result = package.inspect_trace(SESSIONS, capacities=[200, None], instances=[1, 4], limit=50)
    assert json.loads(output.stdout) == json.loads(json.dumps(result))
    assert result["requests"] == 50


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"block_tokens": 0}, {"capacities": [0]}, {"instances": [0]}], ids=str
)
def test_an_inspection_refuses_what_is_no_count(options: dict[str, object]) -> None:
    with pytest.raises(headway.HeadwayError, match="at least 1, got 0"):
        headway.inspect_trace(SESSIONS, **options)  # type: ignore[arg-type]


def test_progress_is_told_while_a_trace_is_read(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n'
    file = tmp_path / "many.jsonl"
    file.write_text("".join(row % number for number in range(2500)))
    counts: list[int] = []
    headway.inspect_trace(file, format="mooncake", progress=counts.append)
    assert counts == [1024, 2048]


def test_a_replay_is_offered_starts_only_where_sessions_have_no_common_clock() -> None:
    result = headway.inspect_trace(SESSIONS)
    assert result["clock"] == "trace" and result["arrivals"] is None  # later turns wait, the first have stamps
    assert "starts" not in snippet(result, "x.jsonl")
    assert "starts" in snippet({**result, "clock": "session"}, "x.jsonl")
    assert "block_tokens: 512, limit: 9" in snippet(result, "x.jsonl", 512, 9)


def test_a_conversion_applies_transforms_and_tells_what_came_of_it(tmp_path: Path) -> None:
    target = tmp_path / "short.headway.jsonl.gz"
    built = headway.convert_trace(SESSIONS, target, transforms=[{"cap": {"max_turns": 4}}])
    assert built["format"] == "headway" and built["lost"] == []
    assert 0 < built["written"] < built["read"]
    assert headway.inspect_trace(target)["sessions"]["turns"]["max"] <= 4
    with pytest.raises(headway.HeadwayError, match="no transform is called 'kap'"):
        headway.convert_trace(SESSIONS, target, transforms=["kap"])


def test_the_controls_are_there_from_python() -> None:
    result = headway.controls(REPLAY, overrides="workload.trace.limit=60", workers=1)
    assert isinstance(result, headway.Controls)
    assert list(result.summaries) == ["lmetric", "load-only", "sticky", "unified", "capped"]
    assert result.difference("lmetric", "latency.ttft.p99") == 0


# --- a trace in place of a scenario -----------------------------------------------------------------------------------


@pytest.fixture
def own_trace(tmp_path: Path) -> Path:
    file = tmp_path / "mine.headway.jsonl.gz"
    headway.convert_trace(SESSIONS, file, limit=12, progress=False)
    return file


def test_a_trace_runs_from_python_as_by_the_command(headway: Run, own_trace: Path) -> None:
    import headway as package

    output = headway("run", str(own_trace), "--json")
    assert output.returncode == 0, output.stderr
    document = json.loads(output.stdout)
    del document["run"]
    assert json.loads(json.dumps(package.simulate(own_trace).summary())) == document
    assert document["requests"]["arrived"] == 12


@pytest.mark.parametrize(
    "call",
    [
        lambda trace: headway.compare(trace, "round-robin,lmetric", seeds=1, workers=1, progress=False).scenario,
        lambda trace: headway.sweep(trace, "cluster.instances=1,2", workers=1, progress=False).scenario,
        lambda trace: headway.plan(trace, "ttft_p99<=10s", seeds=1, points=0, workers=1, progress=False).scenario,
        lambda trace: headway.Scenario.load(trace).resolved(),
    ],
    ids=["compare", "sweep", "plan", "load"],
)
def test_a_trace_has_the_cluster_and_the_slo_of_the_embedded_scenario(own_trace: Path, call: Call) -> None:
    scenario, embedded = call(str(own_trace)), headway.Scenario.load().resolved()
    # The embedded scenario has the first set of dated defaults, and a trace the current one.
    embedded["cluster"]["latency"]["default_engine"] = SETS[CURRENT].engine
    assert scenario["workload"]["trace"]["path"] == str(own_trace)
    assert scenario["name"] == own_trace.name
    for section in ("seed", "cluster", "slo"):
        assert scenario[section] == embedded[section]


@pytest.mark.parametrize(
    "call",
    [
        lambda trace: headway.controls(trace, workers=1, progress=False).summaries["lmetric"]["requests"]["arrived"],
        lambda trace: headway.preview(trace, progress=False)["requests"],
        lambda trace: headway.write_workload(trace, f"{trace}.copy.jsonl", progress=False)["written"],
    ],
    ids=["controls", "preview", "write_workload"],
)
def test_each_function_takes_a_trace_in_place_of_a_scenario(own_trace: Path, call: Call) -> None:
    assert call(str(own_trace)) == 12


def test_the_command_writes_the_workload_of_a_trace_or_of_a_foreign_file(headway: Run, own_trace: Path) -> None:
    target = own_trace.with_name("written.jsonl")
    for source in (str(own_trace), str(ROOT / "examples" / "interop" / "blis_workload.yaml")):
        done = headway("workload", "write", source, str(target), "--requests", "9", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["written"] == 9


def test_the_command_still_writes_the_workload_of_a_run_folder(headway: Run, tmp_path: Path) -> None:
    import headway as package

    package.simulate(TENANTS, overrides="workload.duration=5s", progress=False).save(tmp_path / "run")
    done = headway("workload", "write", str(tmp_path / "run"), str(tmp_path / "x.jsonl"), "--requests", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["written"] == 3
