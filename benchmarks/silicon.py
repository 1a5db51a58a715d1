"""Compare simulated closed loops with benchmarks of real engines, point by point.

    python benchmarks/silicon.py points.csv --gpu h200 --model llama-3.1-70b --dtype-bytes 1 --engine vllm-0.18

Each row of the file is a benchmark of one engine: `tp_size` GPUs, prompts of `isl` tokens, answers of `osl` tokens,
`batch_size` requests always in flight, and the measured mean TTFT and TPOT in ms (`silicon_ttft_ms`,
`silicon_tpot_ms`). Prompts vary by 10 % and answers by 20 %, because equal lengths keep a closed loop in lockstep. The
command prints the median and the 90th percentile of the errors of TPOT, and the bias by TP and by concurrency. It
leaves out points of 512 requests and more.
"""

from __future__ import annotations

import argparse
import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import yaml

import headway

MOST_IN_FLIGHT = 511
ROUNDS = 10  # requests of each user


def lengths(mean: int, share: float) -> dict[str, Any]:
    return {"dist": "uniform", "min": round(mean * (1 - share)), "max": round(mean * (1 + share))}


def simulate(row: dict[str, str], gpu: str, model: Any, latency: dict[str, Any]) -> tuple[float, float]:
    """Return the simulated mean TTFT and TPOT in ms."""
    users = int(row["batch_size"])
    workload = {
        "closed_loop": {"concurrency": users},
        "requests": users * ROUNDS,
        "prompt_tokens": lengths(int(row["isl"]), 0.1),
        "output_tokens": lengths(int(row["osl"]), 0.2),
    }
    cluster = {"instances": 1, "gpu": gpu, "model": model, "tp": int(row["tp_size"]), "latency": latency}
    cluster |= {"max_batch_tokens": 8192, "max_batch_size": 1024}
    result = headway.simulate({"workload": workload, "cluster": cluster})
    latencies = result.summary()["latency"]
    return latencies["ttft"]["mean"], latencies["tpot"]["mean"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--gpu", default="h200")
    parser.add_argument("--model", required=True, help="name of a model, or a mapping as YAML")
    parser.add_argument("--dtype-bytes", type=float, help="bytes per weight of a named model")
    parser.add_argument("--kv-bytes", type=float, help="bytes per number in the KV cache of a named model")
    parser.add_argument("--latency", default="{}", help="keys of cluster.latency as YAML, as in {engine: vllm-0.18}")
    parser.add_argument("--most", type=int, default=MOST_IN_FLIGHT, help="largest concurrency of a point that counts")
    parser.add_argument("--rows", action="store_true", help="print every point")
    options = parser.parse_args()
    model = yaml.safe_load(options.model)
    if options.dtype_bytes:
        model = {"like": model, "dtype_bytes": options.dtype_bytes}
        model["kv_dtype_bytes"] = options.kv_bytes or 2
    latency = {"model": "hardware", **yaml.safe_load(options.latency)}
    groups: dict[str, list[float]] = defaultdict(list)
    with options.file.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if int(row["batch_size"]) <= options.most]
    for row in rows:
        _, tpot = simulate(row, options.gpu, model, latency)
        error = tpot / float(row["silicon_tpot_ms"]) - 1
        for name in ("all", f"TP {row['tp_size']}", f"{int(row['batch_size']):>4} requests in flight"):
            groups[name].append(error)
        if options.rows:
            names = ("tp_size", "isl", "osl", "batch_size", "silicon_tpot_ms")
            print(*(row[name] for name in names), f"{tpot:.2f} {error:+.1%}", flush=True)
    for name, errors in sorted(groups.items()):
        size = sorted(map(abs, errors))
        bias = sorted(errors)[len(errors) // 2]
        median, p90 = size[len(size) // 2], size[len(size) * 9 // 10]
        print(f"{name:<26}{len(errors):>4} points  median {median:>6.1%}  p90 {p90:>6.1%}  bias {bias:>+6.1%}")


if __name__ == "__main__":
    main()
