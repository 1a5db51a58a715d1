"""Fit the constants of the profile h200 that dense 16-bit models do not show: experts, FP8, and KV caches in FP8.

    python benchmarks/fit_hardware.py --data FOLDER      # with steps_moe.csv and steps_fp8.csv
    python benchmarks/fit_hardware.py --all-reduce       # the rows of presets/all_reduce.yaml
    python benchmarks/fit_hardware.py --exchange         # the rows of presets/exchange.yaml
    python benchmarks/fit_hardware.py --matmuls          # errors of single matmuls by card

The constants of dense models stay fixed. The command prints the fitted constants, and the errors on every third step,
which a second fit leaves out. The other options need the operator tables of aiconfigurator-core (extra aiconfigurator).
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace
from scipy.optimize import least_squares

from headway.latency.fit import Step
from headway.latency.gpus import read_gpu
from headway.latency.profiles import read_profile
from headway.latency.shapes import read_model
from headway.latency.shards import Matmul, shard
from headway.latency.step_cost import FEW_TOKENS, Constants, matmul_us

SHAPES: dict[str, Any] = {
    "qwen3-30b-a3b": "qwen-3-30b-a3b",
    "mixtral-8x7b": "mixtral-8x7b",
    "llama-3.1-8b-fp8": {"like": "llama-3.1-8b", "dtype_bytes": 1, "kv_dtype_bytes": 2},
    "llama-3.1-8b-fp8-kv8": {"like": "llama-3.1-8b", "dtype_bytes": 1, "kv_dtype_bytes": 1},
    "llama-3.1-70b-fp8": {"like": "llama-3.1-70b", "dtype_bytes": 1, "kv_dtype_bytes": 2},
}
ZIPF = 1.0  # skew of the rows with routing zipf1.0
# Start, lower and upper bound of each constant.
EXPERTS = {
    "expert_tb_s": (4.4, 1.0, 4.8),
    "expert_tflops": (650.0, 100.0, 989.0),
    "expert_pad": (64.0, 0.0, 256.0),
    "expert_half": (32.0, 0.01, 500.0),
    "route_us": (25.0, 0.0, 200.0),
    "route_bytes": (6.0, 0.0, 60.0),
}
FP8 = {
    "fp8_tb_s": (3.9, 1.0, 4.8),
    "fp8_speedup": (1.6, 1.0, 2.2),
    "fp8_us": (3.0, 0.0, 40.0),
    "fp8_bytes": (2.0, 0.0, 60.0),
    "kv8_tb_s": (3.0, 1.0, 4.8),
    "kv8_us": (1.0, 0.0, 50.0),
    "kv8_past": (3.0, 0.0, 30.0),
}


def read(file: Path) -> list[tuple[str, Step]]:
    """Return the steps of a file whose activations have one scale per tensor, each with the name of its group."""
    steps = []
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["mode"] != "graph" or row.get("scaling", "tensor") != "tensor":
                continue
            skew = ZIPF if row.get("routing") == "zipf1.0" else 0.0
            part = shard(read_model(SHAPES[row["shape"]], "model"), 1, "model", skew)
            chunks = tuple((new, past) for new, past in json.loads(row["composition"])["prefill"])
            step = Step(part, int(row["batch"]), int(row["decode_kv_tokens"]), chunks, float(row["median_ms"]) * 1000)
            steps.append((f"{row['shape']}{' zipf' if skew else ''} {step.phase}", step))
    return steps


def fit(steps: Sequence[Step], start: Constants, free: dict[str, tuple[float, float, float]]) -> Constants:
    """Fit the free constants to the logarithms of the times, with a loss that grows linearly for errors above 2 %."""
    scale = np.array([max(first, 1e-3) for first, _, _ in free.values()])

    def constants(at: Any) -> Constants:
        return replace(start, **{name: float(value) for name, value in zip(free, at, strict=True)})

    def residuals(at: Any) -> Any:
        gpu = constants(at)
        return np.array([np.log1p(step.error(gpu)) for step in steps])

    bounds = [low for _, low, _ in free.values()], [high for _, _, high in free.values()]
    first = [value for value, _, _ in free.values()]
    return constants(least_squares(residuals, first, loss="soft_l1", f_scale=0.02, x_scale=scale, bounds=bounds).x)


def report(steps: Sequence[tuple[str, Step]], constants: Constants) -> None:
    groups: dict[str, list[float]] = defaultdict(list)
    for name, step in steps:
        groups[name].append(abs(step.error(constants)))
        groups["all"].append(abs(step.error(constants)))
    for name, errors in sorted(groups.items()):
        errors.sort()
        median, p90 = errors[len(errors) // 2], errors[len(errors) * 9 // 10]
        print(f"  {name:<32}{len(errors):>5} steps  median {median:.1%}  90th percentile {p90:.1%}")


def fit_file(file: Path, start: Constants, free: dict[str, tuple[float, float, float]]) -> Constants:
    steps = read(file)
    blind = fit([step for at, (_, step) in enumerate(steps) if at % 3], start, free)
    constants = fit([step for _, step in steps], start, free)
    print(f"{file.name}: {', '.join(f'{name}: {getattr(constants, name):.4g}' for name in free)}")
    print(" held out of a fit to the other steps:")
    report([step for at, step in enumerate(steps) if not at % 3], blind)
    return constants


ALL_REDUCES = {  # link: folder of the operator tables
    "nvlink4-nvswitch": "h200_sxm/comm/vllm/0.19.0",
    "nvlink4-nvswitch-h100": "h100_sxm/comm/vllm/0.19.0",
    "nvlink4-nvswitch-h100, vllm-2025": "h100_sxm/comm/vllm/0.14.0",
    "nvlink3-nvswitch": "a100_sxm/comm/vllm/0.14.0",
    "nvlink5-nvswitch": "b200_sxm/comm/vllm/0.24.0",
    "pcie4": "l40s/comm/vllm/0.22.0",
    "pcie5": "rtx_pro_6000_server/comm/vllm/0.24.0",
    "pcie5-no-p2p": "rtx_pro_6000_server/comm/vllm/0.19.0",
}
EXCHANGES = {
    "nvlink4-nvswitch": "h200_sxm/comm/nccl/2.29.2",
    "nvlink4-nvswitch-h100": "h100_sxm/comm/nccl/2.29.2",
    "nvlink3-nvswitch": "a100_sxm/comm/nccl/2.27.3",
    "nvlink5-nvswitch": "b200_sxm/comm/nccl/2.29.2",
    "pcie4": "l40s/comm/nccl/2.27.3",
    "pcie5": "rtx_pro_6000_server/comm/nccl/2.29.2",
}


MATMULS = {  # GPU: folder of the operator tables
    "h200": "h200_sxm/gemm/vllm/0.24.0",
    "h100": "h100_sxm/gemm/vllm/0.24.0",
    "b200": "b200_sxm/gemm/vllm/0.24.0",
    "a100-80gb": "a100_sxm/gemm/vllm/0.14.0",
    "l40s": "l40s/gemm/vllm/0.24.0",
    "rtx-pro-6000": "rtx_pro_6000_server/gemm/vllm/0.24.0",
}
WIDTHS = (2048, 16384)  # of the matrices, which are those of models of some billion parameters
ROWS = ((1, 16), (17, 256), (257, 8192))


def operator_tables() -> Path:
    spec = importlib.util.find_spec("aiconfigurator_core")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0]) / "systems" / "data"


def print_matmuls() -> None:
    """Print a Markdown table: the errors of single matmuls in BF16 by card and number of rows."""
    import polars

    print("| GPU | " + " | ".join(f"{low:,} to {high:,} rows" for low, high in ROWS) + " |")
    print("|---" * (1 + len(ROWS)) + "|")
    for name, path in MATMULS.items():
        gpu = read_profile(name, read_gpu(name, "gpu"), "gpu").constants
        table = polars.read_parquet(operator_tables() / path / "gemm_perf.parquet")
        wide = polars.col("n").is_between(*WIDTHS) & polars.col("k").is_between(*WIDTHS)
        table = table.filter(wide & (polars.col("gemm_dtype") == "bfloat16"))
        cells = []
        for low, high in ROWS:
            own = table.filter(polars.col("m").is_between(low, high)).select("m", "n", "k", "latency")
            signed = sorted(matrix_us(gpu, m, n * k) / (1000 * ms) - 1 for m, n, k, ms in own.iter_rows())
            errors, bias = sorted(map(abs, signed)), signed[len(signed) // 2]
            cells.append(f"{errors[len(errors) // 2]:.0%} / {errors[len(errors) * 9 // 10]:.0%} ({bias:+.0%})")
        print(f"| {name} | " + " | ".join(cells) + " |")


def matrix_us(gpu: Constants, rows: int, weights: int) -> float:
    paid = rows + gpu.tile_share * (-(-rows // gpu.tile) * gpu.tile - rows)
    return matmul_us(gpu, Matmul(float(weights), 2.0), paid, rows > FEW_TOKENS)


def print_collectives(sources: dict[str, str], file: str, largest: int, times: Callable[[Any], Any]) -> None:
    """Print the rows of presets/all_reduce.yaml or exchange.yaml. `times` takes the rows of a table that belong to one
    number of GPUs, and returns milliseconds by size."""
    import polars

    folder = operator_tables()
    sizes = polars.col("message_size")  # numbers of 2 bytes; for an exchange, on each GPU after the all-gather
    for link, path in sources.items():
        table = polars.read_parquet(folder / path / file).filter(sizes.is_between(1 << 12, largest))
        print(f"  {link}:\n    us:")
        for gpus in (2, 4, 8):
            found = times(table.filter(polars.col("num_gpus") == gpus).sort("message_size"))
            print(f"      {gpus}: [{', '.join(f'{ms * 1000:.4g}' for ms in found)}]")


def print_all_reduce() -> None:
    def times(rows: Any) -> Any:
        return rows.filter(rows["backend"].str.contains("graph"))["latency"]

    print_collectives(ALL_REDUCES, "custom_allreduce_perf.parquet", 1 << 27, times)


def print_exchange() -> None:
    def times(rows: Any) -> Any:
        half = rows.filter(rows["nccl_dtype"] == "half")
        gather, scatter = (half.filter(half["op_name"] == name)["latency"] for name in ("all_gather", "reduce_scatter"))
        return gather + scatter

    print_collectives(EXCHANGES, "nccl_perf.parquet", 1 << 28, times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with steps_moe.csv and steps_fp8.csv")
    parser.add_argument("--all-reduce", action="store_true", help="print the table of all-reduces")
    parser.add_argument("--exchange", action="store_true", help="print the table of exchanges between ranks")
    parser.add_argument("--matmuls", action="store_true", help="print the errors of single matmuls")
    options = parser.parse_args()
    if options.matmuls:
        print_matmuls()
    elif options.exchange:
        print_exchange()
    elif options.all_reduce:
        print_all_reduce()
    if options.data:
        start = read_profile("h200", read_gpu("h200", "gpu"), "gpu").constants
        constants = fit_file(options.data / "steps_moe.csv", start, EXPERTS)
        fit_file(options.data / "steps_fp8.csv", constants, FP8)


if __name__ == "__main__":
    main()
