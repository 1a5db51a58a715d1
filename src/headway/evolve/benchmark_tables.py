"""The table of `headway bench`, apart from `search_tables`, which the search imports for its progress bar."""

from rich.console import RenderableType
from rich.text import Text

from headway.evolve.benchmark import Benchmark
from headway.evolve.fitness import share
from headway.evolve.search_tables import NAME_AT_MOST
from headway.report.number_format import GAP
from headway.report.terminal import label_column, table


def benchmark_report(benchmark: Benchmark) -> list[RenderableType]:
    """Return the rows of a benchmark, best first: score, gains by objective, and the worst workload."""
    names = list(benchmark.rows[0].objectives)
    grid = table("policy", "score", *names, "worst\nworkload", "", gap=1)
    label_column(grid, 0, NAME_AT_MOST)
    grid.columns[-1].justify = "left"
    for row in benchmark.rows:
        if row.error is not None:
            grid.add_row(Text(row.policy), "failed", *[GAP for _ in names], GAP, Text(row.error))
            continue
        half = "" if row.low is None or row.high is None else f" ± {100 * (row.high - row.low) / 2:.1f}"
        worst = min(row.workloads, key=lambda name: row.workloads[name])
        gains = [share(row.objectives[name]) for name in names]
        grid.add_row(Text(row.policy), share(row.score) + half, *gains, share(row.workloads[worst]), Text(worst))
    count = len(benchmark.rows[0].workloads)
    salt = "" if benchmark.salt is None else f", salt {benchmark.salt}"
    head = f"{benchmark.suite}{salt}: {count} workloads, {benchmark.replicates} replicates, gains over the baseline"
    parts: list[RenderableType] = [Text(head, style="bold"), "", grid]
    if benchmark.skipped:
        parts += ["", Text(f"Skipped, because the trace is not present: {', '.join(benchmark.skipped)}.")]
    return parts
