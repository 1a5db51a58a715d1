"""Checks whose replicates are windows: of a trace, of run folders, and of recorded live traffic."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headway
from conftest import ROOT
from headway.errors import HeadwayError
from headway.regression import trace_windows
from headway.regression.recordings import independent
from headway.regression.trace_windows import spread_out, windows_of
from headway.scenario.scenario import Scenario
from small_checks import SLOW, SMALL


def folder(place: Path, *changes: str, requests: int = 900) -> Path:
    headway.simulate(SMALL, overrides=[f"workload.requests={requests}", *changes]).save(place)
    return place


def as_live(place: Path, seed: int = 0) -> Path:
    """Make a run folder look like a chapter that the gateway recorded."""
    scenario = Scenario.load({**SMALL, "seed": seed}).resolved()
    live = {**scenario, "live": True, "workload": {"first_request": 0}}
    (place / "scenario.yaml").write_text(json.dumps(live))
    return place


def test_run_folders_are_compared_window_by_window(tmp_path: Path) -> None:
    base, slow = folder(tmp_path / "base"), folder(tmp_path / "slow", SLOW)
    worse = headway.check(base, slow, ["ttft.p99>+5%", "e2e.mean>+5ms"])
    assert worse.outcome == "fail" and worse.unit == "windows" and 4 <= worse.pairs <= 8
    results = [headway.simulate(SMALL, overrides=["workload.requests=900", change]) for change in ("leap=true", SLOW)]
    assert headway.check(*results, ["ttft.p99>+5%", "e2e.mean>+5ms"]).rows == worse.rows
    better = headway.check(slow, base, ["e2e.mean>+5%", "throughput.requests_per_s<-5%"])
    assert better.outcome == "pass"
    assert headway.check(base, folder(tmp_path / "again"), "e2e.mean>+0%").outcome == "pass"


def test_figures_that_requests_do_not_determine_are_no_figures_of_recordings(tmp_path: Path) -> None:
    base, slow = folder(tmp_path / "base"), folder(tmp_path / "slow", SLOW)
    with pytest.raises(HeadwayError, match=r"no run has the figure cost\.usd"):
        headway.check(base, slow, "cost.usd>+5%")


def test_live_traffic_with_other_requests_is_compared_as_independent_samples(tmp_path: Path) -> None:
    base = as_live(folder(tmp_path / "base", "seed=1", requests=1700))
    slow = as_live(folder(tmp_path / "slow", "seed=2", "cluster.latency.step=30ms", requests=1700))
    found = headway.check(base, slow, "e2e.mean>+5%")
    assert found.outcome == "fail" and "independent samples" in " ".join(found.notes)
    longer = as_live(folder(tmp_path / "longer", "workload.prompt_tokens=2000", requests=1700))
    with pytest.raises(HeadwayError, match=r"different workloads: \d+ and 2,000 prompt tokens per request"):
        headway.check(base, longer, "e2e.mean>+5%")


def test_the_chapters_of_a_folder_are_one_recording(tmp_path: Path) -> None:
    for number in (0, 1000, 200):
        for name, change in (("base", "seed=0"), ("slow", SLOW)):
            place = folder(tmp_path / name / str(number), change, f"seed.workload={number}", requests=300)
            as_live(place)
    found = headway.check(tmp_path / "base", tmp_path / "slow", "e2e.mean>+5%")
    assert found.outcome == "fail" and found.pairs * 100 <= 900
    with pytest.raises(
        HeadwayError, match=r"several gateway processes\. Name the folder of one of them, such as .*base"
    ):
        headway.check(tmp_path, tmp_path, "e2e.mean>+5%")


def test_windows_that_resemble_their_neighbours_are_not_independent() -> None:
    rng = Random(1)
    noise = [rng.gauss(0, 1) for _ in range(64)]
    walk = [sum(noise[: place + 1]) for place in range(64)]
    assert independent(noise) and not independent(walk)
    assert independent([1.0] * 8)


@pytest.mark.parametrize(
    ("sides", "options", "message"),
    [
        (("a", "short"), {}, r"have different requests\. A check needs the same workload"),
        (("short", "short"), {}, r"short: has 150 requests; 8 windows of 100 need 800\. Record more traffic\."),
        (("a", "a"), {"seeds": 4}, r"^seeds: is not valid with finished runs"),
        (("a", "a"), {"candidate_set": SLOW}, r"^candidate_set: is not valid with finished runs"),
        (("a", "old"), {}, r"old: was simulated by Headway 0\.0\.1, and this is .*\. Run it again"),
        (("a", "future"), {}, r"future: cannot be read as a run folder: it has format 99"),
        (("a", "several"), {}, r"several: contains several simulated runs; name the folder of one of them"),
    ],
)
def test_a_mistake_with_recordings_is_one_sentence(
    sides: tuple[str, str], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    for name in {*sides}:
        place = folder(tmp_path / name, requests=150 if name == "short" else 400)
        manifest = place / "manifest.json"
        if name in ("old", "future"):
            change = {"headway": "0.0.1"} if name == "old" else {"format": 99}
            manifest.write_text(json.dumps(json.loads(manifest.read_text()) | change))
        if name == "several":
            for number in ("1", "2"):
                folder(place / number, requests=20)
            manifest.unlink()
    with pytest.raises(HeadwayError, match=message) as caught:
        headway.check(*(tmp_path / name for name in sides), "e2e.mean>+5%", **options)
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_a_recording_and_a_scenario_do_not_meet(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"is a finished run\. Name the scenario\.yaml in its folder"):
        headway.check(folder(tmp_path / "base"), SMALL, "e2e.mean>+5%")
    found = headway.check(tmp_path / "base" / "scenario.yaml", None, "e2e.mean>+5%", candidate_set=SLOW, seeds=8)
    assert found.outcome == "fail"


# --- windows of a trace -----------------------------------------------------------------------------------------------


def trace(place: Path, requests: int) -> Path:
    rng = Random(1)
    rows = [f"{at * 60},{rng.randint(100, 900)},{rng.randint(4, 40)}" for at in range(requests)]
    place.write_text("\n".join(["ts_ms,in_tok,out_tok", *rows, ""]))
    return place


def scenario_of(file: Path) -> dict[str, Any]:
    columns = {"arrival": "ts_ms:ms", "prompt": "in_tok", "output": "out_tok"}
    return {**SMALL, "workload": {"trace": {"path": str(file), "columns": columns}}}


def test_the_windows_of_a_trace_are_the_replicates(tmp_path: Path) -> None:
    data = scenario_of(trace(tmp_path / "t.csv", 2100))
    found = headway.check(data, None, "e2e.mean>+5%", candidate_set=SLOW)
    assert (found.outcome, found.unit, found.pairs, found.most) == ("fail", "windows", 8, 10)


def test_windows_cover_the_trace_once_and_begin_far_apart(tmp_path: Path) -> None:
    resolved = Scenario.load(scenario_of(trace(tmp_path / "t.csv", 2100))).resolved()
    windows = windows_of("t", resolved, 64)
    assert windows is not None and sorted(windows.bounds) == [(n * 210, n * 210 + 210) for n in range(10)]
    assert spread_out(8) == [0, 4, 2, 6, 1, 5, 3, 7]
    requests = [headway.simulate(windows.scenario(resolved, number)).requests for number in range(10)]
    assert sum(map(len, requests)) == 2100
    whole = sorted(headway.simulate(resolved).requests["prompt_tokens"])
    assert sorted(tokens for each in requests for tokens in each["prompt_tokens"]) == whole
    assert windows_of("small", Scenario.load(SMALL).resolved(), 64) is None


def test_a_trace_that_is_too_short_for_windows_is_told(tmp_path: Path) -> None:
    data = scenario_of(trace(tmp_path / "t.csv", 500))
    with pytest.raises(HeadwayError, match="the trace has 500 requests; 8 windows of 200 need 1600"):
        headway.check(data, None, "e2e.mean>+5%", candidate_set=SLOW)


def test_windows_keep_sessions_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_windows, "LEAST", 20)
    resolved = Scenario.load(ROOT / "examples/08_sessions.jsonl").resolved()
    windows = windows_of("sessions", resolved, 64)
    assert windows is not None and windows.whole_sessions and len(windows) == 11
    sessions = [set(headway.simulate(windows.scenario(resolved, n)).requests["session"]) for n in range(len(windows))]
    everywhere = [name for each in sessions for name in each]
    assert len(everywhere) == len(set(everywhere)), "no session is in two windows"
    assert set(everywhere) == set(headway.simulate(resolved).requests["session"])
