"""Fit the times of an engine for 8 bits to benchmarks of closed loops, and compare its steps with kernel times.

    python benchmarks/fit_engine.py points.csv           # of llama-3.1-70b in FP8 on H200, with the host's times fixed
    python benchmarks/fit_engine.py points.csv --host    # fit `sequence` as well
    python benchmarks/fit_engine.py --tables             # decode steps next to the operator tables of vLLM 0.24

The points are those of `silicon.py`. A simulation of each point would be too slow within a fit. The script computes the
mean TPOT of a steady loop instead, times the ratio of simulated and computed TPOT with the engine as it is. It prints
the fitted times, and the errors by TP, of a fit to all points and of fits that leave out one TP each. `--tables` needs
aiconfigurator-core (extra aiconfigurator), and reads none of its measurements of whole systems.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
from bisect import bisect_left
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import polars
from msgspec.structs import replace
from scipy.optimize import least_squares
from silicon import MOST_IN_FLIGHT, simulate

from headway.latency import read_gpu, read_model
from headway.latency.all_reduce import all_reduce
from headway.latency.engines import Engine, engines
from headway.latency.gpus import interconnect
from headway.latency.profiles import read_profile
from headway.latency.shards import shard
from headway.latency.step_cost import Constants, sequences_us
from headway.latency.step_models.hardware import Hardware
from headway.types import PS_PER_US

Row = dict[str, str]
ENGINE, BUDGET = "vllm-0.18", 8192
MODEL = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 1}
# Start, lower and upper bound of each time.
FREE = {"quantise_us": (3.0, 0.0, 10.0), "kv8_tb_s": (2.5, 1.0, 4.0), "fp8_many_tb_s": (3.3, 1.0, 4.3)}
HOST = {"sequence_us": (10.0, 0.0, 100.0)}


def changed(engine: Engine, values: dict[str, float]) -> Engine:
    """Return an engine with other times. Names that end in `_us` are microseconds."""
    names = {name: name.replace("_us", "_ps") for name in values}
    whole = {names[name]: round(value * PS_PER_US) for name, value in values.items() if name.endswith("_us")}
    return replace(engine, **whole | {name: value for name, value in values.items() if not name.endswith("_us")})


def latency(gpu: str, model: Any, tp: int, engine: Engine) -> Hardware:
    card, part = read_gpu(gpu, "gpu"), shard(read_model(model, "model"), tp)
    profile = read_profile(gpu, card, "gpu")
    profile = replace(profile, constants=engine.kernels(profile.constants, part.hidden, 1.0))
    reduce = all_reduce(interconnect(card, tp), tp) if tp > 1 else None
    return Hardware(profile, part, (engine.step_ps, engine.sequence_ps), reduce)


def steady_tpot(row: Row, engine: Engine) -> float:
    """Return the mean TPOT in ms of a loop whose requests come and go evenly."""
    prompt, answer, users = (int(row[name]) for name in ("isl", "osl", "batch_size"))
    ttft, tpot = float(row["silicon_ttft_ms"]), float(row["silicon_tpot_ms"])
    model = latency("h200", MODEL, int(row["tp_size"]), engine)
    for _ in range(6):  # the number of decodes depends on TPOT
        decoding = users * (answer - 1) * tpot / ((answer - 1) * tpot + ttft)
        decodes = max(1, round(decoding))
        context, past, prefill = round(decodes * (prompt + answer / 2)), 0, 0
        step = model.run(decodes, context, ())[0]
        while past < prompt:
            chunk = min(prompt - past, BUDGET - decodes)
            prefill += model.run(decodes, context, ((chunk, past),))[0] - step
            past += chunk
        tpot = (step + decoding * prefill / (answer - 1)) / 1e9
    return tpot


def fills_the_cache(row: Row) -> bool:
    """Whether requests wait for KV blocks, which `steady_tpot` does not know."""
    return row["tp_size"] == "1" and row["batch_size"] == "64" and int(row["isl"]) + int(row["osl"]) > 4096


def fit_loops(file: Path, free: dict[str, tuple[float, float, float]]) -> None:
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in csv.DictReader(lines) if int(row["batch_size"]) <= MOST_IN_FLIGHT]
    rows = [row for row in rows if not fills_the_cache(row)]
    known = engines().entries[ENGINE]
    settings = {"model": "hardware", "engine": ENGINE}
    ratios = [simulate(row, "h200", MODEL, settings)[1] / steady_tpot(row, known) for row in rows]
    points = list(zip(rows, ratios, strict=True))
    print("simulated / computed TPOT:", ", ".join(f"{share:.3f}" for share in np.quantile(ratios, [0, 0.5, 1])))

    def errors(at: Sequence[float], chosen: Sequence[tuple[Row, float]]) -> list[float]:
        engine = changed(known, dict(zip(free, at, strict=True)))
        return [steady_tpot(row, engine) * share / float(row["silicon_tpot_ms"]) - 1 for row, share in chosen]

    def fit(chosen: Sequence[tuple[Row, float]]) -> list[float]:
        start, low, high = zip(*free.values(), strict=True)
        loss: Callable[[Any], Any] = lambda at: np.log1p(errors(at, chosen))  # noqa: E731
        found = least_squares(loss, start, bounds=(low, high), loss="soft_l1", f_scale=0.03, diff_step=1e-3)
        return [float(value) for value in found.x]

    def report(name: str, found: Sequence[float]) -> None:
        sizes = sorted(map(abs, found))
        figures = f"median {median(sizes):.1%}  p90 {sizes[len(sizes) * 9 // 10]:.1%}  bias {median(found):+.1%}"
        print(f"  {name:<16}{len(found):>4} points  {figures}")

    at = fit(points)
    print(", ".join(f"{name}: {value:.4g}" for name, value in zip(free, at, strict=True)))
    report("fitted", errors(at, points))
    everything: list[float] = []
    for tp in sorted({row["tp_size"] for row in rows}):
        blind = fit([point for point in points if point[0]["tp_size"] != tp])
        found = errors(blind, [point for point in points if point[0]["tp_size"] == tp])
        report(f"TP {tp} left out", found)
        everything += found
    report("all left out", everything)


# Decode steps next to kernel times.

SHAPES = ("llama-3.1-8b", "llama-3.1-70b", "qwen-3-32b")
BATCHES, CONTEXTS = (1, 4, 8, 16, 32, 64, 128), (1024, 4096)
Kernels = dict[tuple[int, ...], float]


def between(known: Sequence[int], value: int) -> list[tuple[int, float]]:
    """Return the neighbours of a value with their weights."""
    at = bisect_left(known, value)
    if known[at] == value:
        return [(value, 1.0)]
    share = (value - known[at - 1]) / (known[at] - known[at - 1])
    return [(known[at - 1], 1 - share), (known[at], share)]


def matmul_us(kernels: Kernels, widths: Sequence[int], rows: int, outputs: int, inputs: int) -> float:
    return sum(
        one * other * kernels[rows, width, depth] * 1000
        for width, one in between(widths, outputs)
        for depth, other in between(widths, inputs)
    )


def compare(system: str, bytes_a_weight: int) -> None:
    spec = importlib.util.find_spec("aiconfigurator_core")
    assert spec is not None and spec.submodule_search_locations
    folder = Path(spec.submodule_search_locations[0]) / "systems" / "data" / system
    number = "fp8" if bytes_a_weight == 1 else "bfloat16"
    table = polars.read_parquet(folder / "gemm" / "vllm" / "0.24.0" / "gemm_perf.parquet")
    table = table.filter(polars.col("gemm_dtype") == number).select("m", "n", "k", "latency")
    matmuls: Kernels = {row[:3]: row[3] for row in table.iter_rows()}
    widths = sorted({key[1] for key in matmuls})
    table = polars.read_parquet(folder / "attention" / "vllm" / "0.24.0" / "generation_attention_perf.parquet")
    table = table.filter((polars.col("kv_cache_dtype") == number) & (polars.col("window_size") == 0))
    names = ("num_heads", "num_key_value_heads", "head_dim", "batch_size", "step", "latency")
    attention: Kernels = {row[:5]: row[5] for row in table.select(names).iter_rows()}
    card, engine = read_gpu(system.split("_")[0], "gpu"), replace(engines().entries[ENGINE], step_ps=0, sequence_ps=0)
    for name in SHAPES:
        shape = read_model({"like": name, "dtype_bytes": bytes_a_weight, "kv_dtype_bytes": bytes_a_weight}, "model")
        hidden, heads, size = shape.hidden, shape.heads, shape.head_dim
        for tp in (1, 2, 4, 8):
            model = latency(
                card.name, {"like": name, "dtype_bytes": bytes_a_weight, "kv_dtype_bytes": bytes_a_weight}, tp, engine
            )
            gpu: Constants = model.profile.constants
            keys, errors = shape.kv_heads // tp, []
            sizes = ((heads // tp + 2 * keys) * size, hidden), (hidden, heads * size // tp)
            sizes += (2 * shape.intermediate // tp, hidden), (hidden, shape.intermediate // tp)
            for batch in BATCHES:
                layer = sum(matmul_us(matmuls, widths, batch, *each) for each in sizes)
                layer += batch * model.part.moved / (gpu.elementwise_tb_s * 1e6)
                if model.reduce is not None:
                    layer += 2 * model.reduce.time_us(batch * 2 * hidden)
                for context in CONTEXTS:
                    kernel = attention.get((heads // tp, keys, size, batch, context - 1))
                    if kernel is None:  # it was not measured, because its KV cache is too large
                        continue
                    us = shape.layers * (layer + kernel * 1000) + sequences_us(gpu, model.part, batch)
                    errors.append(model.run(batch, batch * context, ())[0] / PS_PER_US / us - 1)
            figures = f"median {median(errors):+.1%}  {min(errors):+.1%} to {max(errors):+.1%}"
            print(f"  {system} {name:<14}{number:<9} TP {tp}  {figures}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, nargs="?", help="benchmarks of llama-3.1-70b in FP8 on H200")
    parser.add_argument("--host", action="store_true", help="fit the time of a sequence on the host as well")
    parser.add_argument("--tables", action="store_true", help="compare decode steps with kernel times")
    options = parser.parse_args()
    if options.file is not None:
        fit_loops(options.file, FREE | (HOST if options.host else {}))
    for system in ("h100_sxm", "h200_sxm") if options.tables else ():
        for bytes_a_weight in (2, 1):
            compare(system, bytes_a_weight)


if __name__ == "__main__":
    main()
