"""Describe an evaluation in words, for people and for a language model that improves the policy.

The text is below 6 KB. Frameworks redact long sequences of letters and digits, and text that looks like a password or
an access token. Therefore the feedback contains neither.
"""

import re
from collections.abc import Sequence
from typing import Final

from headway.evolve.evaluation import CaseResult, Evaluation
from headway.evolve.fitness import mean, share
from headway.evolve.objectives import COMPLEXITY, PRIMARY
from headway.evolve.suite import Suite

MOST_BYTES: Final = 6000
MOST_ROWS: Final = 12  # maximum number of workloads in the table, which begins with the worst
LONG_RUN: Final = re.compile(r"[A-Za-z0-9]{32,}")
SECRET: Final = re.compile(r"(token|password)(\s*)[=:]", re.IGNORECASE)
COLUMNS: Final = {
    "TTFT mean": ("latency.ttft.mean", "{:,.0f} ms"),
    "TTFT p99": ("latency.ttft.p99", "{:,.0f} ms"),
    "E2E mean": ("latency.e2e.mean", "{:,.0f} ms"),
    "cache hits": ("cache.token_hit_ratio", "{:.0%}"),
    "load imbalance": ("balance.cv", "{:.2f}"),
    "completed": ("requests.completed", "{:,.0f}"),
}


def feedback(suite: Suite, name: str, evaluation: Evaluation, worst: tuple[int, str] | None) -> str:
    """Return a description of a candidate's gains by workload, and of its worst case. `worst` has the index and the
    summary of that case."""
    lines = [f"## {name} on {suite.name}, {evaluation.part}", ""]
    if evaluation.error is not None:
        lines += [
            f"Failed: {evaluation.error}",
            "",
            "A failed case, and every case after it, counts as 1000 % worse than the baseline.",
        ]
    if evaluation.stopped is not None:
        lines += [f"The evaluation was {evaluation.stopped}", ""]
    if evaluation.ok:
        lines += [_scores(suite, evaluation.fitness), "", *_table(suite, evaluation)]
    if worst is not None:
        place, words = worst
        case = evaluation.cases[place]
        lines += ["", f"# The worst case: {case.case}, seed {case.seed} ({share(case.gains[PRIMARY])})", "", words]
    return cut_lines(harmless("\n".join(lines)))


def _scores(suite: Suite, fitness: dict[str, float]) -> str:
    values = ", ".join(f"{objective.name} {share(fitness[objective.name])}" for objective in suite.objectives)
    text = f"Gain over the baseline (above 0 is better): primary {share(fitness[PRIMARY])}; {values}."
    return f"{text} Complexity {fitness[COMPLEXITY]:.0f}."


def _table(suite: Suite, evaluation: Evaluation) -> list[str]:
    workloads = sorted(evaluation.workloads().items(), key=lambda pair: _gain(pair[1], PRIMARY))
    names = [PRIMARY, *(objective.name for objective in suite.objectives)] if len(suite.objectives) > 1 else [PRIMARY]
    lines = [
        f"| workload, worst first | {' | '.join((*names, *COLUMNS))} |",
        "|---" * (1 + len(names) + len(COLUMNS)) + "|",
    ]
    for name, cases in workloads[:MOST_ROWS]:
        cells = [share(_gain(cases, objective)) for objective in names]
        cells += [cell(cases, path, form) for path, form in COLUMNS.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    if len(workloads) > MOST_ROWS:
        lines.append(f"{len(workloads) - MOST_ROWS} better workloads are not shown.")
    return lines


def _gain(cases: Sequence[CaseResult], objective: str) -> float:
    return mean([case.gains[objective] for case in cases])


def cell(cases: Sequence[CaseResult], path: str, form: str) -> str:
    values = [value for case in cases if (value := case.figures.get(path)) is not None]
    return form.format(mean(values)) if values else "none"


def harmless(text: str) -> str:
    """Return the text. Change the parts that a framework's filter would treat as secrets."""
    text = LONG_RUN.sub(lambda run: f"{run[0][:24]}...", text)
    return SECRET.sub(r"\1\2 is", text)


def cut_lines(text: str) -> str:
    """Return the first lines of a text, as many whole lines as fit into `MOST_BYTES`."""
    lines, used = [], 0
    for line in text.splitlines():
        used += len(line.encode()) + 1
        if used > MOST_BYTES - 4:
            lines.append("...")
            break
        lines.append(line)
    return "\n".join(lines).rstrip() + "\n"
