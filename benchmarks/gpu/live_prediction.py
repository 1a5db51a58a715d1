"""Runs over HTTP: their prediction, with the time of server, gateway and clients, and how it compares.

That time is measured in rehearsals: runs with other seeds and without a GPU, in which a loop waits for the simulator's
step times. No constant comes from the compared runs.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from math import fsum
from pathlib import Path
from typing import Any

from benchmarks.gpu import cases
from benchmarks.gpu.cases import LiveRun
from benchmarks.gpu.figures import FIGURES, figures
from headway import simulate
from headway.types import Json

LIVE = "live.jsonl.gz"
REHEARSALS = "rehearsals.json"
PREDICTED = "live-predicted.csv"
COLUMNS = (
    "arrival_ps", "started_ps", "first_token_ps", "finished_ps", "instance", "prompt_tokens", "output_tokens",
    "cached_tokens",
)  # fmt: skip
TIMES = FIGURES[:3]
DIGITS = {"tpot": 3, "hit": 3}


def client_figures(requests: Any) -> dict[str, float]:
    return figures({name: requests.column(name) for name in COLUMNS})


def overhead(client: dict[str, float], replicas: list[dict[str, float]]) -> dict[str, float]:
    """Return how many µs a step waits beyond its duration in a rehearsal, and by how many ms the figures of the clients
    exceed those of the engine."""
    requests = fsum(each["requests"] for each in replicas)
    steps = fsum(each["steps"] for each in replicas)
    waits = fsum((each["between_ms"] + each["late_ms"]) * each["steps"] for each in replicas) / steps
    engine = {name: fsum(each[f"{name}_ms"] * each["requests"] for each in replicas) / requests for name in TIMES}
    return {"step_us": waits * 1000} | {name: client[name] - engine[name] for name in TIMES}


def predict_live(out: Path, latency: dict[str, Any], own: dict[str, Any]) -> None:
    """Write the predicted figures of the runs over HTTP, without and with the time of HTTP; print the table's hash."""
    rehearsed: dict[str, dict[str, float]] = json.loads((out / REHEARSALS).read_text())
    with (out / PREDICTED).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "with", *FIGURES])
        for run in cases.live_runs(latency, own, cases.LIVE_SEED):
            name = run.name
            found = rehearsed.get(name if run.dilation == 1 else cases.DILATED_REHEARSAL)
            if found is None:
                continue  # only part of the runs is asked for
            plain = simulated(run)
            slower = simulated(named(name, slowed(latency, found["step_us"]), own))
            whole = {figure: slower[figure] + found.get(figure, 0.0) for figure in FIGURES}
            for kind, row in (("engine", plain), ("http", whole)):
                writer.writerow([name, kind, *(f"{row[figure]:.6f}" for figure in FIGURES)])
    digest = hashlib.sha256((out / PREDICTED).read_bytes()).hexdigest()
    print(f"predicted the runs over HTTP; sha256 {digest}", flush=True)


def named(name: str, latency: dict[str, Any], own: dict[str, Any]) -> LiveRun:
    return next(run for run in cases.live_runs(latency, own, cases.LIVE_SEED, deploy=True) if run.name == name)


def slowed(latency: dict[str, Any], more_us: float) -> dict[str, Any]:
    return latency | {"host": f"{float(latency['host'].removesuffix('us')) + more_us:.4g}us"}


def simulated(run: LiveRun) -> dict[str, float]:
    return client_figures(simulate(run.scenario, progress=False).requests)


def live_records(out: Path) -> list[Json]:
    with gzip.open(out / LIVE, "rt") as file:
        return list(map(json.loads, file))


def measured(record: Json) -> dict[str, float]:
    return figures(dict(zip(record["columns"], zip(*record["requests"], strict=True), strict=True)))


def live_lines(out: Path) -> list[str]:
    """Return the runs over HTTP: measured, predicted without and with the time of HTTP, and the error of the latter."""
    with (out / PREDICTED).open(newline="") as file:
        predicted = {(row["run"], row["with"]): row for row in csv.DictReader(file)}
    lines = ["| run | figure | measured | engine alone | with HTTP | error |", "|---" * 6 + "|"]
    for record in live_records(out):
        name = record["run"]
        if (name, "http") not in predicted:
            continue
        found = measured(record)
        for figure in FIGURES:
            alone, whole = (float(predicted[name, kind][figure]) for kind in ("engine", "http"))
            digits = DIGITS.get(figure, 1)
            values = [f"{value:.{digits}f}" for value in (found[figure], alone, whole)]
            difference = whole - found[figure]
            error = f"{difference:+.3f}" if figure == "hit" else f"{difference / found[figure]:+.1%}"
            lines.append(f"| {' | '.join((name, figure, *values, error))} |")
    return lines


def deploy_lines(out: Path, latency: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Return the run with a deployment beside the same run without: the requests that arrived before `headway deploy`
    began, and those that arrived after it had returned."""
    records = {record["run"]: record for record in live_records(out)}
    deployed = records.get(f"deployed-{cases.DEPLOYED}")
    if deployed is None:
        return []
    done = deployed["deployed"]
    heads = ["requests", "policy in force"]
    heads += [f"{figure}, {what}" for figure in ("TTFT", "E2E", "hit") for what in ("measured", "predicted")]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    kept = named("kept-round-robin", latency, own).scenario
    other = cases.dilated(cases.DEPLOYED, latency, own, cases.LIVE_SEED, cases.DEPLOY_REQUESTS)
    runs = {
        policy: simulate(run, progress=False).requests
        for policy, run in (("round-robin", kept), (cases.DEPLOYED, other))
    }
    count = cases.DEPLOY_REQUESTS
    for title, name, policy, begin, end in (
        ("before", "deployed-searched", "round-robin", 0, done["begun"]),
        ("after", "deployed-searched", cases.DEPLOYED, done["confirmed"], count),
        ("after, without a deployment", "kept-round-robin", "round-robin", done["confirmed"], count),
    ):
        record = records[name]
        rows = sorted(record["requests"])[begin:end]
        found = figures(dict(zip(record["columns"], zip(*rows, strict=True), strict=True)))
        simulated_rows = sorted(zip(*(runs[policy].column(each) for each in COLUMNS), strict=True))[begin:end]
        expected = figures(dict(zip(COLUMNS, zip(*simulated_rows, strict=True), strict=True)))
        values = [
            f"{each[figure]:.{DIGITS.get(figure, 1)}f}"
            for figure in ("ttft", "e2e", "hit")
            for each in (found, expected)
        ]
        lines.append(f"| {' | '.join((f'{title} ({end - begin})', policy, *values))} |")
    return lines
