"""`headway bench`: rates policies on the benchmark of routing policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.options import RayCluster, Workers
from headway.cli.page import AsJson, Page
from headway.types import Json


def bench(
    *policies: Annotated[
        str,
        Parameter(help="Routing policies: names, mappings, sources (.py) or bundles (.yaml); all: the built-ins."),
    ],
    traces: Annotated[
        Path | None, Parameter(help="Folder with the public traces. Workloads whose trace is missing are skipped.")
    ] = None,
    salt: Annotated[
        str | None, Parameter(help="Text that replaces the known seeds and shifts the windows of traces.")
    ] = None,
    quick: Annotated[bool, Parameter(help="Two replicates of each workload instead of five.")] = False,
    leaderboard: Annotated[
        Path | None, Parameter(help="Add the rows to this JSON file, and print all rows of the file.")
    ] = None,
    workers: Workers = None,
    ray: RayCluster = None,
    as_json: AsJson = False,
) -> Page | Json:
    """Rate routing policies on the benchmark suite.

    The score is the mean gain in TTFT and E2E over the suite's baseline, with a 95 % interval over seeds and windows.
    """
    from headway.evolve.benchmark import add_to_leaderboard
    from headway.evolve.benchmark import bench as rate
    from headway.evolve.benchmark_tables import benchmark_report

    found = rate(policies, traces=traces, salt=salt, quick=quick, workers=workers, ray=ray)
    if leaderboard is not None:
        found = add_to_leaderboard(found, leaderboard)
    return found.document() if as_json else Page(benchmark_report(found))
