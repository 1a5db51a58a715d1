"""Cases at loads relative to the knee, which a plan finds for the baseline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import document

from headway.errors import HeadwayError
from headway.evolve import Suite, knees
from headway.evolve.evolution import Plan, evolve
from headway.evolve.knees import Knees
from headway.experiment.plan import plan

KNEE = {"slo": "ttft_p99<=200ms", "seeds": 1}
LOADS = {"workload": "plain", "seeds": [1, 2], "loads": [0.7, 1, 1.3]}


def loaded(found: Knees | None = None, **changes: Any) -> Suite:
    return Suite.load(document(**{"train": [LOADS], "held_out": [], "validation": [], "knee": KNEE, **changes}), found)


def unknown(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Forget the knees of this process, and note the scenarios whose knee a plan finds."""
    planned: list[Any] = []
    monkeypatch.setattr(knees, "_FOUND", {})
    monkeypatch.setattr(
        knees, "plan", lambda scenario, *rest, **options: planned.append(scenario) or plan(scenario, *rest, **options)
    )
    return planned


def test_loads_are_multiples_of_the_highest_load_that_a_plan_finds_for_the_baseline() -> None:
    cases = loaded().cases()
    assert [case.label for case in cases[::2]] == ["plain at 0.7, seed 1", "plain at 1, seed 1", "plain at 1.3, seed 1"]
    assert [case.seed for case in cases] == [1, 2] * 3
    whole = {
        **document()["scenario"],
        "workload": document()["workloads"]["plain"],
        "policies": {"routing": "round-robin"},
    }
    holds = plan({**whole, "seed": 0}, KNEE["slo"], find="load", seeds=1, tolerance=0.05, points=0).holds
    rates = [float(case.scenario["workload"]["rate"].removesuffix("/s")) for case in cases[::2]]
    assert holds is not None and rates[1] == float(holds)
    assert rates[0] == pytest.approx(0.7 * rates[1], rel=1e-3) and rates[2] == pytest.approx(1.3 * rates[1], rel=1e-3)
    assert len({case.key for case in cases}) == 3


def test_a_knee_is_found_once_for_all_parts_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    planned = unknown(monkeypatch)
    held_out = [{**LOADS, "seeds": [101], "name": "again"}, {**LOADS, "seeds": [7], "cluster": {"instances": 3}}]
    found = loaded(held_out=held_out)
    assert len(planned) == 2  # the cluster of three instances has a knee of its own
    train, again = found.cases()[0].scenario["workload"], found.cases("held_out")[0].scenario["workload"]
    assert train["rate"] == again["rate"]


def test_a_search_keeps_its_knees_and_reads_them_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = unknown(monkeypatch)
    own = document(train=[{**LOADS, "seeds": [1], "loads": [0.5]}], validation=[], held_out=[], knee=KNEE)

    def search(evaluations: int) -> None:
        evolve(own, Plan("gp", batch=2), evaluations=evaluations, controls=False, workers=1, output=tmp_path / "found")

    search(2)
    kept = json.loads((tmp_path / "found" / "knees.json").read_text())
    assert len(planned) == len(kept) == 1
    monkeypatch.setattr(knees, "_FOUND", {})
    search(4)
    assert len(planned) == 1
    (tmp_path / "found" / "knees.json").write_text(json.dumps(dict.fromkeys(kept, "3")))
    monkeypatch.setattr(knees, "_FOUND", {})
    with pytest.raises(HeadwayError, match="holds another search"):
        search(4)
    (tmp_path / "found" / "knees.json").write_text("[broken")
    search(4)
    assert len(planned) == 2


def test_all_windows_of_a_trace_have_the_knee_of_the_first_one(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [{"timestamp": 40 * n, "input_length": 600, "output_length": 30, "hash_ids": [n % 7, n]} for n in range(90)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    entry = {"workload": {"trace": {"path": str(file), "format": "mooncake"}}, "name": "real", "loads": [0.5, 1]}
    entry |= {"seeds": {"requests": 20, "windows": 2, "first": 10, "lead_in": 5, "every": 30}}
    cases = loaded(train=[entry], knee={"slo": "ttft_p99<=40ms", "seeds": 1}).cases()
    assert [case.label for case in cases] == [f"real at {share}, seed {n}" for share in ("0.5", "1") for n in (0, 1)]
    speeds = [case.scenario["workload"]["trace"]["speed"] for case in cases]
    assert speeds[0] == speeds[1] == pytest.approx(speeds[2] / 2, rel=1e-3)
    slices = [case.scenario["workload"]["trace"]["transforms"][-1]["slice"]["requests"] for case in cases]
    assert slices == [[5, 30], [35, 60]] * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"knee": {"slo": "ttft_p99<=1us"}}, r"train\[0\]\.loads: no knee was found"),
        ({"knee": {"slo": "ttft_p99<=90d", "seeds": 1}}, "no knee was found: the baseline meets the SLO at every load"),
        ({"knee": {"slo": "ttft_p99<=2s", "seed": 3}}, r"knee\.seed: there is no such key\. Did you mean 'seeds'"),
        ({"train": [{**LOADS, "loads": [0]}]}, r"train\[0\]\.loads"),
        ({"train": [{**LOADS, "loads": [1, 1]}]}, r"plain at 1, seed 1 is listed twice"),
        ({"train": [{**LOADS, "loads": []}]}, r"train\[0\]\.loads: "),
    ],
)
def test_loads_that_cannot_be_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(HeadwayError, match=words):
        loaded(**changes)
