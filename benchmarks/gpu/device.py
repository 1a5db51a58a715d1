"""What runs on the GPU: the check of the tokens, measured steps, measured runs."""

from __future__ import annotations

import gzip
import json
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch

from benchmarks.gpu import cases
from benchmarks.gpu.cases import BLOCKS, MODEL, POSITIONS, REPLICAS, Case, LiveRun
from benchmarks.gpu.confirm import RECORDS, read_plan, records
from benchmarks.gpu.cuda import CudaBackend
from benchmarks.gpu.live import Zeros, measured_clock, run_live, simulated_clock
from benchmarks.gpu.live_prediction import COLUMNS as LIVE_COLUMNS
from benchmarks.gpu.live_prediction import LIVE, REHEARSALS, client_figures, overhead, predict_live
from benchmarks.gpu.model import SHAPES, Weights, generate
from benchmarks.gpu.scheduler import Limits, Replica, Row, new_job
from benchmarks.gpu.steps import Maker, composition_of, step_row, time_among_others, time_grid, write_steps
from benchmarks.gpu.virtual import COLUMNS, VirtualCluster

VOCABULARY = SHAPES[MODEL].vocabulary
FIRST_GUESS = {"model": "hardware", "profile": "h200", "host": "400us"}  # for estimates before the calibration
TRAFFIC = tuple(
    Case(policy, workload, load, cases.TRAIN[0])
    for workload, loads in cases.RATES.items()
    for load in loads
    for policy in ("round-robin", "lmetric")
)  # whose steps are part of the calibration; no compared run has this seed


def say(text: str, start: float | None = None) -> None:
    print(text if start is None else f"{text}: {perf_counter() - start:.1f} s", flush=True)


@cache
def engine() -> CudaBackend:
    start = perf_counter()
    weights = Weights(SHAPES[MODEL], "cuda", torch.bfloat16)
    backend = CudaBackend(weights, REPLICAS * BLOCKS, positions=POSITIONS)
    for pool in (*backend.keys, *backend.values):
        pool.normal_()
    torch.cuda.synchronize()
    say(f"{MODEL} with {len(backend.graphs)} graphs on {torch.cuda.get_device_name()}", start)
    return backend


def smoke(out: Path) -> None:
    """Check the tokens of a small model, and print the times of a few steps."""
    say(f"tokens of a small model: {check_tokens()}")
    backend = engine()
    maker = Maker(VOCABULARY, 0, BLOCKS)
    from benchmarks.gpu.steps import Composition

    for text, step in {
        "1 decode after 1000": Composition((1000,), ()),
        "16 decodes after 1000": Composition((1000,) * 16, ()),
        "32 decodes after 1000": Composition((1000,) * 32, ()),
        "chunk of 512": Composition((), ((512, 0),)),
        "chunk of 2048": Composition((), ((2048, 0),)),
        "chunk of 64 after 3000": Composition((), ((64, 3000),)),
        "16 decodes and a chunk of 512": Composition((1000,) * 16, ((512, 1000),)),
    }.items():
        rows = maker.rows(step)
        times = []
        for _ in range(20):
            backend.run(rows)
            times.append(backend.last)
        middle = sorted(times, key=lambda t: t.gpu_s)[10]
        say(f"{text}: GPU {middle.gpu_s * 1e3:.3f} ms, host {middle.host_s * 1e3:.3f}, all {middle.all_s * 1e3:.3f}")
    case = TRAFFIC[-1]
    served, steps = run_case(backend, case, FIRST_GUESS, {}, keep_steps=True)
    say(f"{case.name}: {served['steps']} steps, busy {served['busy_s']:.2f} s, took {served['wall_s']:.2f} s")
    say(f"  {summary(served)}")
    (out / "smoke.json").write_text(json.dumps({"served": served, "steps": steps[:200]}))


def check_tokens() -> str:
    """Serve requests in float32 on a tight cache, and compare their tokens with those of the plain version."""
    torch.backends.cuda.matmul.allow_tf32 = False
    weights = Weights(SHAPES["tiny"], "cuda", torch.float32)
    limits = Limits(blocks=24, max_batch_tokens=64, max_batch_size=4)
    backend = CudaBackend(weights, 24, max_batch_tokens=64, max_batch_size=4, positions=512)
    replica, draw = Replica(backend, limits), Random(1)
    starts = [[draw.randrange(1000) for _ in range(70)] for _ in range(2)]
    jobs = []
    for number in range(16):
        own = [draw.randrange(1000) for _ in range(draw.randrange(1, 90))]
        jobs.append(new_job(number, starts[number % 2][: draw.choice((40, 70))] + own, draw.randrange(1, 60), 16))
        replica.add(jobs[-1])
    now = 0
    while not replica.idle:
        replica.begin(now)
        replica.finish(now := now + 1)
    right = sum(
        job.tokens.tolist()[job.prompt :] == generate(weights, job.tokens.tolist()[: job.prompt], job.most)
        for job in jobs
    )
    if right < len(jobs):
        raise SystemExit(f"only {right} of {len(jobs)} requests have the tokens of the plain version")
    hits = sum(job.cached > 0 for job in jobs)
    return f"{right} of {len(jobs)} requests equal the plain version ({hits} hits, {replica.preemptions} preemptions)"


def summary(served: dict[str, Any]) -> str:
    at = {name: place for place, name in enumerate(COLUMNS)}
    rows = served["requests"]
    ttft = sum(row[at["first_token_ps"]] - row[at["arrival_ps"]] for row in rows) / len(rows) / 1e9
    e2e = sum(row[at["finished_ps"]] - row[at["arrival_ps"]] for row in rows) / len(rows) / 1e9
    hit = sum(row[at["cached_tokens"]] for row in rows) / sum(row[at["prompt_tokens"]] for row in rows)
    return f"TTFT {ttft:.2f} ms, E2E {e2e:.1f} ms, hits {hit:.3f}, preemptions {served['preemptions']}"


def run_case(
    backend: CudaBackend, case: Case, latency: dict[str, Any], own: dict[str, Any], keep_steps: bool = False
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    steps: list[dict[str, Any]] = []
    gpu_s = 0.0

    def note(replica: int, now_ps: int, rows: list[Row], wall_s: float) -> float:
        nonlocal gpu_s
        gpu_s += backend.last.gpu_s
        if keep_steps:
            steps.append(step_row(case.name, composition_of(rows), backend.last.gpu_s, wall_s))
        return wall_s

    cluster = VirtualCluster(cases.scenario(case, latency, own), backend, note, VOCABULARY)
    got = cluster.run()
    served = {
        "case": [case.policy, case.workload, case.load, case.seed],
        "requests": [each.columns() for each in got.requests],
        "steps": got.steps,
        "busy_s": got.busy_s,
        "gpu_s": gpu_s,  # of the steps alone; the rest of `busy_s` is the host's
        "wall_s": got.wall_s,
        "preemptions": got.preemptions,
    }
    return served, steps


def calibrate(out: Path, quick: bool = False) -> None:
    backend = engine()
    start = perf_counter()
    rows = time_grid(backend, Maker(VOCABULARY, 0, BLOCKS), 1 if quick else 5)
    say(f"{len(rows)} steps of chosen compositions", start)
    if not quick:
        start = perf_counter()
        among = time_among_others(backend, VOCABULARY, BLOCKS, REPLICAS)
        (out / "among.json").write_text(json.dumps(among, indent=1))
        say(f"a step among others, relative to alone: {among}", start)
    run_case(backend, TRAFFIC[0], FIRST_GUESS, {})  # a warm-up, so that no first use of anything is among the steps
    every: list[dict[str, Any]] = []
    for case in TRAFFIC[-2:] if quick else TRAFFIC:
        served, steps = run_case(backend, case, FIRST_GUESS, {}, keep_steps=True)
        say(f"{case.name}: {served['steps']} steps, busy {served['busy_s']:.2f} s, wall {served['wall_s']:.2f} s")
        say(f"  {summary(served)}")
        every += steps
    draw = Random(3)
    write_steps(out / "steps.csv", rows + draw.sample(every, min(len(every), 1500)))
    with gzip.open(out / "traffic.json.gz", "wt") as file:
        json.dump(every, file)


def live(out: Path, quick: bool = False) -> None:
    """Measure the time of HTTP without the GPU, predict the runs over HTTP, and run them: one engine in real time, and
    replicas in dilated time, behind the real gateway."""
    latency, own = read_plan(out)[:2]
    rehearse(out, latency, own, quick)
    predict_live(out, latency, own)
    backend = engine()
    with gzip.open(out / LIVE, "wt") as file:
        for run in cases.live_runs(latency, own, cases.LIVE_SEED, deploy=True, quick=quick):
            start = perf_counter()
            plan = {"routing": own[cases.DEPLOYED], "after": cases.DEPLOY_AFTER} if run.deploy else None
            result, replicas, deployed = serve(run, backend, measured_clock, plan)
            rows = list(zip(*(result.requests.column(column) for column in LIVE_COLUMNS), strict=True))
            summary = result.summary()
            record = {"run": run.name, "columns": LIVE_COLUMNS, "requests": rows, "replicas": replicas}
            ends = {name: count for name, count in summary["requests"].items() if count}
            file.write(json.dumps(record | {"deployed": deployed, "ends": ends}) + "\n")
            say(f"{run.name}: {ends}, {client_figures(result.requests)}, {replicas}, {deployed}", start)


def rehearse(out: Path, latency: dict[str, Any], own: dict[str, Any], quick: bool) -> None:
    found = {}
    for run in cases.live_runs(latency, own, cases.REHEARSAL_SEED, quick=quick):
        if run.dilation > 1 and run.name != cases.DILATED_REHEARSAL:
            continue
        start = perf_counter()
        result, replicas, _ = serve(run, Zeros(), simulated_clock(run.scenario, spin=True))
        found[run.name] = overhead(client_figures(result.requests), replicas)
        say(f"rehearsal of {run.name}: {found[run.name]}", start)
    (out / REHEARSALS).write_text(json.dumps(found, indent=1))


def serve(run: LiveRun, backend: Any, clock: Any, deploy: Any = None) -> tuple[Any, list[dict[str, float]], Any]:
    with TemporaryDirectory() as folder:
        return run_live(run.scenario, backend, clock, run.dilation, VOCABULARY, Path(folder, "run"), deploy)


def measure(out: Path, minutes: float) -> None:
    """Measure the runs that no file of the folder has, in shuffled order, seed by seed."""
    latency, own, runs = read_plan(out)
    done = {tuple(record["case"]) for record in records(out)}
    left = [case for case in runs if case not in done]
    start, backend = perf_counter(), engine()
    run_case(backend, Case("round-robin", "rag", "high", 1), latency, own)  # a warm-up
    count = 0
    place = out / RECORDS.replace("*", str(len(list(out.glob(RECORDS))) + 1))
    with gzip.open(place, "wt", compresslevel=6) as file:
        for case in left:
            if perf_counter() - start > minutes * 60:
                break
            served, _ = run_case(backend, Case(*case), latency, own)
            file.write(json.dumps(served) + "\n")
            count += 1
            say(f"{Case(*case).name}: {summary(served)}; {served['wall_s']:.1f} s for {served['busy_s']:.1f} s")
    say(f"measured {count} runs, {len(left) - count} are left", start)
