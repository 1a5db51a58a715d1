"""What runs without a GPU: the profile, the predicted table with its hash, and predicted beside measured."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.gpu import cases
from benchmarks.gpu.cases import MODEL, Case
from benchmarks.gpu.figures import FIGURES, Row, Run, figures, lead, lead_on, order, side_by_side
from benchmarks.gpu.live_prediction import LIVE, deploy_lines, live_lines
from benchmarks.gpu.plot import plot
from benchmarks.gpu.steps import write_steps
from headway import calibrate, simulate
from headway.results.statistics import Interval

PROFILE = "profile.yaml"
FITTED = "fitted-steps.csv"
LATENCY = "latency.json"
PREDICTED = "predicted.csv"
RECORDS = "measured-*.jsonl.gz"
SIDES = ("predicted", "measured")
OBJECTIVE = ("ttft", "e2e")  # figures of the searches' objective, with equal weights
DIGITS = {"tpot": 3, "hit": 3}
MEASURED_WITH = "measured with benchmarks/gpu"
COLUMNS = (
    "id", "arrival_ps", "started_ps", "first_token_ps", "finished_ps", "instance", "prompt_tokens", "output_tokens",
    "cached_tokens", "preemptions",
)  # fmt: skip


def host_line(steps: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the host's time per step and per sequence in µs, by least squares over the steps of real traffic that only
    decode. The host's time is what a step takes beyond its GPU time. Steps with chunks take more of it; they are left
    out, because a line through all steps would charge decodes for the chunks."""
    import numpy as np

    decodes = [step for step in steps if not step["n_prefill"]]
    host = np.array([float(step["wall_ms"]) - float(step["median_ms"]) for step in decodes]) * 1000
    sequences = np.array([step["batch"] for step in decodes], float)
    (base, each), *_ = np.linalg.lstsq(np.stack([np.ones_like(sequences), sequences], 1), host, rcond=None)
    return float(base), float(each)


def with_chunks_of_host(rows: list[dict[str, Any]], base: float, each: float) -> list[dict[str, Any]]:
    """Return the steps of the fit. Chunks need more of the host than the line says. That time is added to the GPU's
    time of the steps with chunks, so that the profile has it."""
    found = []
    for row in rows:
        gpu, sequences = float(row["median_ms"]), int(row["batch"]) + int(row["n_prefill"])
        more = float(row["wall_ms"]) - gpu - (base + each * sequences) / 1000
        found.append(row | {"median_ms": f"{gpu + max(0.0, more):.5f}"} if int(row["n_prefill"]) else row)
    return found


def fit(out: Path) -> dict[str, Any]:
    """Return the section `cluster.latency`, with a path relative to the folder. If there is no profile yet, fit it to
    the measured steps."""
    if (out / LATENCY).exists():
        found: dict[str, Any] = json.loads((out / LATENCY).read_text())
        return found
    with gzip.open(out / "traffic.json.gz", "rt") as file:
        base, each = host_line(json.load(file))
    print(f"host: {base:.1f} µs per step and {each:.1f} µs per sequence")
    with (out / "steps.csv").open(newline="") as file:
        write_steps(out / FITTED, with_chunks_of_host(list(csv.DictReader(file)), base, each))
    fitted = calibrate(out / FITTED, "h200", MODEL, out / PROFILE, "0us", MEASURED_WITH, progress=False)
    for error in fitted.errors:
        print(f"{error.phase}: {error.steps} steps held out, median {error.median:.1%}, p90 {error.p90:.1%}")
    latency = cases.profile_latency(Path(PROFILE), base, each)
    (out / LATENCY).write_text(json.dumps(latency))
    return latency


def predict(out: Path, quick: bool = False) -> None:
    """Write the profile, the plan of the measurement and the predicted figures of its runs, and print their hash.
    `own.json` has the routing policies that were searched, by name; `plan.json` is then complete."""
    latency = fit(out)
    own = json.loads((out / "own.json").read_text()) if (out / "own.json").exists() else {}
    runs = planned(list(own), quick)
    (out / "plan.json").write_text(json.dumps({"latency": latency, "own": own, "cases": runs}, indent=1))
    write_predicted(out / PREDICTED, runs, latency | {"profile": str(out / PROFILE)}, own)
    digest = hashlib.sha256((out / PREDICTED).read_bytes()).hexdigest()
    (out / "predicted.sha256").write_text(f"{digest}  {PREDICTED}\n")
    print(f"predicted {len(runs)} runs; sha256 {digest}")


def write_predicted(path: Path, runs: list[list[Any]], latency: dict[str, Any], own: dict[str, Any]) -> None:
    jobs = [(Case(*run), latency, own) for run in runs]
    with Pool() as pool, path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["policy", "workload", "load", "seed", *FIGURES])
        for run, found in zip(runs, pool.imap(predict_one, jobs), strict=True):
            writer.writerow([*run, *(f"{found[name]:.6f}" for name in FIGURES)])


def planned(own: list[str], quick: bool = False) -> list[list[Any]]:
    """Return the runs to measure: seed by seed, with the cells in shuffled order, and the policies of a cell one after
    another, also shuffled. So a slow stretch of the machine meets all policies of a cell. The policies of the final
    comparison have all seeds, the others the first ones; on RAG, where they vary most, UNSTEADY ones have all too."""
    draw, runs = Random(36), []
    for number, seed in enumerate(cases.TEST):
        names = [*cases.FINAL, *own] if number >= cases.TABLE_SEEDS else [*cases.POLICIES, *own]
        cells = [(workload, load) for workload, loads in cases.RATES.items() for load in loads]
        draw.shuffle(cells)
        for cell in cells:
            more = cases.UNSTEADY if number >= cases.TABLE_SEEDS and cell[0] == "rag" else ()
            block = [*names, *more]
            draw.shuffle(block)
            runs += [[name, *cell, seed] for name in block]
    if quick:
        return [
            run
            for run in runs
            if run[0] in cases.QUICK_POLICIES and tuple(run[1:3]) in cases.QUICK_CELLS and run[3] in cases.QUICK_SEEDS
        ]
    return runs


def predict_one(job: tuple[Case, dict[str, Any], dict[str, Any]]) -> dict[str, float]:
    requests = simulate(cases.scenario(*job), progress=False).requests
    return figures({name: requests.column(name) for name in COLUMNS[1:]})


def records(out: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(out.glob(RECORDS)):
        with gzip.open(path, "rt") as lines:
            yield from map(json.loads, lines)


def columns_of(record: dict[str, Any]) -> dict[str, list[int]]:
    return dict(zip(COLUMNS, map(list, zip(*record["requests"], strict=True)), strict=True))


def read_predicted(out: Path) -> dict[Run, dict[str, float]]:
    """Return the predicted figures of all tables in the folder: of the first one, and of runs that were added."""
    found = {}
    for path in sorted(out.glob("predicted*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                run = (row["policy"], row["workload"], row["load"], int(row["seed"]))
                found[run] = {name: float(row[name]) for name in FIGURES}
    return found


def read_measured(out: Path) -> dict[Run, dict[str, float]]:
    return {tuple(record["case"]): figures(columns_of(record)) for record in records(out)}


def table(out: Path) -> None:
    """Print predicted and measured side by side, the errors, the order of pairs, and the searched policy's lead."""
    predicted, measured = read_predicted(out), read_measured(out)
    rows = side_by_side(predicted, measured)
    (out / "confirmed.svg").write_text(plot(rows))
    print("\n".join([*table_lines(rows), "", *error_lines(rows), ""]))
    for name, found in order(rows).items():
        print(f"order, {name}: {found.right} of {found.pairs} pairs right")
        if name == "all" and found.wrong:
            print("  wrong:", "; ".join(found.wrong))
    print("\n".join(["", *lead_lines(predicted, measured), "", *objective_lines(predicted, measured)]))
    if (out / LIVE).exists():
        print("\n".join(["", *live_lines(out), "", *deploy_lines(out, *read_plan(out)[:2])]))


def table_lines(rows: list[Row]) -> list[str]:
    cells: dict[tuple[Any, ...], dict[str, Row]] = {}
    for row in rows:
        cells.setdefault((*row.cell, row.policy, row.seeds), {})[row.figure] = row
    heads = ["workload", "load", "policy", "seeds", *(f"{name}, {what}" for name in FIGURES for what in SIDES)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for cell, each in cells.items():
        values = list(map(str, cell))
        for name in FIGURES:
            digits, measured = DIGITS.get(name, 1), each[name].measured
            half = (measured.high or 0.0) - measured.mean
            values += [f"{each[name].predicted:.{digits}f}", f"{measured.mean:.{digits}f} ± {half:.{digits}f}"]
        lines.append(f"| {' | '.join(values)} |")
    return lines


def error_lines(rows: list[Row]) -> list[str]:
    lines = []
    for name in FIGURES:
        own = [row for row in rows if row.figure == name]
        errors = [row.error for row in own]
        worst = max(own, key=lambda row: abs(row.error))
        mean, absolute = fmean(errors), fmean(map(abs, errors))
        where = " ".join((*worst.cell, worst.policy))
        lines.append(
            f"{name}: mean error {mean:+.1%}, mean absolute {absolute:.1%}, worst {worst.error:+.1%} ({where})"
        )
    return lines


def lead_lines(predicted: dict[Run, dict[str, float]], measured: dict[Run, dict[str, float]]) -> list[str]:
    """Return by how much the searched and the tuned policy are ahead of the policies of the final comparison."""
    lines = ["| policy | ahead of | workload | load | TTFT, predicted | measured | E2E, predicted | measured |"]
    lines.append("|---" * 8 + "|")
    predicted = {run: predicted[run] for run in measured}
    cells = sorted({run[1:3] for run in measured})
    for policy in cases.OWN:
        for other in (*cases.FINAL, *(own for own in cases.OWN if own > policy)):
            for cell in cells:
                values = [
                    _share(lead(runs, policy, other, cell, name))
                    for name in ("ttft", "e2e")
                    for runs in (predicted, measured)
                ]
                lines.append(f"| {policy} | {other} | {' | '.join((*cell, *values))} |")
    return lines


def objective_lines(predicted: dict[Run, dict[str, float]], measured: dict[Run, dict[str, float]]) -> list[str]:
    """Return by how much a policy is ahead on a workload, over both loads: in TTFT, in E2E, and in the objective of the
    searches, which is the mean of both."""
    heads = [f"{name}, {side}" for name in ("TTFT", "E2E", "objective") for side in SIDES]
    lines = [f"| policy | ahead of | workload | {' | '.join(heads)} |", "|---" * 9 + "|"]
    for policy in cases.OWN:
        for other in (*cases.FINAL, *(own for own in cases.OWN if own > policy)):
            for workload in cases.RATES:
                values = [
                    _share(lead_on(runs, policy, other, workload, figures))
                    for figures in (("ttft",), ("e2e",), OBJECTIVE)
                    for runs in (predicted, measured)
                ]
                lines.append(f"| {policy} | {other} | {workload} | {' | '.join(values)} |")
    return lines


def read_plan(out: Path) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Any, ...]]]:
    plan = json.loads((out / "plan.json").read_text())
    latency = plan["latency"] | {"profile": str(out.resolve() / plan["latency"]["profile"])}
    return latency, plan["own"], [tuple(case) for case in plan["cases"]]


def _share(found: Interval | None) -> str:
    if found is None or found.high is None:
        return "unknown"
    return f"{found.mean:+.1%} ± {found.high - found.mean:.1%}"
