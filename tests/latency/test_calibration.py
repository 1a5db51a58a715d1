"""Calibrating a profile from a file of measured steps."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headway
from conftest import Run
from headway.errors import HeadwayError
from headway.latency import read_gpu
from headway.latency.calibration import calibrate
from headway.latency.tables import COLUMNS, read_rows

H200 = read_gpu("h200", "gpu")
MEASURED = Path(__file__).parents[3] / "shared" / "calibration" / "h200" / "steps.csv"
Row = dict[str, Any]


@pytest.fixture(name="run_headway")
def _command(request: pytest.FixtureRequest) -> Run:
    """The command line; its fixture has the package's name."""
    found: Run = request.getfixturevalue("headway")
    return found


def made() -> list[Row]:
    """Steps that the shipped profile itself would take."""
    asked = headway.latency("h200", "llama-3.1-8b")
    rows = []
    for batch in (0, 1, 8, 32, 128):
        for context in (256, 2048, 9000) if batch else (0,):
            for new, past in ((0, 0), (100, 0), (512, 0), (512, 4096), (2048, 0), (4096, 8192)):
                if batch or new:
                    ms = asked.step_ms([context] * batch, [(new, past)] if new else [])
                    values = ("llama-3.1-8b", batch, batch * context, int(new > 0), new, past, ms)
                    rows.append(dict(zip(("shape", *COLUMNS), values, strict=True)))
    return rows


def written(file: Path, rows: list[Row]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def test_a_profile_is_found_again_from_its_own_steps(tmp_path: Path) -> None:
    found = calibrate(written(tmp_path / "steps.csv", made()), H200)
    assert {one.phase for one in found.errors} == {"decode", "prefill", "mixed"}
    assert all(one.median < 0.01 and one.p90 < 0.03 for one in found.errors)
    assert found.shapes == ("llama-3.1-8b",)
    file = tmp_path / "mine.yaml"
    file.write_text(found.document("made up", "2026-11", "250us"), encoding="utf-8")
    ours, shipped = headway.latency(str(file), "qwen-2.5-7b"), headway.latency("h200", "qwen-2.5-7b")
    assert ours.profile.calibrated and ours.host_ms == 0.25
    assert ours.step_ms([700] * 16, [(300, 0)]) == pytest.approx(shipped.step_ms([700] * 16, [(300, 0)]), rel=0.05)


def test_without_scipy_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    with pytest.raises(HeadwayError, match=r"scipy is not installed\. Run: pip install 'headway\[data\]'"):
        calibrate(written(tmp_path / "steps.csv", made()), H200)


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured steps are not beside this checkout")
def test_the_measured_steps_are_read() -> None:
    from headway.latency.calibration import read_steps

    samples = read_steps(MEASURED, H200)
    assert len(samples) == 970
    assert {sample.shape for sample in samples} == {"llama-3.1-8b", "llama-3.2-1b", "llama-70b-tp4-shard", "qwen2.5-7b"}
    assert max(len(sample.chunks) for sample in samples) == 32


def changed(**values: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda rows: [rows[0] | values, *rows[1:]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda rows: [{key: row[key] for key in row if key not in ("batch", "median_ms")} for row in rows],
            "has no column 'batch' and 'median_ms'. A file of steps needs shape, batch, decode_kv_tokens,",
        ),
        (
            lambda rows: rows[:20],
            "20 steps (3 that only decode, 17 with prompts) are too few. A fit needs at least 40 steps",
        ),
        (lambda rows: [row for row in rows if row["new_tokens"]], "(0 that only decode, "),
        (changed(median_ms="fast"), "line 2, median_ms: must be a number above zero, got 'fast'."),
        (changed(median_ms="-1"), "line 2, median_ms: must be a number above zero, got '-1'."),
        (
            changed(median_ms="0.001"),
            "line 2, median_ms: 0.001 ms is impossible: reading the weights and the KV cache takes a h200 ",
        ),
        (changed(batch="1.5"), "line 2, batch: must be a whole number, got '1.5'."),
        (changed(batch="-4"), "line 2, batch: must be a number, zero or more, got '-4'."),
        (changed(n_prefill="0"), "line 2: n_prefill is 0, but new_tokens is 100."),
        (changed(n_prefill="500"), "line 2: new_tokens (100) must be at least n_prefill (500)"),
        (changed(shape="gpt-9"), "line 2, shape: no model in the table is called 'gpt-9'"),
        (lambda rows: [row | {"composition": "[]"} for row in rows], "composition: expected"),
        (lambda rows: [row | {"composition": "[" * 100_000} for row in rows], "composition: expected"),
    ],
)
def test_a_file_that_will_not_do_is_told(
    tmp_path: Path, change: Callable[[list[Row]], list[Row]], sentence: str
) -> None:
    with pytest.raises(HeadwayError) as caught:
        calibrate(written(tmp_path / "steps.csv", change(made())), H200)
    assert sentence in str(caught.value)


def test_a_file_that_begins_as_spreadsheets_begin_theirs_is_read(tmp_path: Path) -> None:
    file = written(tmp_path / "steps.csv", made())
    marked = tmp_path / "marked.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert [row for _, row in read_rows(marked, ())] == [row for _, row in read_rows(file, ())]


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(HeadwayError, match=r"none\.csv: cannot be read: No such file or directory\."):
        calibrate("none.csv", H200)


def test_the_command_writes_a_profile_that_a_scenario_can_name(tmp_path: Path, run_headway: Run) -> None:
    written(tmp_path / "steps.csv", made())
    done = run_headway("calibrate", "steps.csv", "-o", "mine.yaml", "--gpu", "h200", "--as-of", "2026-11", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for phase in ("decode", "prefill", "mixed"):
        assert phase in done.stdout
    assert "median" in done.stdout and "p90" in done.stdout
    profile = headway.hardware(str(tmp_path / "mine.yaml"))
    assert profile["calibrated"] and profile["as_of"] == "2026-11" and profile["host_ms"] == 0.5
    cluster = {"instances": 1, "gpu": "h200", "latency": {"model": "hardware", "profile": str(tmp_path / "mine.yaml")}}
    workload = {"requests": 3, "rate": "10/s", "prompt_tokens": 64, "output_tokens": 8}
    assert headway.simulate({"workload": workload, "cluster": cluster}).summary()["requests"]["completed"] == 3


def test_its_json_has_the_errors_and_a_missing_gpu_is_said(tmp_path: Path, run_headway: Run) -> None:
    written(tmp_path / "steps.csv", made())
    done = run_headway("calibrate", "steps.csv", "-o", "mine.yaml", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert found["gpu"] == "h200" and "no --gpu: assuming an h200" in done.stderr
    assert found == headway.calibrate(tmp_path / "steps.csv").summary()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("steps.csv", "-o", "mine.csv"), "the file name of a profile must end in .yaml, got 'mine.csv'."),
        (("steps.csv", "-o", "no/mine.yaml"), "the folder 'no' does not exist."),
        (("steps.csv", "-o", "m.yaml", "--gpu", "h20"), "gpu: no GPU in the table is called 'h20'"),
        (("steps.csv", "-o", "m.yaml", "--host", "soon"), "host: "),
        (("none.csv", "-o", "m.yaml"), "none.csv: cannot be read"),
        (("few.csv", "-o", "m.yaml"), "are too few. A fit needs at least 40 steps"),
        (("poor.csv", "-o", "m.yaml"), "has no column 'median_ms'. A file of steps needs shape, batch,"),
        (
            ("fast.csv", "-o", "m.yaml"),
            "line 2, median_ms: 0.001 ms is impossible: reading the weights and the KV cache takes a h200 ",
        ),
    ],
)
def test_what_the_command_cannot_use_gets_one_sentence(
    options: tuple[str, ...], sentence: str, tmp_path: Path, run_headway: Run
) -> None:
    rows = made()
    written(tmp_path / "steps.csv", rows)
    written(tmp_path / "few.csv", rows[:20])
    written(tmp_path / "poor.csv", [{key: row[key] for key in row if key != "median_ms"} for row in rows])
    written(tmp_path / "fast.csv", changed(median_ms="0.001")(rows))
    done = run_headway("calibrate", *options, *(() if "--gpu" in options else ("--gpu", "h200")), cwd=tmp_path)
    assert done.returncode != 0 and sentence in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "m.yaml").exists()
