"""Import of RouteSim's configurations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import Run
from headway.errors import HeadwayError
from headway.interop.routesim_import import ALGORITHMS, import_config
from headway.scenario.scenario import Scenario

HEAD = '[simulation]\nname = "small"\nseed = 5\nwarmup_requests = 2\n'
COMPUTE = """
[cluster.compute_model]
prefill_tokens_per_sec = 30000
decode_tokens_per_sec_batch1 = 70.5
decode_throughput_saturation_batch = 32
decode_tokens_per_sec_saturated = 1500
"""
SPLIT = """
[cluster.disaggregated]
enabled = true
prefill_backends = 1
decode_backends = 2
kv_transfer_latency_us = 300
kv_transfer_bandwidth_gb_s = 25.0
num_layers = 40
"""
TRACE = '\n[trace]\nformat = "compact_jsonl"\npath = "traces/t.jsonl"\n'


def write(folder: Path, cluster: str = "num_backends = 3", rest: str = COMPUTE, trace: str = TRACE) -> Path:
    """Write a project of RouteSim: a configuration in a folder, and a trace in the folder beside it."""
    for name in ("configs", "traces"):
        (folder / name).mkdir(exist_ok=True)
    rows: list[dict[str, Any]] = [
        {"ts": 40 * at, "prompt_tokens": 300 + at, "gen_tokens": 12, "prefix_hash": f"p{at % 2}", "prefix_len": 128}
        for at in range(12)
    ]
    (folder / "traces" / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    file = folder / "configs" / "c.toml"
    file.write_text(f"{HEAD}\n[cluster]\n{cluster}\n{rest}{trace}")
    return file


def test_a_configuration_becomes_a_scenario_that_runs(headway: Run, tmp_path: Path) -> None:
    write(tmp_path)
    done = headway("import", "routesim", "configs/c.toml", "--algorithm", "prefix_aware", "-o", "s.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((tmp_path / "s.yaml").read_text()) == {
        "name": "small",
        "seed": 5,
        "warmup": 2,
        "workload": {"trace": {"path": "traces/t.jsonl", "format": "routesim"}},
        "cluster": {
            "instances": 3,
            "gpu": "h100",
            "max_batch_tokens": 16384,
            "max_queue": 256,
            "kv": {"gpu_blocks": 32768, "block_tokens": 16},
            "latency": {
                "model": "piecewise",
                "prefill_tokens_per_s": 30000,
                "decode_tokens_per_s": 70.5,
                "saturation_batch": 32,
                "saturated_tokens_per_s": 1500,
            },
        },
        "policies": {"routing": "prefix-aware"},
    }
    for word in ("max_batch_tokens limits", "max_queue scales", "warmup excludes"):
        assert word in done.stderr
    ran = headway("run", "s.yaml", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_trace_is_sought_above_the_configuration_and_named_from_the_scenario(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "out").mkdir()
    result = import_config(file, folder=tmp_path / "out").document
    assert result["workload"]["trace"]["path"] == "../traces/t.jsonl"
    (tmp_path / "traces" / "t.jsonl").unlink()
    assert "trace.path: traces/t.jsonl was not found" in " ".join(import_config(file).notes)


def test_another_trace_replaces_the_one_of_the_configuration(headway: Run, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "mine.jsonl").write_text('{"ts": 1, "prompt_tokens": 9, "gen_tokens": 3}\n')
    done = headway("import", "routesim", "configs/c.toml", "--trace", "mine.jsonl", cwd=tmp_path)
    assert yaml.safe_load(done.stdout)["workload"]["trace"]["path"] == "mine.jsonl"


def test_prefill_and_decode_backends_become_halves_with_the_same_transfer(headway: Run, tmp_path: Path) -> None:
    file = write(tmp_path, rest=COMPUTE + SPLIT)
    result = import_config(file, "least_kv", folder=tmp_path).document
    cluster = result["cluster"]
    assert (cluster["prefill"], cluster["decode"]) == ({"instances": 1}, {"instances": 2})
    assert cluster["transfer"] == {"latency": "300us", "bandwidth": "25GB/s", "first_token": "decode"}
    assert result["policies"]["routing"] == {"name": "pair", "prefill": "least-kv", "decode": "least-outstanding"}
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(result))
    scenario = Scenario.load(tmp_path / "s.yaml")
    assert scenario.cluster.shape().kv_bytes_per_token == 2 * 2 * 8 * 128 * 40  # RouteSim's own formula
    assert headway("run", "s.yaml", "--json", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms_have_policies_of_the_same_name(tmp_path: Path, algorithm: str) -> None:
    result = import_config(write(tmp_path), algorithm, folder=tmp_path).document
    Scenario.load({**result, "workload": {"requests": 1, "rate": "1/s"}})
    assert result["policies"]["routing"] == algorithm.replace("_", "-")


@pytest.mark.parametrize(("tokens", "size"), [(70, 16), (1500, 512)])
def test_blocks_of_a_mooncake_trace_have_the_size_that_fits(tmp_path: Path, tokens: int, size: int) -> None:
    file = write(tmp_path, trace='\n[trace]\nformat = "mooncake"\npath = "traces/m.jsonl"\n')
    row = {"timestamp": 1, "input_length": tokens, "output_length": 4, "hash_ids": list(range(tokens // size))}
    (tmp_path / "traces" / "m.jsonl").write_text(json.dumps(row))
    result = import_config(file, folder=tmp_path)
    assert result.document["workload"]["trace"]["block_tokens"] == size
    assert any("blocks have 512 tokens" in note for note in result.notes) is (size == 512)


def test_a_synthetic_trace_becomes_a_workload(tmp_path: Path) -> None:
    figures = "rate = 20\nduration_sec = 30\nprompt_tokens_mean = 400\nprompt_tokens_std = 50\ngen_tokens_mean = 90\n"
    trace = f'\n[trace]\nformat = "synthetic"\ngenerator = "bursty"\nnum_prefixes = 4\n{figures}'
    result = import_config(write(tmp_path, trace=trace))
    workload = result.document["workload"]
    assert (workload["rate"], workload["duration"]) == ("20/s", "30s")
    assert workload["prompt_tokens"] == {"dist": "normal", "mean": 400, "std": 50}
    assert workload["prefix"] == {"groups": 4, "tokens": 256}
    assert "trace.generator: bursty is ignored" in " ".join(result.notes)
    Scenario.load(result.document)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"cluster": "num_backends = 0"}, "cluster.num_backends: expected a whole number of at least 1, got 0"),
        ({"cluster": 'num_backends = 2\ngpu_type = "TPU"'}, "gpu_type: 'TPU' is unknown"),
        ({"cluster": "num_backends = 2\nbackends = 3"}, "there is no such key"),
        (
            {"rest": "[cluster.compute_model]\nprefill_tokens_per_sec = 0\n"},
            "prefill_tokens_per_sec: expected a number above 0",
        ),
        (
            {"rest": "[cluster.compute_model]\ndecode_throughput_saturation_batch = 1\n"},
            "decode_throughput_saturation_batch: must be at least 2",
        ),
        ({"cluster": "num_backends = 9", "rest": SPLIT}, "must be above 0 and add up to 9, got 1 and 2"),
        ({"rest": SPLIT.replace("25.0", "0")}, "kv_transfer_bandwidth_gb_s: expected a number above 0"),
        (
            {"rest": SPLIT.replace("num_layers = 40", "num_layers = 0")},
            "num_layers: expected a whole number of at least 1",
        ),
        ({"rest": SPLIT.replace("300", "-300")}, "kv_transfer_latency_us: expected a whole number of at least 0"),
        (
            {"cluster": "num_backends = 200000"},
            r"c\.toml: the scenario would be invalid: cluster\.instances: .* 100,000",
        ),
        ({"trace": '\n[trace]\nformat = "csv"\n'}, "format: 'csv' is unknown"),
        ({"trace": "\n[trace]\n"}, "trace.path: is missing"),
        ({"trace": '\n[trace]\nformat = "synthetic"\n'}, "trace.rate: is missing"),
        ({"trace": "\n[trace\n"}, "is not TOML"),
    ],
)
def test_a_wrong_configuration_is_refused_at_its_place(tmp_path: Path, more: dict[str, str], word: str) -> None:
    with pytest.raises(HeadwayError, match=word):
        import_config(write(tmp_path, **more))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rate", "0"),
        ("rate", "inf"),
        ("duration_sec", "0"),
        ("prompt_tokens_mean", "-5"),
        ("prompt_tokens_std", "-1"),
        ("gen_tokens_mean", "1e300"),
        ("num_prefixes", "-1"),
    ],
)
def test_a_synthetic_trace_out_of_range_is_refused_at_import(tmp_path: Path, key: str, value: str) -> None:
    figures = {"rate": 20, "duration_sec": 30, "prompt_tokens_mean": 400, "gen_tokens_mean": 90, key: value}
    lines = "\n".join(f"{name} = {figure}" for name, figure in figures.items())
    with pytest.raises(HeadwayError, match=r"c\.toml"):
        import_config(write(tmp_path, trace=f'\n[trace]\nformat = "synthetic"\n{lines}\n'))


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"algorithm: 'prefix_awre' is unknown\. Did you mean"):
        import_config(write(tmp_path), "prefix_awre")


def test_what_is_not_used_is_noted(tmp_path: Path) -> None:
    off = SPLIT.replace("enabled = true", "enabled = false")
    result = import_config(write(tmp_path, rest=off, trace=TRACE + "rate = 5\n"))
    assert "disaggregated is ignored" in " ".join(result.notes)
    assert "trace.rate is ignored" in " ".join(result.notes)
