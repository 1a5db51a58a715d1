"""Without the packages of an extra, a feature that needs them says which extra to install."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import headway as package
from conftest import ROOT, SOURCE, Run
from headway.errors import HeadwayError

TINY = {"workload": {"requests": 2, "rate": "1/s", "prompt_tokens": 16, "output_tokens": 2}}
GATEWAY = "listen: 127.0.0.1:0\nbackends: {a: 'http://127.0.0.1:9'}\n"
FILES = {
    "gateway.yaml": GATEWAY,
    "admin.yaml": GATEWAY + "admin: {listen: '127.0.0.1:0', key_env: ADMIN_KEY}\n",
    "events.yaml": GATEWAY + "events: {bind: 'tcp://127.0.0.1:*'}\ntokens: {path: model}\n",
    "otel.yaml": GATEWAY + "otel: {endpoint: 'http://127.0.0.1:9'}\n",
    "hash.yaml": GATEWAY + "tokens: {hash: blake3}\n",
    "tokens.yaml": GATEWAY + "tokens: {path: model}\n",
    "steps.csv": "batch,decode_kv_tokens,n_prefill,new_tokens,past_context,median_ms\n"
    + "".join(f"{n},{700 * n},{n % 2},{n % 2 * 128},0,{5 + n / 10}\n" for n in range(1, 60)),
}
# For each extra, modules that it installs, and a command that needs them. A module that is blocked in Python's table of
# modules cannot be imported, as if it were not installed.
CASES = [
    ("gateway", "httptools", "serve gateway.yaml"),
    ("gateway", "xxhash", "serve gateway.yaml"),
    ("gateway", "aiohttp", "serve admin.yaml"),
    ("gateway", "httptools", "emulate"),
    ("gateway", "httptools", "load http://127.0.0.1:9"),
    ("gateway", "httptools", "twin"),
    ("gateway", "httptools", "conformance http://127.0.0.1:9"),
    ("gateway", "aiohttp", "fleet list --etcd 127.0.0.1:9"),
    ("gateway", "opentelemetry", "serve otel.yaml"),
    ("gateway", "blake3", "serve hash.yaml"),
    ("gateway", "tokenizers", "serve tokens.yaml"),
    ("gateway", "grpc", "epp gateway.yaml"),
    ("gateway", "google.protobuf", "epp gateway.yaml"),
    ("kvd", "xxhash", "kvd"),
    ("kvd", "aioquic", "kvd ping quic://127.0.0.1:9 --ca x --certificate x --key x"),
    ("kvd", "cryptography", "kvd certs folder"),
    ("evolve", "optuna", "evolve routing-2026-11 --engine numeric --evaluations 1"),
    ("evolve", "gepa", "evolve routing-2026-11 --engine gepa --model m --api-base http://127.0.0.1:9 --evaluations 1"),
    (
        "evolve",
        "openevolve",
        "evolve routing-2026-11 --engine openevolve --model m --api-base http://127.0.0.1:9 --evaluations 1",
    ),
    ("ray", "ray", "compare --ray local"),
    ("data", "scipy", "calibrate steps.csv --gpu h200 --model llama-3.1-8b -o x.yaml"),
    ("aiconfigurator", "aiconfigurator_core", "run --set cluster.latency.model=aiconfigurator"),
]
PROGRAM = (
    "import sys; sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(','))); from headway.cli import main; main()"
)


@pytest.mark.full
@pytest.mark.parametrize(("extra", "module", "command"), CASES, ids=[f"{case[1]}: {case[2]}" for case in CASES])
def test_a_command_names_the_extra_that_it_needs(extra: str, module: str, command: str, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, module, *shlex.split(command)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": SOURCE, "ADMIN_KEY": "secret", "COLUMNS": "80"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert "is not installed. Run: pip install 'headway[" in last and f"headway[{extra}]" in last, done.stderr


def test_each_extra_for_users_has_a_case() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"].keys() - {"docs", "dev"}
    assert {extra for extra, _, _ in CASES} | {"notebook"} == extras
    assert len(extras) <= 8


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_name_the_extra_data(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    columns = package.simulate(TINY).requests
    with pytest.raises(HeadwayError, match=rf"{library} is not installed\. Run: pip install 'headway\[data\]'"):
        getattr(columns, f"to_{library}")()


def test_charts_name_the_extra_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    with pytest.raises(HeadwayError, match=r"altair is not installed\. Run: pip install 'headway\[notebook\]'"):
        package.simulate(TINY).plot()


@pytest.mark.parametrize(
    ("name", "start", "missing"),
    [
        ("my.jsonl.zst", b"\x28\xb5\x2f\xfd", "zstandard"),
        ("my.parquet", b"PAR1", "polars or pyarrow"),
    ],
)
def test_packed_files_name_the_extra_data(
    name: str, start: bytes, missing: str, headway: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("polars", "pyarrow", "zstandard"):
        monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / name).write_bytes(start + bytes(60))
    done = headway("trace", "convert", name, "x.jsonl", "--map", "arrival=a,prompt=b,output=c", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith(f"headway: {name}: {missing} is not installed. Run: pip install 'headway[data]'; or ")
