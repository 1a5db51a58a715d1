"""Fit the times of an engine to benchmarks of closed loops, and compare its steps with kernel times.

    python benchmarks/fit_engine.py llama.csv gpt-oss.csv   # fit to two thirds of the points, judge by the others
    python benchmarks/fit_engine.py --tables                # decode steps next to the operator tables of vLLM 0.24

The points are those of `silicon.py`, on H200: llama-3.1-70b in FP8 with a KV cache of 8 bits, and gpt-oss-120b. A
simulation of each point would be too slow within a fit. The script computes the mean TPOT of a steady loop instead,
times the ratio of simulated and computed TPOT with the times as they are. It prints the fitted times and the errors on
the points that were held out, and then the errors on each TP of a fit without this TP. `--tables` needs
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
from headway.latency.hardware_times import Hardware, WindowedHardware
from headway.latency.profiles import read_profile
from headway.latency.shards import shard
from headway.latency.step_cost import Constants, sequences_us
from headway.types import PS_PER_US

Row = dict[str, str]
ENGINE, BUDGET = "vllm-0.18", 8192
FP8 = {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 1}
MODELS: dict[str, Any] = {"meta-llama/Llama-3.1-70B": FP8, "openai/gpt-oss-120b": "gpt-oss-120b"}
HELD = 3  # of so many points, one is held out
# Start, lower and upper bound of each time.
FREE = {
    "step_us": (600.0, 0.0, 3000.0),
    "sequence_us": (10.0, 0.0, 100.0),
    "quantise_us": (3.0, 0.0, 10.0),
    "kv8_tb_s": (2.5, 1.0, 4.0),
    "fp8_many_tb_s": (4.0, 1.0, 20.0),
    "packed_tb_s": (3.5, 1.0, 4.8),
    "packed_tflops": (380.0, 50.0, 690.0),
}
Values = dict[str, float]


def changed(engine: Engine, values: Values) -> Engine:
    """Return an engine with other times. Names that end in `_us` are microseconds."""
    whole = {name.replace("_us", "_ps"): round(values[name] * PS_PER_US) for name in values if name.endswith("_us")}
    return replace(engine, **whole | {name: value for name, value in values.items() if not name.endswith("_us")})


def latency(gpu: str, model: Any, tp: int, engine: Engine) -> Hardware:
    card, part = read_gpu(gpu, "gpu"), shard(read_model(model, "model"), tp)
    profile = read_profile(gpu, card, "gpu")
    known = read_profile("h200", card, "gpu").constants
    profile = replace(profile, constants=engine.kernels(profile.constants, known, part.hidden, gpu))
    reduce = all_reduce(interconnect(card, tp), tp) if tp > 1 else None
    kind = WindowedHardware if part.windowed else Hardware
    return kind(profile, part, (engine.step_ps, engine.sequence_ps), reduce)


def steady_tpot(row: Row, values: Values) -> float:
    """Return the mean TPOT in ms of a loop whose requests come and go evenly."""
    prompt, answer, users = (int(row[name]) for name in ("isl", "osl", "batch_size"))
    ttft, tpot = float(row["silicon_ttft_ms"]), float(row["silicon_tpot_ms"])
    engine = changed(engines().entries[ENGINE], values)
    model = latency("h200", MODELS[row["model_path"]], int(row["tp_size"]), engine)
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
    long = int(row["isl"]) + int(row["osl"]) > 4096
    return MODELS[row["model_path"]] == FP8 and row["tp_size"] == "1" and row["batch_size"] == "64" and long


def read_points(files: Sequence[Path]) -> list[Row]:
    """Return the points, in order and each once."""
    points: dict[tuple[Any, ...], Row] = {}
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                numbers = tuple(int(row[name]) for name in ("tp_size", "isl", "osl", "batch_size"))
                if numbers[-1] <= MOST_IN_FLIGHT and not fills_the_cache(row):
                    points.setdefault((row["model_path"], *numbers), row)
    return [points[key] for key in sorted(points)]


def fit_loops(files: Sequence[Path], rows_too: bool) -> None:
    rows = read_points(files)
    settings = {"model": "hardware", "engine": ENGINE}
    ratios = [simulate(row, "h200", MODELS[row["model_path"]], settings)[1] / steady_tpot(row, {}) for row in rows]
    points = list(zip(rows, ratios, strict=True))
    print("simulated / computed TPOT:", ", ".join(f"{share:.3f}" for share in np.quantile(ratios, [0, 0.5, 1])))

    def errors(at: Sequence[float], chosen: Sequence[tuple[Row, float]]) -> list[float]:
        values = dict(zip(FREE, at, strict=True))
        return [steady_tpot(row, values) * share / float(row["silicon_tpot_ms"]) - 1 for row, share in chosen]

    def fit(chosen: Sequence[tuple[Row, float]]) -> list[float]:
        start, low, high = zip(*FREE.values(), strict=True)
        loss: Callable[[Any], Any] = lambda at: np.log1p(errors(at, chosen))  # noqa: E731
        found = least_squares(
            loss, start, bounds=(low, high), loss="soft_l1", f_scale=0.03, diff_step=1e-3, x_scale=start
        )
        return [float(value) for value in found.x]

    def report(name: str, chosen: Sequence[tuple[Row, float]], found: Sequence[float]) -> None:
        for model in MODELS:
            own = [error for (row, _), error in zip(chosen, found, strict=True) if row["model_path"] == model]
            if own:
                sizes = sorted(map(abs, own))
                figures = f"median {median(sizes):.1%}  p90 {sizes[len(sizes) * 9 // 10]:.1%}  bias {median(own):+.1%}"
                print(f"  {name:<16}{model:<26}{len(own):>4} points  {figures}", flush=True)

    def judge(name: str, left_out: Callable[[int, Row], bool]) -> list[float]:
        """Fit to the other points, and print the errors on those that are left out."""
        held = [point for place, point in enumerate(points) if left_out(place, point[0])]
        at = fit([point for place, point in enumerate(points) if not left_out(place, point[0])])
        report(name, held, errors(at, held))
        return at

    at = judge("a third held out", lambda place, _: place % HELD == HELD - 1)
    print(", ".join(f"{name}: {value:.4g}" for name, value in zip(FREE, at, strict=True)), flush=True)
    found = errors(at, points)
    report("all points", points, found)
    if rows_too:
        for (row, _), error in zip(points, found, strict=True):
            print(
                "   ", *(row[name] for name in ("model_path", "tp_size", "isl", "osl", "batch_size")), f"{error:+.1%}"
            )
    for tp in ("1", "2", "4", "8"):
        judge(f"TP {tp} left out", lambda _, row, tp=tp: bool(row["tp_size"] == tp))


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
            numbers = {"like": name, "dtype_bytes": bytes_a_weight, "kv_dtype_bytes": bytes_a_weight}
            model = latency(card.name, numbers, tp, engine)
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
    parser.add_argument(
        "files", type=Path, nargs="*", help="benchmarks of llama-3.1-70b in FP8 and gpt-oss-120b on H200"
    )
    parser.add_argument("--rows", action="store_true", help="print every point")
    parser.add_argument("--tables", action="store_true", help="compare decode steps with kernel times")
    options = parser.parse_args()
    if options.files:
        fit_loops(options.files, options.rows)
    for system in ("h100_sxm", "h200_sxm") if options.tables else ():
        for bytes_a_weight in (2, 1):
            compare(system, bytes_a_weight)


if __name__ == "__main__":
    main()
