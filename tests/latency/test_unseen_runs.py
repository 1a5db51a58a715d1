"""Runs of vLLM 0.15.1 on H100, as inference-sim/training publishes them (commit ed5c1d26, folder default_args).

The figures are those of the second stage of each run, 10 requests/s for 600 s. No time was fitted to them. The
simulation is shorter, because the load is steady.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "unseen"
# Run: measured mean TPOT, median and 90th percentile of E2E, median TTFT, in ms. TPOT is that of the mean times.
CODEGEN = {
    "llama-2-7b-codegen": (8.89, 2214.8, 2425.7, 28.9),
    "codellama-34b-codegen": (15.17, 3788.4, 3839.4, 46.2),
    "mixtral-8x7b-codegen": (19.09, 4740.4, 4851.9, 56.8),
    "llama-2-70b-codegen": (19.05, 4742.4, 4803.0, 56.6),
}


@cache
def predict() -> ModuleType:
    spec = importlib.util.spec_from_file_location("predict", FOLDER / "predict.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def simulated(run: str, engine: str) -> dict[str, dict[str, float]]:
    """Return the figures of the second of two stages, by latency."""
    row = next(row for row in predict().read_rows(FOLDER / "runs.csv") if row["run"] == run)
    rows = predict().replay({**row, "stages": "10x15+10x60"}, engine)
    return {row["latency"]: {name: float(row[name]) for name in ("mean", "p50", "p90")} for row in rows[3:]}


@pytest.mark.parametrize("run", CODEGEN)
def test_runs_of_four_models_on_one_to_four_gpus_are_met_by_the_engine_of_their_version(run: str) -> None:
    tpot, median, p90, _ = CODEGEN[run]
    found = simulated(run, "vllm-0.14")
    assert found["tpot"]["mean"] == pytest.approx(tpot, rel=0.06)
    assert found["e2e"]["p50"] == pytest.approx(median, rel=0.06)
    assert found["e2e"]["p90"] == pytest.approx(p90, rel=0.06)


@pytest.mark.parametrize("run", CODEGEN)
def test_asynchronous_scheduling_explains_the_wait_for_the_first_token_but_for_the_clients_part(run: str) -> None:
    """The clients measured TTFT; HTTP, tokens and their own work are no part of an engine."""
    measured = CODEGEN[run][3]
    ahead, after = (simulated(run, engine)["ttft"]["p50"] for engine in ("vllm-0.14", "vllm-2025"))
    assert 4 < measured - ahead < 12
    assert after < 0.6 * measured
