"""Evaluations per CPU-minute of a search on the embedded suite: as it was, and with racing, requests that candidates
share, and the compiled engine.

    make compiled && python benchmarks/search.py --evaluations 100 --seeds 0..2

Each search breeds rules with one worker. The CPU time is that of all processes of the search on the train part. For
each seed, the script also chooses the winner on the validation part, and prints its fitness there, so that a faster
search with worse winners would show. `--no-compiled` leaves out the compiled engine where it was not built.
"""

from __future__ import annotations

import argparse
import os
import resource
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from headway.evolve import Suite, compiled_engine, shared_cases, worker
from headway.evolve.compiled_engine import compiled_path
from headway.evolve.evolution import Plan
from headway.evolve.objectives import PRIMARY
from headway.evolve.search import Search
from headway.evolve.selection import select
from headway.experiment.runner import runner_of


class Figures(NamedTuple):
    cpu_s: float
    runs: int
    train: float
    validation: float
    winner: str


def measured(suite: str, seed: int, evaluations: int, race: bool, share: bool, compiled: bool) -> Figures:
    """Run one search in this process, and return its figures."""
    os.environ[shared_cases.SWITCH] = "1" if share else "0"
    os.environ[compiled_engine.SWITCH] = "1" if compiled else "0"
    loaded, plan = Suite.load(suite), Plan("gp", seed=seed, race=race)
    with runner_of(1) as runner:
        search = Search(plan.searcher(loaded.for_search()), loaded, plan.size, runner=runner, race=plan.races)
        judged = search.run(evaluations)
        worker.close()  # so that the CPU time of the workers counts
        cpu_s = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        runs = search.cache.misses
        winner = select(judged, loaded.for_search(), cache=search.cache, runner=runner)
    chosen = winner.winner
    train, validation = chosen.evaluation.fitness, winner.validated[chosen.bundle.id].fitness
    return Figures(cpu_s, runs, train[PRIMARY], validation[PRIMARY], chosen.bundle.id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="routing-2026-11")
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--seeds", default="0..0", help="FIRST..LAST")
    parser.add_argument("--no-compiled", action="store_true")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("..")
    if not options.no_compiled and not compiled_path():
        parser.error("the compiled engine is missing or stale. Run `make compiled`, or pass --no-compiled.")
    variants = {
        "as it was": (False, False, False),
        "racing, shared": (True, True, False),
        "racing, shared, compiled": (True, True, True),
    }
    if options.no_compiled:
        del variants["racing, shared, compiled"]
    print(f"{'search':24} {'seed':>4} {'runs':>5} {'CPU s':>7} {'evaluations/CPU-min':>19}  train  validation  winner")
    for seed in range(int(first), int(last or first) + 1):
        for name, settings in variants.items():
            with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # a process each, so that CPU times are apart
                work = pool.submit(measured, options.suite, seed, options.evaluations, *settings)
                found = work.result()
            speed = 60 * options.evaluations / found.cpu_s
            row = f"{name:24} {seed:4} {found.runs:5} {found.cpu_s:7.1f} {speed:19.1f}"
            print(f"{row}  {found.train:+.3f}     {found.validation:+.3f}  {found.winner}", flush=True)


if __name__ == "__main__":
    main()
