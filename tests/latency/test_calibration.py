"""Calibrating a profile from a file of measured steps."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

import headway
from conftest import Run
from headway.errors import HeadwayError
from headway.latency import read_gpu
from headway.latency.calibration import Calibration, calibrate, read_steps
from headway.latency.fit import FREE, fit, starting_constants, unidentified
from headway.latency.profiles import read_profile
from headway.latency.tables import COLUMNS, read_rows
from headway.report import validation

H200 = read_gpu("h200", "gpu")
MEASURED = Path(__file__).parents[3] / "shared" / "calibration" / "h200" / "steps.csv"
Row = dict[str, Any]


@pytest.fixture(name="run_headway")
def _command(request: pytest.FixtureRequest) -> Run:
    """The command line; its fixture has the package's name."""
    found: Run = request.getfixturevalue("headway")
    return found


def made(model: str = "llama-3.1-8b", **changes: Any) -> list[Row]:
    """Steps that the shipped profile itself would take. `changes` are the columns that change the model."""
    asked = headway.latency("h200", {"like": model, **changes})
    rows = []
    for batch in (0, 1, 8, 32, 128):
        for context in (256, 2048, 9000) if batch else (0,):
            for new, past in ((0, 0), (100, 0), (512, 0), (512, 4096), (2048, 0), (4096, 8192)):
                if batch or new:
                    ms = asked.step_ms([context] * batch, [(new, past)] if new else [])
                    values = (model, batch, batch * context, int(new > 0), new, past, ms)
                    rows.append(dict(zip(("shape", *COLUMNS), values, strict=True)) | changes)
    return rows


def written(file: Path, rows: list[Row]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


@pytest.mark.full
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


def test_constants_that_the_steps_do_not_determine_are_listed_as_assumed(tmp_path: Path, run_headway: Run) -> None:
    file = written(tmp_path / "steps.csv", made())
    done = run_headway("calibrate", str(file), "-o", "mine.yaml", "--gpu", "h200", "--json", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assumed = summary["assumed"]
    assert assumed["narrow_heads"] == assumed["short_pairs"] == "no step depends on it"  # heads of 128, long chunks
    assert summary["constants"]["narrow_heads"] == FREE["narrow_heads"][0]
    assert assumed["mixed_kv"] == "ended at its minimum" and summary["constants"]["mixed_kv"] == 1
    # One model does not show how much of a step's constant part belongs to its layers.
    assert assumed["step_us"] == "the steps show only a combination with layer_us"
    assert not {"weights_tb_s", "kv_tb_s", "matmul_tflops", "prefill_tflops", "decode_us", "crowd_us"} & assumed.keys()
    assert summary["covers"] == []
    profile = read_profile(str(tmp_path / "mine.yaml"), H200, "profile")
    assert profile.assumed.pop("host").startswith("that of an engine on another GPU")  # no --host
    assert profile.assumed == assumed and profile.covers == ()


def test_a_constant_whose_small_changes_have_no_effect_is_assumed(tmp_path: Path) -> None:
    """Chunks of 512 tokens fill the GPU with 512 × 32 heads: 1 % less is not felt, 2 % more is."""
    rows = [row for row in made() if row["new_tokens"] in (0, 512)]
    shipped = headway.latency("h200", "llama-3.1-8b").profile.constants
    limits = H200.bandwidth / 1e12, float(H200.flops) / 1e12
    gpu = replace(shipped, fill_rows=512 * 32 * 0.99)
    found = unidentified(read_steps(written(tmp_path / "steps.csv", rows * 2), H200), gpu, *limits)
    assert found["fill_rows"] == "no step depends on it near this value"


def test_the_table_names_what_was_not_determined_and_what_was_not_measured() -> None:
    constants = starting_constants(4.8, 989)
    assumed = {"narrow_heads": "no step depends on it"}
    found = Calibration("h200", constants, (), 68, (1, 512), (128, 2048), ("llama-3.1-8b",), ("experts",), assumed)
    with Console(width=80) as console, console.capture() as captured:
        console.print(validation.calibration_report(found))
    words = " ".join(captured.get().split())
    assert "narrow_heads 0.3 no step depends on it" in words
    assert "not fitted: weights of 8 bits, weights below 8 bits." in words


def test_without_mixed_steps_the_constants_of_mixed_steps_are_assumed(tmp_path: Path) -> None:
    rows = [row for row in made() if not (row["batch"] and row["new_tokens"])]
    found = calibrate(written(tmp_path / "steps.csv", rows * 3), H200)
    mixed = ("mixed_us", "mixed_kv", "beside_us", "beside_row_us", "padded_rows")
    assert {found.assumed[name] for name in mixed} == {"no step depends on it"}
    assert all(getattr(found.constants, name) == pytest.approx(FREE[name][0]) for name in mixed)


@pytest.mark.full
def test_steps_with_experts_and_8_bits_fit_their_constants(tmp_path: Path) -> None:
    bits = {"dtype_bytes": 1, "kv_dtype_bytes": 1}
    groups = made(), made("qwen-3-30b-a3b"), made("mixtral-8x7b"), made(**bits)
    keys = dict.fromkeys(bits, "")
    found = calibrate(written(tmp_path / "steps.csv", [keys | row for group in groups for row in group]), H200)
    assert found.covers == ("experts", "fp8")
    assert all(each.median < 0.01 and each.p90 < 0.03 for each in found.errors)
    shipped = headway.latency("h200", "llama-3.1-8b").profile.constants
    for name in ("expert_tb_s", "route_us", "fp8_tb_s", "kv8_tb_s"):
        assert name not in found.assumed
        assert getattr(found.constants, name) == pytest.approx(getattr(shipped, name), rel=0.15), name
    assert found.constants.packed_tb_s == 0
    file = tmp_path / "mine.yaml"
    file.write_text(found.document("made up", "2026-11"), encoding="utf-8")
    assert headway.latency(str(file), "qwen-3-30b-a3b").hardware.doubts(1) is None
    packed = headway.latency(str(file), {"like": "llama-3.1-8b", "dtype_bytes": 0.5})
    assert "not measured with weights below 8 bits" in str(packed.hardware.doubts(1))


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured steps are not beside this checkout")
@pytest.mark.full
def test_four_measured_models_determine_almost_all_dense_constants() -> None:
    samples = read_steps(MEASURED, H200)
    limits = H200.bandwidth / 1e12, float(H200.flops) / 1e12
    assert set(unidentified(samples, fit(samples, *limits), *limits)) <= {
        "mixed_kv", "short_read", "padded_rows", "elementwise_tb_s"
    }  # fmt: skip


def test_without_scipy_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.linalg", None)
    with pytest.raises(HeadwayError, match=r"scipy is not installed\. Run: pip install 'headway\[data\]'"):
        calibrate(written(tmp_path / "steps.csv", made()), H200)


@pytest.mark.skipif(not MEASURED.exists(), reason="the measured steps are not beside this checkout")
def test_the_measured_steps_are_read() -> None:
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


@pytest.mark.full
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
