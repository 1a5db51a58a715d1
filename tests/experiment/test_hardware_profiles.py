"""`headway hardware`: the descriptions of profiles."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest

import headway as package
from conftest import Run
from headway.config.keys import keys_of
from headway.errors import HeadwayError
from headway.latency.engines import engines
from headway.latency.gpus import gpus
from headway.latency.profiles import measured_profiles
from headway.latency.step_cost import Constants


def test_every_gpu_has_a_profile_and_the_measured_ones_say_how_far_they_hold() -> None:
    result = package.hardware()["profiles"]
    assert [each["name"] for each in result] == list(gpus().entries)
    for each in result:
        assert each["source"] and each["as_of"]
        assert each["calibrated"] == (each["name"] in measured_profiles())
        assert bool(each["error"]) == bool(each["range"]) == each["calibrated"]


def test_every_constant_has_a_unit_and_words() -> None:
    assert all(key.doc.type and key.doc.meaning for key in keys_of(Constants).values())


def test_the_example_steps_are_those_of_the_latency_model() -> None:
    result = package.hardware("h200", "qwen-2.5-7b")
    questions = package.latency("h200", "qwen-2.5-7b")
    for step in result["examples"]["steps"]:
        chunks = [(new, past) for new, past in step["chunks"]]
        assert step["gpu_ms"] == questions.step_ms([step["context"]] * step["decodes"], chunks)
    assert result["host_ms"] == questions.host_ms
    assert result["examples"]["note"] is None
    assert "not calibrated" in package.hardware("b200")["examples"]["note"]


def test_a_profile_is_found_by_an_alias_and_a_wrong_name_gets_a_sentence() -> None:
    assert package.hardware("rtx4090")["name"] == "rtx-4090"
    with pytest.raises(HeadwayError, match=r"^hardware: no hardware profile .*'h20'.* Did you mean 'h200'"):
        package.hardware("h20")


def test_the_list_prints_measured_profiles_first_and_fits_a_terminal(headway: Run) -> None:
    process = headway("hardware", "list")
    assert process.returncode == 0, process.stderr
    rows = process.stdout.splitlines()
    assert max(map(len, rows)) <= 80
    kinds = ["measured" if " measured " in row else "sheet" for row in rows[2 : 2 + len(gpus().entries)]]
    assert kinds == ["measured"] * len(measured_profiles()) + ["sheet"] * (len(kinds) - len(measured_profiles()))
    assert "90th percentile" in process.stdout


def test_show_prints_constants_with_units_and_json_is_the_same_document(headway: Run) -> None:
    process = headway("hardware", "show", "h200", "--model", "llama-3.1-70b", "--tp", "4")
    assert process.returncode == 0, process.stderr
    assert max(map(len, process.stdout.splitlines())) <= 80
    assert "h200: measured" in process.stdout and "weights_tb_s 3.844 TB/s" in " ".join(process.stdout.split())
    assert "Steps of llama-3.1-70b on 4 GPUs" in process.stdout
    document = headway("hardware", "show", "h200", "--model", "llama-3.1-70b", "--tp", "4", "--json")
    assert json.loads(document.stdout) == package.hardware("h200", "llama-3.1-70b", 4)
    wrong = headway("hardware", "show", "h200", "--model", "gpt-9")
    assert wrong.returncode != 0 and wrong.stderr.count("\n") == 1 and "gpt-9" in wrong.stderr


def origins(name: str) -> dict[str, str]:
    return {constant: figures["origin"] for constant, figures in package.hardware(name)["constants"].items()}


def test_constants_of_work_that_a_profile_does_not_cover_are_assumed() -> None:
    h200, rtx = origins("h200"), origins("rtx-4090")
    for name in ("fp8_speedup", "expert_tb_s", "route_us", "packed_tflops", "kv8_us"):
        assert (h200[name], rtx[name]) == ("measured", "assumed"), name
    assert rtx["kv_tb_s"] == rtx["padded_rows"] == "measured"
    assert h200["tile"] == "assumed"  # no fit changes it


def test_the_rates_of_a_spec_sheet_are_derived_and_its_other_constants_assumed() -> None:
    for name, origin in origins("h100").items():
        assert origin == ("derived" if name.endswith(("_tb_s", "_tflops")) else "assumed")


def test_constants_that_a_profile_lists_as_assumed_are_shown_with_the_reason(tmp_path: Path, headway: Run) -> None:
    shipped = (resources.files("headway") / "presets" / "profiles" / "h200.yaml").read_text(encoding="utf-8")
    keys = "engine: vllm 0.19\nhost_sequence: 10us\nall_reduce_times: 1.25\n"
    assumed = "assumed: {narrow_heads: no step depends on it}\n"
    (tmp_path / "mine.yaml").write_text(shipped.replace("constants:", f"{keys}{assumed}constants:"), encoding="utf-8")
    process = headway("hardware", "show", "mine.yaml", cwd=tmp_path)
    words = " ".join(process.stdout.split())
    assert "narrow_heads 0.2862 share assumed" in words and "narrow_heads: no step depends on it" in words
    assert "kv_tb_s 4.36 TB/s measured" in words
    assert "0.5 ms per step and 10 µs per sequence, in addition to the GPU's time (vllm 0.19)" in words
    assert "all-reduces × 1.25, fitted to a run on several GPUs" in words


def test_show_lists_the_engines_with_their_times_and_sources(headway: Run) -> None:
    process = headway("hardware", "show", "h100")
    words = " ".join(process.stdout.split())
    for name, engine in engines().entries.items():
        host = package.hardware("h100")["engines"][name]
        assert (host["step_us"], host["sequence_us"]) == (engine.step_ps / 1e6, engine.sequence_ps / 1e6)
        assert f"{name} {host['step_us']:g} {host['sequence_us']:g} {host['quantise_us']:g} " in words
        assert host["source"].split()[0] in words
    assert "assumed: scenarios use vllm-0.18 instead" in words
    assert max(map(len, process.stdout.splitlines())) <= 80
