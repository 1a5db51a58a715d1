"""A day of traffic under static peak provisioning and under each autoscaler: `python benchmarks/diurnal.py [NAME ...]`.

The scenario is `diurnal.yaml` with hourly rates. If ServeGen's archive is next to the project's folder, its ten-minute
rates replace them. Each run has its own process, to measure its CPU time and peak memory separately.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ARCHIVE = HERE.parent.parent / "shared" / "traces" / "servegen" / "reason_deepseek-r1.tar.gz"
DAY, WINDOW = 86_400, 600  # seconds

# Each autoscaler with its defaults, and tuned to the capacity of a replica. Within the SLO a replica serves 2.2
# requests per second, with about 60 requests in flight. docs/scaling.md explains why the default of 0.7 is too high.
RUNS: dict[str, Any] = {
    "static": "static",
    **{name: name for name in ("target-utilization", "queue-threshold", "slo-driven", "concurrency")},
    **{name: name for name in ("hpa", "predictive", "kv-token")},
    "target-utilization, tuned": {"name": "target-utilization", "target": 0.4},
    "queue-threshold, tuned": {
        "name": "queue-threshold",
        "above": 0.5,
        "below": 0.1,
        "step": 2,
        "sustained_s": 0,
        "sustained_down_s": 600,
    },
    "slo-driven, tuned": {
        "name": "slo-driven",
        "target": 0.97,
        "comfort": 0.99,
        "low": 0.5,
        "step": 0.5,
        "cooldown_down_s": 600,
    },
    "concurrency, tuned": {"name": "concurrency", "target": 60, "scale_down_delay_s": 300},
    "hpa, tuned": {"name": "hpa", "target": 0.4},
    "predictive, tuned": {"name": "predictive", "concurrency": 60, "lead_s": 300},
    "kv-token, tuned": {"name": "kv-token", "kv_threshold": 0.5},
}


def profile() -> dict[str, Any] | None:
    """Return the rate of all clients in each window relative to the day's mean. Return None if there is no archive."""
    if not ARCHIVE.exists():
        return None
    from headway.workload.traces import servegen_data

    requests = [0] * (DAY // WINDOW)
    for client in servegen_data.clients(ARCHIVE):
        for window in client.windows:
            if window.start < DAY:
                requests[window.start // WINDOW] += window.requests
    mean = sum(requests) / len(requests)
    levels = [{"at": f"{n * WINDOW}s", "multiplier": round(count / mean, 3)} for n, count in enumerate(requests)]
    return {"type": "step", "levels": levels}


def measure(name: str, changes: list[str]) -> dict[str, Any]:
    import headway

    rates = profile()
    if rates is not None:
        changes = [f"workload.profile={json.dumps(rates)}", *changes]
    scenario = headway.Scenario.load(HERE / "diurnal.yaml", changes)
    before = time.process_time()
    summary = headway.simulate(scenario, scaling=RUNS[name]).summary()
    return {
        "name": name,
        "cpu_s": time.process_time() - before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "summary": {key: summary[key] for key in ("requests", "latency", "slo", "cost", "energy", "scaling")},
    }


def row(run: dict[str, Any], static: dict[str, Any]) -> str:
    summary = run["summary"]
    scaling, slo = summary["scaling"], summary["slo"]
    hours = scaling["replica_seconds"] / 3600
    saved = 1 - scaling["replica_seconds"] / static["scaling"]["replica_seconds"]
    lost = static["slo"]["goodput_ratio"] - slo["goodput_ratio"]
    return (
        f"{run['name']:<28}{hours:>8.1f}{saved:>8.1%}{scaling['mean_replicas']:>7.2f}{slo['goodput_ratio']:>8.2%}"
        f"{-100 * lost:>+8.2f}{summary['latency']['ttft']['p99'] / 1000:>9.2f}{summary['cost']['usd']:>7.0f}"
        f"{scaling['scale_ups']:>6}{scaling['scale_downs']:>6}{scaling['oscillations']:>6}"
        f"{run['cpu_s']:>7.1f}{run['peak_mb']:>6.0f}"
    )


HEADER = (
    f"{'':<28}{'replica':>8}{'':>8}{'mean':>7}{'in':>8}{'':>8}{'p99':>9}{'':>7}{'':>6}{'':>6}{'':>6}{'CPU':>7}{'':>6}\n"
    f"{'autoscaler':<28}{'hours':>8}{'saved':>8}{'reps':>7}{'SLO':>8}{'points':>8}{'TTFT s':>9}{'USD':>7}"
    f"{'ups':>6}{'downs':>6}{'osc':>6}{'s':>7}{'MB':>6}"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"runs beside static, by default all: {', '.join(RUNS)}")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="an override, as in `headway run`")
    parser.add_argument("--json", action="store_true", help="print a JSON document per line instead of the table")
    parser.add_argument("--package", default=str(HERE.parent / "src"), help="folder with the package to measure")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.names:
        if name not in RUNS:
            parser.error(f"there is no run {name!r}. Known: {', '.join(RUNS)}")
    if options.inside:
        print(json.dumps(measure(options.names[0], options.changes)))
        return
    names = [name for name in RUNS if name == "static" or not options.names or name in options.names]
    environment = dict(os.environ, PYTHONPATH=options.package)
    changes = [part for change in options.changes for part in ("--set", change)]
    static: dict[str, Any] = {}
    for name in names:
        command = [sys.executable, __file__, name, "--inside", *changes]
        run = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)
        static = static or run["summary"]
        if options.json:
            print(json.dumps(run), flush=True)
            continue
        if name == "static":
            source = "ten-minute rates" if ARCHIVE.exists() else f"hourly rates, because {ARCHIVE} is missing"
            print(f"{static['requests']['arrived']:,} requests, {source}\n{HEADER}")
        print(row(run, static), flush=True)


if __name__ == "__main__":
    main()
