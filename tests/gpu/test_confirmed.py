"""The records of docs/confirmed.md: what was predicted, what was measured, and that both still say the same."""

from __future__ import annotations

import csv
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import cases, confirm, live_prediction
from benchmarks.gpu.cases import Case
from benchmarks.gpu.figures import FIGURES, figures, lead_on, order, side_by_side
from command_line import call_headway
from headway import simulate
from headway.types import PS_PER_SECOND

ROOT = Path(__file__).parents[2]
RECORDS = Path(__file__).with_name("records")
DOCUMENT = (ROOT / "docs" / "confirmed.md").read_text(encoding="utf-8")
LATENCY, OWN, _ = confirm.read_plan(RECORDS)
VALIDATED = ("searched", "rag", "high", 501)
TARGETS = {"ttft": 0.15, "tpot": 0.08, "e2e": 0.08, "hit": 0.03}  # errors of the mean of a policy in a cell


@pytest.fixture(scope="module")
def measured() -> dict[Any, dict[str, float]]:
    return confirm.read_measured(RECORDS)


@pytest.mark.parametrize("table", ["predicted.csv", "predicted-more.csv"])
def test_the_predicted_tables_are_those_whose_hash_was_printed_before_their_first_run(table: str) -> None:
    digest = hashlib.sha256((RECORDS / table).read_bytes()).hexdigest()
    assert f"sha256 {digest}  {table}" in DOCUMENT


def test_means_are_predicted_within_the_targets_in_every_cell(measured: Any) -> None:
    rows = side_by_side(confirm.read_predicted(RECORDS), measured)
    assert len(rows) == 32 * len(FIGURES)
    for row in rows:
        assert abs(row.error) <= TARGETS[row.figure], row


def test_all_pairs_with_disjoint_intervals_are_predicted_in_order(measured: Any) -> None:
    found = order(side_by_side(confirm.read_predicted(RECORDS), measured))
    assert (found["all"].right, found["all"].pairs) == (171, 171)


@pytest.mark.parametrize("other", cases.FINAL)
def test_the_searched_policy_is_ahead_of_the_built_in_ones_on_rag(other: str, measured: Any) -> None:
    ahead = lead_on(measured, "searched", other, "rag", confirm.OBJECTIVE)
    assert ahead is not None and ahead.low is not None and ahead.low > 0


def test_the_runs_over_http_are_predicted_within_the_targets() -> None:
    with (RECORDS / live_prediction.PREDICTED).open(newline="") as file:
        predicted = {row["run"]: row for row in csv.DictReader(file) if row["with"] == "http"}
    records = {record["run"]: record for record in live_prediction.live_records(RECORDS)}
    assert len(predicted) == 7
    for name in predicted:
        for figure, value in live_prediction.measured(records[name]).items():
            error = float(predicted[name][figure]) - value
            assert abs(error if figure == "hit" else error / value) < TARGETS[figure], (name, figure)


def test_a_deployment_while_traffic_runs_loses_no_request() -> None:
    record = next(each for each in live_prediction.live_records(RECORDS) if each["deployed"])
    assert record["ends"] == {"arrived": 600, "completed": 600}
    assert record["deployed"]["exit"] == 0 and "version 2 is in force" in record["deployed"]["said"]
    assert record["deployed"]["begun"] == 200 < record["deployed"]["confirmed"] < 600


@pytest.mark.full
@pytest.mark.parametrize(("policy", "predicted", "counted"), [("least-loaded", 17, 19), ("round-robin", 17, 14)])
def test_preemptions_are_predicted(policy: str, predicted: int, counted: int) -> None:
    cell = (policy, "rag", "high")
    records = {tuple(each["case"]): each["preemptions"] for each in confirm.records(RECORDS)}
    runs = [run for run in records if run[:3] == cell]
    found = [simulate(cases.scenario(Case(*run), LATENCY, OWN), progress=False).requests for run in runs]
    assert sum(records[run] for run in runs) == counted and f"{predicted} and {counted}" in DOCUMENT
    assert sum(sum(each.column("preemptions")) for each in found) == predicted


@pytest.mark.full
def test_the_table_of_the_deployment_is_that_of_the_records() -> None:
    for line in live_prediction.deploy_lines(RECORDS, LATENCY, OWN):
        assert line in DOCUMENT


def test_the_tables_of_the_page_are_those_of_the_records(measured: Any) -> None:
    predicted = confirm.read_predicted(RECORDS)
    tables = confirm.table_lines(side_by_side(predicted, measured)), confirm.lead_lines(predicted, measured)
    tables += (confirm.objective_lines(predicted, measured),)
    for line in (*tables[0], *tables[1], *tables[2], *live_prediction.live_lines(RECORDS)):
        assert line in DOCUMENT


def test_the_simulator_still_predicts_what_it_predicted() -> None:
    found = confirm.predict_one((Case(*VALIDATED), LATENCY, OWN))
    assert found == pytest.approx(confirm.read_predicted(RECORDS)[VALIDATED], rel=0.01)


@pytest.mark.parametrize(("workload", "load"), [(name, load) for name, loads in cases.RATES.items() for load in loads])
def test_headway_validate_agrees_with_a_measured_run(workload: str, load: str, tmp_path: Path) -> None:
    run = ("searched", workload, load, 501)
    record = next(each for each in confirm.records(RECORDS) if tuple(each["case"]) == run)
    columns = confirm.columns_of(record)
    times = {"arrival": "arrival_ps", "first_token": "first_token_ps", "last_token": "finished_ps"}
    rows = []
    for number in range(len(columns["id"])):
        row: dict[str, Any] = {name: columns[name][number] for name in ("prompt_tokens", "output_tokens")}
        row |= {name: columns[column][number] / PS_PER_SECOND for name, column in times.items()}
        rows.append(json.dumps(row) + "\n")
    (tmp_path / "measured.jsonl").write_text("".join(rows))
    result = simulate(cases.scenario(Case(*run), LATENCY, OWN), progress=False)
    result.save(tmp_path / "run")
    done = call_headway(("validate", "run", "--against", "measured.jsonl", "--json"), tmp_path, {})
    found = json.loads(done.stdout)
    assert found["requests"]["recorded"] == {"answered": 300, "requests": 300}
    assert not found["notes"]
    predicted = figures({name: result.requests.column(name) for name in confirm.COLUMNS[1:]})
    for name in ("ttft", "e2e"):
        error = predicted[name] / figures(columns)[name] - 1
        assert found["latency"][name]["mean"]["error"] == pytest.approx(error, abs=1e-6)
        assert abs(error) < 0.25  # the host's pace varies from run to run
