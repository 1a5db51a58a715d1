from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from recorders import facts, fleet, record
from test_request_table import ROWS

from headway.results.result import Result
from headway.types import HeadwayError, InvariantError

SCENARIO = {"seed": {"workload": 7, "simulation": 7, "jitter": 7}, "workload": {"rate": "40/s"}, "note": "µ"}


def result() -> Result:
    rows = [{**ROWS[0], "output_tokens": 3}, ROWS[1]]
    return Result.of(SCENARIO, record(rows), fleet(2), facts(policy_metrics={"spills": 2.0}))


def test_a_saved_run_reads_back_equal(tmp_path: Path) -> None:
    made = result()
    made.save(tmp_path / "deep" / "run")
    again = Result.load(tmp_path / "deep" / "run")
    assert again == made
    assert again.to_json() == made.to_json()


def test_the_folder_is_plain_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    for folder in folders:
        result().save(folder)
    files = sorted(path.name for path in folders[0].iterdir())
    assert files == ["manifest.json", "requests.jsonl", "scenario.yaml", "summary.json"]
    assert all((folders[0] / name).read_bytes() == (folders[1] / name).read_bytes() for name in files)
    assert yaml.safe_load((folders[0] / "scenario.yaml").read_text("utf-8")) == SCENARIO
    assert json.loads((folders[0] / "summary.json").read_text()) == result().summary()
    lines = (folders[0] / "requests.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == list(result().requests.rows())
    manifest = json.loads((folders[0] / "manifest.json").read_text())
    assert (manifest["format"], manifest["seed"]) == (1, SCENARIO["seed"])


def test_a_run_folder_is_written_anew_and_what_else_it_holds_is_left(tmp_path: Path) -> None:
    result().save(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "summary.json").write_text("{}")
    result().save(tmp_path)
    assert Result.load(tmp_path) == result()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_folder_with_other_content_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("seed: 1\n")
    with pytest.raises(HeadwayError, match="not a run folder; name a new or an empty folder"):
        result().save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["scenario.yaml"]


def test_a_path_that_cannot_be_a_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="is a file"):
        result().save(tmp_path / "file")
    with pytest.raises(HeadwayError, match="cannot be written: Not a directory"):
        result().save(tmp_path / "file" / "run")


def test_a_folder_that_is_not_whole_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"manifest\.json is missing"):
        Result.load(tmp_path)
    result().save(tmp_path)
    (tmp_path / "requests.jsonl").write_text('{"request": 0}\n')
    with pytest.raises(HeadwayError, match="missing required field"):
        Result.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 99, "headway": "9"}')
    with pytest.raises(HeadwayError, match="format 99"):
        Result.load(tmp_path)


def test_a_run_that_breaks_an_invariant_gives_no_result() -> None:
    with pytest.raises(InvariantError):
        Result.of({}, record([{**ROWS[0], "output_tokens": 0}]), fleet(2), facts())
