"""The benchmark: a row for each policy, over the held-out part of a suite and over real traces if they are present."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.config import documents
from headway.errors import HeadwayError, argument
from headway.evolve.evaluate import Candidate, evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.evolution import template_of
from headway.evolve.final import rivals
from headway.evolve.fitness import over_baseline
from headway.evolve.suite import HELD_OUT, Suite
from headway.experiment.contenders import ALL
from headway.experiment.runner import runner_of
from headway.policies.bundle import Bundle
from headway.streams import derive
from headway.types import Json

SUITE: Final = "routing-2026-12"
STAGE: Final = "routing"
QUICK: Final = 2  # replicates of each workload with `quick`


class Row(Struct, frozen=True):
    """The result of a policy: its mean gain over the suite's baseline, with a 95 % interval over the replicates."""

    policy: str
    score: float
    low: float | None
    high: float | None
    objectives: dict[str, float]
    workloads: dict[str, float]
    error: str | None = None


class Benchmark(Struct, frozen=True):
    """The rows of one command. Rows of different suites, salts, replicates or traces cannot be compared."""

    suite: str
    salt: str | None
    replicates: int
    skipped: list[str]  # workloads whose trace is not present
    rows: list[Row]

    def document(self) -> Json:
        return dict(msgspec.to_builtins(self))


def benchmark_suite(
    traces: str | Path | None = None, salt: str | None = None, quick: bool = False
) -> tuple[Suite, list[str]]:
    """Return the suite of the benchmark and the workloads that it skips, because their traces are not in the folder
    `traces`. A salt replaces the seeds and shifts the windows of the held-out part."""
    data = documents.parse_yaml(documents.presets("suites")[SUITE], SUITE)
    real = documents.parse_yaml(documents.presets("benchmarks")[SUITE], SUITE)
    folder = None if traces is None else Path(traces).expanduser().resolve()
    if folder is not None and not folder.is_dir():
        raise HeadwayError(f"{argument('traces')}: {folder} is not a folder. Name the folder of the traces.")
    skipped = []
    for entry in real[HELD_OUT]:
        name = entry["workload"]
        trace = real["workloads"][name]["trace"]
        file = None if folder is None else folder / trace["path"]
        if file is None or not file.is_file():
            skipped.append(name)
            continue
        data["workloads"][name] = {**real["workloads"][name], "trace": {**trace, "path": str(file)}}
        data[HELD_OUT].append(entry)
    data[HELD_OUT] = [{**entry, "seeds": _seeds(entry["seeds"], salt, quick)} for entry in data[HELD_OUT]]
    return Suite.load({"name": SUITE, **data}), skipped


def _seeds(seeds: Any, salt: str | None, quick: bool) -> Any:
    """Return the replicates of an entry: seeds or windows. With a salt, they depend on it."""
    if isinstance(seeds, Mapping):
        room = seeds["every"] - seeds["requests"] + 1
        shift = 0 if salt is None else derive(0, f"benchmark.windows.{salt}") % room
        windows = QUICK if quick else seeds["windows"]
        return {**seeds, "windows": windows, "first": seeds["first"] + shift}
    first, last = (int(end) for end in str(seeds).split(".."))
    numbers = list(range(first, last + 1))[: QUICK if quick else None]
    return numbers if salt is None else [derive(number, f"benchmark.{salt}") % 2**62 for number in numbers]


def bench(
    policies: Sequence[str | tuple[str, Candidate]],
    *,
    traces: str | Path | None = None,
    salt: str | None = None,
    quick: bool = False,
    workers: int | None = None,
    ray: str | None = None,
    progress: Callable[[], None] | bool = True,
) -> Benchmark:
    """Rate policies on the benchmark. A policy is text, as on the command line, or a name and a bundle. The rows are
    sorted by score, the best first."""
    suite, skipped = benchmark_suite(traces, salt, quick)
    named = [pair for one in policies for pair in (candidates([one]) if isinstance(one, str) else [one])]
    bundles = [_beside(suite, name, candidate) for name, candidate in named]
    with runner_of(workers, ray) as runner:
        evaluations = evaluate_many(bundles, suite, HELD_OUT, runner=runner, progress=progress)
    rows = [_row(suite, bundle.name, one) for bundle, one in zip(bundles, evaluations, strict=True)]
    rows.sort(key=lambda row: row.score, reverse=True)
    workloads = evaluations[0].workloads().values()
    return Benchmark(suite.name, salt, min(len(cases) for cases in workloads), skipped, rows)


def _beside(suite: Suite, name: str, candidate: Candidate) -> Bundle:
    """Return the bundle of a candidate. Stages that it does not set have the policies of the suite's baseline."""
    bundle = candidate if isinstance(candidate, Bundle) else Bundle.read(candidate)
    return Bundle(name, {**suite.baseline, **bundle.policies})


def _row(suite: Suite, name: str, evaluation: Evaluation) -> Row:
    gain = over_baseline(evaluation)
    objectives = {objective.name: evaluation.fitness[objective.name] for objective in suite.objectives}
    return Row(name, gain.mean, gain.low, gain.high, objectives, gain.workloads, evaluation.error)


def candidates(policies: Sequence[str]) -> list[tuple[str, Bundle]]:
    """Return the name and the bundle of each policy. `all` stands for the built-in policies without oracles."""
    suite = Suite.load(SUITE)
    named: dict[str, Bundle] = {}
    for policy in policies:
        if policy == ALL:
            named |= {name: bundle for kind, name, bundle in rivals(suite, STAGE) if kind != "oracle"}
        else:
            bundle = template_of(policy, suite, STAGE)
            bundle.check(argument("policies"))
            named[bundle.name] = bundle
    if not named:
        raise HeadwayError(f"{argument('policies')}: name at least one policy, or {ALL}.")
    return list(named.items())


def add_to_leaderboard(benchmark: Benchmark, file: Path) -> Benchmark:
    """Add the rows to those of a leaderboard's file, write the file, and return all rows. A row replaces an earlier row
    of the same policy. If the file has rows of other cases, raise an error, because rows could not be compared."""
    if file.is_file():
        try:
            old = msgspec.json.decode(file.read_bytes(), type=Benchmark)
        except msgspec.MsgspecError as error:
            raise HeadwayError(f"{file}: is not a leaderboard: {error}.") from None
        if msgspec.structs.replace(old, rows=[]) != msgspec.structs.replace(benchmark, rows=[]):
            raise HeadwayError(f"{file}: has rows of another suite, salt or set of traces. Use another file.")
        rows = {row.policy: row for row in (*old.rows, *benchmark.rows)}.values()
        benchmark = msgspec.structs.replace(benchmark, rows=sorted(rows, key=lambda row: row.score, reverse=True))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(benchmark), indent=1) + b"\n")
    return benchmark
