"""Measure the simulator's CPU time and peak memory on fixed cases: `python benchmarks/bench.py [CASE ...] [--json]`.

Each case runs in its own process. The time covers the simulation and its summary with all percentiles, but not
start-up, parsing and the generation of requests. To compare machines use `ratio`, the time divided by that of
`yardstick.py`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TRACE = HERE.parent.parent / "shared" / "traces" / "mooncake" / "conversation_trace.jsonl.gz"

BASE: dict[str, Any] = {
    "defaults": "2026-11",  # so that figures stay comparable
    "seed": 7,
    "workload": {
        "requests": 10000,
        "rate": "40/s",
        "arrival": "poisson",
        "prompt_tokens": {"dist": "normal", "mean": 512, "std": 128, "min": 16, "max": 2048},
        "output_tokens": {"dist": "normal", "mean": 256, "std": 64, "min": 8, "max": 1024},
        "prefix": {"groups": 20, "tokens": 256},
    },
    "cluster": {"instances": 8, "model": "llama-3.1-8b", "gpu": "h100", "latency": {"model": "roofline"}},
    "policies": {
        "routing": {"name": "weighted", "scorers": {"prefix-affinity": 3, "queue-depth": 2, "kv-utilization": 2}}
    },
    "slo": {"ttft": "500ms", "tpot": "50ms"},
}
LONG = {"dist": "normal", "mean": 2560, "std": 640, "min": 80, "max": 10240}

CASES: dict[str, dict[str, Any]] = {
    "base": {},
    "50k": {"workload": {"requests": 50000}},
    "64-instances": {"workload": {"rate": "320/s"}, "cluster": {"instances": 64}},
    "long-outputs": {"workload": {"rate": "4/s", "output_tokens": LONG}},
    "mooncake": {"workload": {"trace": {"format": "mooncake", "path": str(TRACE)}}},
    "million": {"workload": {"requests": 1000000, "rate": "320/s"}, "cluster": {"instances": 64}},
}


def scenario(case: str) -> dict[str, Any]:
    changes = CASES[case]
    merged = {**BASE, **{key: {**BASE[key], **value} for key, value in changes.items()}}
    if "trace" in merged["workload"]:
        merged["workload"] = {"trace": merged["workload"]["trace"]}
    return merged


def measure(case: str, repeats: int) -> dict[str, Any]:
    """Run one case in this process. Return the minimum CPU time of several runs and the peak memory of the first."""
    from yardstick import seconds

    from headway.experiment.run import prepare, run_facts
    from headway.results.metrics import summarise
    from headway.scenario.scenario import Scenario
    from headway.workload.traffic import OpenLoop

    loaded = Scenario.load(scenario(case))
    planned: Any = prepare(loaded).traffic()
    if case != "million":
        planned = list(planned)
    best, peak = float("inf"), 0
    for _ in range(repeats):
        gc.collect()
        prepared = prepare(loaded)
        before = time.process_time()
        simulation = prepared.simulation()
        recorder = simulation.run(OpenLoop(planned))
        summarise(recorder, simulation.cluster.stats, run_facts(loaded, simulation))
        best = min(best, time.process_time() - before)
        peak = peak or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "case": case,
        "requests": len(recorder),
        "cpu_s": round(best, 3),
        "ratio": round(best / seconds(), 2),
        "us_per_request": round(best / len(recorder) * 1e6, 1),
        "peak_mb": round(peak / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", help=f"cases to run, by default all: {', '.join(CASES)}")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case; the best counts (million: 1 run)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--package", default=str(HERE.parent / "src"), help="folder with the package to measure")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for case in options.cases:
        if case not in CASES:
            parser.error(f"there is no case {case!r}. Known: {', '.join(CASES)}")
    if options.inside:
        print(json.dumps(measure(options.cases[0], options.repeats)))
        return
    environment = dict(os.environ, PYTHONPATH=options.package)
    if not options.json:
        print(f"{'case':<14}{'requests':>10}{'CPU s':>9}{'ratio':>9}{'us/request':>12}{'peak MB':>9}")
    for case in options.cases or CASES:
        if case == "mooncake" and not TRACE.exists():
            print(f"mooncake: skipped, {TRACE} is missing", file=sys.stderr)
            continue
        repeats = 1 if case == "million" else options.repeats
        command = [sys.executable, __file__, case, "--inside", "--repeats", str(repeats)]
        row = json.loads(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{row['case']:<14}{row['requests']:>10,}{row['cpu_s']:>9.3f}{row['ratio']:>9.2f}"
                f"{row['us_per_request']:>12.1f}{row['peak_mb']:>9.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
