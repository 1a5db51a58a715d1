"""`headway check`: runs two sides in pairs until the conditions are decided, and returns the verdict."""

import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from headway.config.arguments import checked
from headway.config.units import positive_seconds
from headway.config.wording import cut, shown
from headway.display.progress import Bar, watch
from headway.errors import HeadwayError, argument
from headway.evolve.suite import Suite
from headway.experiment.paired import MOST as MOST_SEEDS
from headway.experiment.runner import Progress, Runner, runner_of
from headway.policies.bundle import Bundle
from headway.regression.changes import largest, turned
from headway.regression.conditions import Condition, read_conditions
from headway.regression.measure import OPEN, Evidence, Measured, measure
from headway.regression.pairs import Run, Trials, kinds
from headway.regression.recorded_check import compare_recordings
from headway.regression.recordings import read_recording
from headway.regression.revision import file_at
from headway.regression.sequential import LEAST, Outcome, Spending, looks
from headway.regression.sides import BASE, CANDIDATE, Side, meet, read_side, same
from headway.regression.verdict import Check
from headway.results.result import Result
from headway.scenario.scenario import Source

SEEDS: Final = 64
BUDGET: Final = "60s"
ERROR: Final = 0.05


class Plan(Struct, frozen=True):
    """How long a check may run, and which errors it may make."""

    conditions: tuple[Condition, ...]
    seeds: int
    budget_s: float | None
    error: float

    def spendings(self, most: int) -> list[Spending]:
        """Return the error of each condition: each has its part of the whole error."""
        return [Spending(self.error / len(self.conditions), most) for _ in self.conditions]


@checked
def check(
    base: Source | Bundle | Result,
    candidate: Source | Bundle | Result | None = None,
    fail_if: str | Sequence[str] = (),
    *,
    on: Source | Suite | None = None,
    overrides: str | Iterable[str] = (),
    base_set: str | Iterable[str] = (),
    candidate_set: str | Iterable[str] = (),
    git: str | None = None,
    seeds: int | None = None,
    budget: str | None = None,
    error: float = ERROR,
    workers: int | None = None,
    ray: str | None = None,
    progress: Progress | bool = True,
) -> Check:
    """Check whether a candidate is worse than its base, and return the verdict: pass, fail or cannot tell.

    Both sides are scenarios, policies (a name, `path/to/file.py:Class`, a bundle or its file), run folders, results,
    or folders of recorded traffic. Without a `candidate`, it is the base with the changes in `candidate_set`, or, with
    `git`, the file in its present state, and the base is the same file in that revision. Policies run in the scenario
    of the other side or in `on`, a scenario or a suite; by default in the embedded suite.

    `fail_if` has the conditions, such as "ttft.p99>+5%": a figure of the summary, < or >, and a limit. A limit with a
    sign is a change from the base, a limit without a sign is a level of the candidate.

    Both sides run with the same seeds, first with 8, then with 16, 32 and so on, at most `seeds` (default 64), until
    each condition is decided. `budget` limits the time, such as "60s", which is the default unless you set `seeds`. If
    the requests are a trace, windows of the trace take the place of seeds. The probability that a verdict is wrong is
    at most `error`, whenever the check stops.

    `overrides`, `base_set` and `candidate_set` are `key.path=value` changes of both sides or of one. Runs use `workers`
    processes, by default one per core, or the Ray cluster at the address `ray`.
    """
    plan = _plan(fail_if, seeds, budget, error)
    both, *own = (_several(each) for each in (overrides, base_set, candidate_set))
    with ExitStack() as stack:
        sides = _sides(base, candidate, git, any(own), stack)
        if any(side.recording is not None for side in sides):
            set_too = [("set", both), ("base_set", own[0]), ("candidate_set", own[1]), ("on", on), ("seeds", seeds)]
            return _check_recordings(*sides, plan, [name for name, given in set_too if given])
        workloads = meet(*sides, on, [*both, *own[0]], [*both, *own[1]])
        labels = _label(sides[0], own[0]), _label(sides[1], own[1])
        if same(workloads) and all(each.kind != "level" for each in plan.conditions):
            return _nothing(labels, plan, [each.name for each in workloads])
        with watch(progress, lambda: Bar(None, "runs")) as report, runner_of(workers, ray) as runner:
            trials = Trials(workloads, plan.seeds)
            measured, out_of_time = _decide(trials, plan, runner, report)
    return _verdict(labels, plan, trials, measured, out_of_time)


def _several(changes: str | Iterable[str]) -> list[str]:
    return [changes] if isinstance(changes, str) else list(changes)


def _label(side: Side, changes: Sequence[str]) -> str:
    return f"{side.label} with {cut(', '.join(changes))}" if changes else side.label


def _plan(fail_if: str | Sequence[str], seeds: int | None, budget: str | None, error: float) -> Plan:
    conditions = read_conditions(fail_if)
    if seeds is not None and not LEAST <= seeds <= MOST_SEEDS:
        raise HeadwayError(f"{argument('seeds')}: must lie between {LEAST} and {MOST_SEEDS:,}, got {shown(seeds)}.")
    if not 0 < error < 0.5:
        raise HeadwayError(f"{argument('error')}: must lie between 0 and 0.5, got {shown(error)}.")
    if budget is None and seeds is None:
        budget = BUDGET
    limit = None if budget is None else positive_seconds(budget, argument("budget"))
    return Plan(conditions, seeds or SEEDS, limit, error)


def _sides(base: Any, candidate: Any, git: str | None, changed: bool, stack: ExitStack) -> tuple[Side, Side]:
    if git is not None:
        if candidate is not None:
            raise HeadwayError(f"{argument('git')}: name one file; its base is the file in {shown(git)}.")
        if not isinstance(base, str | Path):
            raise HeadwayError(f"{argument('git')}: needs the path of a file, got {shown(base)}.")
        old = stack.enter_context(file_at(Path(base).expanduser(), git))
        return read_side(BASE, str(old), f"{base} at {git}"), read_side(CANDIDATE, base)
    if candidate is None and not changed:
        options = f"{argument('candidate_set')} or {argument('git')}"
        raise HeadwayError(f"candidate: is missing. Name a second file, or change the first with {options}.")
    return read_side(BASE, base), read_side(CANDIDATE, base if candidate is None else candidate)


def _decide(
    trials: Trials, plan: Plan, runner: Runner, progress: Progress | None
) -> tuple[list[Measured | None], bool]:
    """Run pairs and look at the conditions until each is decided, one has failed, or there may be no more pairs. Return
    the conditions, and whether the time ended the check."""
    spendings = plan.spendings(trials.most)
    measured: list[Measured | None] = [None] * len(plan.conditions)
    begun = time.monotonic()
    first = next(looks(trials.most))
    count, last, late = first, first == trials.most, False
    if plan.budget_s is not None:
        trials.run_to(LEAST, runner, progress)
        affordable = _affordable(LEAST, plan.budget_s, time.monotonic() - begun)
        if affordable < first:
            count, last, late = max(LEAST, affordable), True, True
    while True:
        trials.run_to(count, runner, progress)
        evidence = _evidence(trials)
        for place, (condition, spending) in enumerate(zip(plan.conditions, spendings, strict=True)):
            before = measured[place]
            if before is None or before.outcome == OPEN:
                measured[place] = measure(condition, evidence, spending.take(count, last), trials.exhausted)
        outcomes = [each.outcome for each in measured if each is not None]
        if last or "fail" in outcomes or OPEN not in outcomes:
            return measured, late
        count, last, late = _next(count, trials.most, plan.budget_s, time.monotonic() - begun)
        if count == trials.count:
            return measured, True


def _next(count: int, most: int, budget_s: float | None, elapsed_s: float) -> tuple[int, bool, bool]:
    """Return after how many pairs to look next, whether that is the last look, and whether the time makes it so. The
    answer depends on the time and never on the figures."""
    following = min(2 * count, most)
    if budget_s is None:
        return following, following == most, False
    affordable = _affordable(count, budget_s, elapsed_s)
    if affordable < count + max(LEAST, count // 4):
        return count, True, True
    count = min(following, affordable)
    if count == most:
        return count, True, False
    late = affordable < count + max(LEAST, count // 4)
    return count, late, late


def _affordable(count: int, budget_s: float, elapsed_s: float) -> int:
    """Return how many pairs fit into the time, if `count` pairs took `elapsed_s`."""
    return int(count * budget_s / max(elapsed_s, 1e-9))


def _evidence(trials: Trials) -> Evidence:
    return {
        name: [(base.summary, candidate.summary) for base, candidate in pairs] for name, pairs in trials.pairs.items()
    }


def overall(measured: Iterable[Measured]) -> Outcome:
    outcomes = [each.outcome for each in measured]
    return "fail" if "fail" in outcomes else OPEN if OPEN in outcomes else "pass"


def _verdict(
    labels: tuple[str, str], plan: Plan, trials: Trials, measured: Sequence[Measured | None], out_of_time: bool
) -> Check:
    known = tuple(each for each in measured if each is not None)
    appeared, gone = turned(trials.pairs)
    notes = _notes(plan.conditions)
    if out_of_time:
        unit = "windows" if trials.windowed else "seeds"
        notes.append(
            f"The time of {plan.budget_s:g} s ended the check after {trials.count} of {trials.most} {unit}, so another "
            "machine may reach another verdict."
        )
    return Check(
        *labels,
        overall(known),
        known,
        plan.error,
        "windows" if trials.windowed else "seeds",
        trials.count,
        trials.most,
        tuple(each.name for each in trials.workloads),
        tuple(largest(_evidence(trials))),
        tuple(appeared),
        tuple(gone),
        tuple(notes),
    )


def _notes(conditions: Iterable[Condition]) -> list[str]:
    return [
        f"{each.text} fails the check if the figure gets better."
        for each in conditions
        if each.towards_better and each.kind != "level"
    ]


def _nothing(labels: tuple[str, str], plan: Plan, workloads: Sequence[str]) -> Check:
    measured = tuple(Measured(each, "pass" if _allows_none(each) else "fail") for each in plan.conditions)
    note = "Both sides are the same scenario, so nothing ran."
    names = tuple(workloads)
    return Check(*labels, overall(measured), measured, plan.error, "seeds", 0, plan.seeds, names, notes=(note,))


def _allows_none(condition: Condition) -> bool:
    """Return whether a condition allows that nothing changes."""
    return condition.limit >= 0 if condition.sign == ">" else condition.limit <= 0


def _check_recordings(base: Side, candidate: Side, plan: Plan, options: Sequence[str]) -> Check:
    """Check two recordings. All their windows are there at once, so there is one look."""
    for side, other in ((base, candidate), (candidate, base)):
        if side.recording is None:
            wrong = f"{cut(side.label)} would be simulated, and {cut(other.label)} is a finished run"
            raise HeadwayError(f"{wrong}. Name the scenario.yaml in its folder to simulate it too.")
    if options:
        raise HeadwayError(f"{argument(options[0])}: is not valid with finished runs, which cannot change any more.")
    assert base.recording is not None and candidate.recording is not None
    sides = [read_recording(side.recording, side.label, kinds) for side in (base, candidate) if side.recording]
    compared = compare_recordings(sides[0], sides[1], plan.conditions, plan.error / len(plan.conditions))
    pair = tuple(Run({}, side.findings) for side in sides)
    appeared, gone = turned({"": [(pair[0], pair[1])]})
    return Check(
        base.label,
        candidate.label,
        overall(compared.measured),
        compared.measured,
        plan.error,
        "windows",
        compared.windows,
        compared.windows,
        changes=tuple(largest(compared.evidence)),
        appeared=tuple(appeared),
        gone=tuple(gone),
        notes=(*_notes(plan.conditions), *compared.notes),
    )
