"""Priority inversion: a request waits at its instance while a less important one starts there.

The SLO class of a request determines its importance, in the order of `CLASSES`; a user-defined class ranks as standard.
Within a class, the request with the higher score is more important. The score is the one that the scheduler received.
The order of arrival does not matter: first come, first served inverts priorities too. There is one finding per class of
overtaken requests. Severity: the fraction of overtaken requests among all requests of that class that waited at an
instance.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from headway.results.findings.observed import CAUSE, Observed, busiest, duration, examples, many, seconds, worst
from headway.results.findings.policy_remedies import use
from headway.results.findings.run_settings import name_of, policy
from headway.results.records import PRIORITY, SCHEDULER, Blame, Finding, Suggestion

KIND: Final = "priority_inversion"
ROLE: Final = CAUSE
AREA: Final = "scheduling"
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


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    figure = "pathology.priority_inversions"
    reason = ", which starts the most important class first"
    if name_of(run, PRIORITY) != "none":
        yield from use(run, SCHEDULER, "priority", reason, figure)
    else:
        for each in use(run, SCHEDULER, "priority", f"{reason}, with the priority policy by-class", figure):
            yield replace(each, change={**each.change, "policies.priority": "by-class"})
    if name_of(run, SCHEDULER) == "priority":
        yield from use(run, PRIORITY, "by-class", reason, figure)
    aging = policy(run, SCHEDULER).get("aging")
    if name_of(run, SCHEDULER) == "priority" and isinstance(aging, int | float) and aging > 0:
        text = f"Scheduler: lower aging from {aging:g} to {aging / 10:g}, so that waiting counts less than the class."
        yield Suggestion(SCHEDULER, {"policies.scheduler.aging": aging / 10}, figure, text)


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
            f"{len(pairs):,} of {many(there, f'{name} request')} waited while their instance started a less important "
            f"one, mostly {least}; they then waited up to {duration(longest)} longer."
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
        explains=run.queue_loss(after),
        resource="choice",
        blames=[Blame("class", run.classes[busiest(passers)[0]], passers[first] / len(pairs))],
    )
