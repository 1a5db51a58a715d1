"""Measure the CPU cost of KV tiers and of prefill/decode disaggregation, relative to the same workload without them:
`python benchmarks/ratios.py [CASE ...] [--json]`.

Both variants of a case run in turn in one process. The time of each run with the feature is divided by the mean time of
the run before it and the run after it, which do not have the feature. The ratio is the median of these quotients. The
seconds are the minimum over the runs. The seconds and `ratio` include the summary, as in `bench.py`;
`simulation_ratio` does not. The base case of tiers is the same cluster without tiers, with a cache that evicts. The
base case of 2 prefill and 6 decode instances is 8 instances that do both.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
Json = dict[str, Any]


def normal(mean: int, least: int, most: int) -> Json:
    return {"dist": "normal", "mean": mean, "std": mean // 4, "min": least, "max": most}


def completions(rate: int, prompt: Json, output: Json) -> Json:
    return {
        "rate": f"{rate}/s",
        "prompt_tokens": prompt,
        "output_tokens": output,
        "prefix": {"groups": 20, "tokens": min(256, prompt["mean"] // 2)},
    }


SHORT, OUTPUT = normal(512, 16, 2048), normal(256, 8, 1024)
WORKLOADS: dict[str, Json] = {
    "base": completions(40, SHORT, OUTPUT),
    "1k": completions(25, normal(1024, 16, 4096), OUTPUT),
    "prompt-heavy": completions(8, normal(6000, 500, 12000), normal(64, 4, 256)),
    "decode-heavy": completions(20, normal(128, 16, 512), normal(800, 8, 2000)),
    "high-load": completions(120, SHORT, OUTPUT),
    "chat": {
        "rate": "6/s",
        "kind": "chat",
        "prompt_tokens": {"dist": "lognormal", "mean": 1500, "std": 1000, "min": 50, "max": 8000},
        "output_tokens": {"dist": "lognormal", "mean": 150, "std": 100, "min": 10, "max": 800},
    },
}
ENGINE: Json = {"gpu": "h100", "latency": {"model": "roofline"}}  # explicit, so that new defaults change nothing
WHOLE: Json = {**ENGINE, "instances": 8}
APART: Json = {**ENGINE, "architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 6}}
CPU: Json = {"cpu": {"blocks": 6000}}
TIERS: dict[str, Json] = {
    "lazy": {"tiers": CPU, "offload": "lazy"},
    "eager": {"tiers": CPU, "offload": "eager"},
    "threshold": {"tiers": CPU, "offload": "threshold", "offload_level": 0.8},
    "shared": {"tiers": {"cpu": {"blocks": 3000}, "storage": {"blocks": 60000, "shared": True}}},
}
GPU_BLOCKS = {"base": 1500, "1k": 2500, "high-load": 1500, "chat": 4000}  # few enough blocks that the cache evicts


def cases() -> dict[str, tuple[str, Json, Json]]:
    """Return the workload, the base cluster and the measured cluster of each case."""
    known: dict[str, tuple[str, Json, Json]] = {}
    for name in ("base", "1k", "prompt-heavy", "decode-heavy", "high-load"):
        known[f"pd/{name}"] = (name, WHOLE, APART)
    for name in ("1k", "prompt-heavy"):
        known[f"pd/{name}/pipelined"] = (name, WHOLE, {**APART, "transfer": {"pipelined": True}})
    for name, offloads in {
        "base": list(TIERS),
        "1k": ["lazy", "eager"],
        "high-load": ["lazy"],
        "chat": list(TIERS),
    }.items():
        plain = {"gpu_blocks": GPU_BLOCKS[name]}
        for offload in offloads:
            tiered = {**WHOLE, "kv": {**plain, **TIERS[offload]}}
            known[f"tiers/{name}/{offload}"] = (name, {**WHOLE, "kv": plain}, tiered)
    return known


def measure(case: str, requests: int, repeats: int) -> Json:
    from headway.experiment.run import prepare, run_facts
    from headway.results.metrics import summarise
    from headway.scenario.scenario import Scenario
    from headway.workload.traffic import OpenLoop

    workload, *clusters = cases()[case]
    routing = {"routing": "least-loaded"}
    shared = {
        "defaults": "2026-11",
        "seed": 7,
        "workload": {"requests": requests, **WORKLOADS[workload]},
        "policies": routing,
    }
    loaded = [Scenario.load({**shared, "cluster": cluster}) for cluster in clusters]
    times: list[tuple[float, float]] = []  # CPU times without and with the summary
    for number in range(2 * repeats + 1):
        prepared = prepare(loaded[number % 2])
        traffic: Any = prepared.traffic()
        if not traffic.listens:  # the requests do not depend on answers, so they are generated before the measurement
            traffic = OpenLoop(list(traffic))
        gc.collect()
        before = time.process_time()
        simulation = prepared.simulation()
        recorder = simulation.run(traffic)
        between = time.process_time()
        summarise(recorder, simulation.cluster.stats, run_facts(loaded[number % 2], simulation))
        times.append((between - before, time.process_time() - before))
    return {
        "case": case,
        "plain_s": round(min(whole for _, whole in times[::2]), 3),
        "with_s": round(min(whole for _, whole in times[1::2]), 3),
        "ratio": round(against_neighbours([whole for _, whole in times]), 2),
        "simulation_ratio": round(against_neighbours([alone for alone, _ in times]), 2),
    }


def against_neighbours(times: list[float]) -> float:
    """Divide every second time by the mean of its two neighbours, and return the median of the quotients. Changes in
    the machine's speed affect neighbours alike."""
    return median(times[at] * 2 / (times[at - 1] + times[at + 1]) for at in range(1, len(times), 2))


def main() -> None:
    known = cases()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help="names or prefixes of names, by default all")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=7, help="runs with the feature; there is one more without")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--package", default=str(HERE.parent / "src"), help="folder with the package to measure")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        print(json.dumps(measure(options.cases[0], options.requests, options.repeats)))
        return
    chosen = [case for case in known if case.startswith(tuple(options.cases or [""]))]
    if not chosen:
        parser.error(f"there is no such case. Known: {', '.join(known)}")
    environment = dict(os.environ, PYTHONPATH=options.package)
    if not options.json:
        print(f"{'case':<28}{'plain s':>9}{'with s':>9}{'ratio':>8}{'simulation alone':>18}")
    for case in chosen:
        numbers = ["--requests", str(options.requests), "--repeats", str(options.repeats)]
        command = [sys.executable, __file__, case, "--inside", *numbers]
        row = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        if options.json:
            print(json.dumps(row))
        else:
            times = f"{row['plain_s']:>9.3f}{row['with_s']:>9.3f}"
            print(f"{case:<28}{times}{row['ratio']:>8.2f}{row['simulation_ratio']:>18.2f}", flush=True)


if __name__ == "__main__":
    main()
