"""Priority inversion: a request waited at its instance while a less important one was started there.

Importance is the SLO class in the order of `CLASSES` (a class of one's own ranks with standard), and between equal
classes the score that the scheduler was told. Which of the two came first does not matter: first come, first served
inverts priorities, too. One finding a class of those passed. Severity: the share of that class at any instance that was
passed.
"""

from collections import Counter
from typing import Final

from headway.results.findings.observed import Observed, busiest, duration, examples, many, seconds, worst
from headway.results.records import Finding

KIND: Final = "priority_inversion"
AREA: Final = "scheduling"
ADVICE: Final = "Scheduling: let the scheduler go by the priority it is told, as priority and slo-slack do."
ORDER: Final = 1


def find(run: Observed) -> list[Finding]:
    by_class: dict[int, list[tuple[int, int]]] = {}
    for row, other in run.waits.inversions().items():
        if row >= run.warmup:
            by_class.setdefault(run.requests.slo_class[row], []).append((row, other))
    if not by_class:
        return []
    there = Counter(run.requests.slo_class[row] for row in run.waiting)
    return worst(_finding(run, code, pairs, there[code]) for code, pairs in by_class.items())


def _finding(run: Observed, code: int, pairs: list[tuple[int, int]], there: int) -> Finding:
    requests, left = run.requests, run.waits.left_ps
    started, classes = requests.started_ps, requests.slo_class
    after = {row: left[row] - started[other] for row, other in pairs}
    passers = Counter(classes[other] for _, other in pairs)
    first = busiest(passers)[0]
    longest = max(after.values())
    name = run.classes[code]
    least = "one with a lower score" if first == code else f"one of class {run.classes[first]}"
    where = Counter(run.home(row) for row, _ in pairs)
    return Finding(
        kind=KIND,
        at_ps=min(started[other] for _, other in pairs),
        until_ps=max(left[row] for row, _ in pairs),
        severity=min(1.0, len(pairs) / there),
        count=len(pairs),
        title=(
            f"{len(pairs):,} of {many(there, f'{name} request')} waited while a less important one was started at the "
            f"same instance, mostly {least}; they went on waiting for up to {duration(longest)}."
        ),
        requests=examples((time, row) for row, time in after.items()),
        instances=busiest(where),
        evidence={
            "slo_class": name,
            "requests": there,
            "passed": len(pairs),
            "passed_by_a_lower_class": len(pairs) - passers[code],
            "passed_by_a_lower_score": passers[code],
            "mean_wait_after_s": seconds(sum(after.values())) / len(pairs),
            "longest_wait_after_s": seconds(longest),
        },
    )
