"""What pairs of runs say about a condition: its numbers, its interval and its outcome."""

from collections.abc import Mapping, Sequence
from math import fsum, log
from typing import Final

from msgspec import Struct

from headway.config.wording import shown
from headway.errors import HeadwayError, argument
from headway.regression.conditions import NO_SAMPLE, Condition, value_of
from headway.regression.sequential import Estimate, Outcome, judge, paired, unpaired
from headway.types import Json

Summaries = tuple[Json, Json]  # base, candidate
Evidence = Mapping[str, Sequence[Summaries]]  # workload -> its pairs of summaries, in order
OPEN: Final[Outcome] = "cannot tell"


class Measured(Struct, frozen=True):
    """A condition with what the runs say about it."""

    condition: Condition
    outcome: Outcome
    base: float | None = None  # means of the figure
    candidate: float | None = None
    estimate: Estimate | None = None
    reason: str | None = None  # why there is no estimate
    workloads: dict[str, float] = {}  # workload -> mean of its numbers; only if there are several

    @property
    def change(self) -> float | None:
        return None if self.estimate is None else self.condition.shown(self.estimate.mean)


def measure(condition: Condition, evidence: Evidence, error: float, whole: bool) -> Measured:
    """Return what paired runs say about a condition. If no run has its figure, raise an error. `error` is the error
    that this look may spend."""
    measured = measure_known(condition, evidence, error, whole)
    if measured is None:
        raise missing(condition)
    return measured


def measure_known(condition: Condition, evidence: Evidence, error: float, whole: bool) -> Measured | None:
    """Return what paired runs say about a condition; None if no run has its figure."""
    values = {name: _values(condition.figure, pairs) for name, pairs in evidence.items()}
    known = {name: pairs for name, pairs in values.items() if any(one is not None for pair in pairs for one in pair)}
    if not known:
        return None
    numbers: dict[str, list[float]] = {}
    for name, pairs in known.items():
        for place, pair in enumerate(pairs):
            number = condition.number(*pair)
            if isinstance(number, str):
                return Measured(condition, OPEN, *_means(known), reason=_reason(number, pair, name, place))
            numbers.setdefault(name, []).append(number)
    count = len(numbers)
    combined = [fsum(each) / count for each in zip(*numbers.values(), strict=True)]
    estimate = paired(combined, error, condition.bound)
    by_workload = {name: fsum(each) / len(each) for name, each in numbers.items()} if len(evidence) > 1 else {}
    return Measured(condition, judge(condition, estimate, whole), *_means(known), estimate, None, by_workload)


def measure_apart(condition: Condition, base: Sequence[Json], candidate: Sequence[Json], error: float) -> Measured:
    """Return what two independent samples say about a condition."""
    sides = [[value_of(summary, condition.figure) for summary in side] for side in (base, candidate)]
    if all(one is None for side in sides for one in side):
        raise missing(condition)
    if condition.kind == "level":
        return measure(condition, {"": list(zip(candidate, candidate, strict=True))}, error, whole=True)
    numbers: list[list[float]] = []
    for name, side in zip(("base", "candidate"), sides, strict=True):
        known = [one for one in side if one is not None and (condition.kind == "change" or one > 0)]
        if len(known) < len(side):
            wrong = f"a window of the {name} has no value above 0" if condition.kind == "relative" else NO_SAMPLE
            return Measured(condition, OPEN, reason=f"{wrong}; use an absolute limit or longer recordings")
        numbers.append([log(one) if condition.kind == "relative" else one for one in known])
    estimate = unpaired(numbers[0], numbers[1], error, condition.bound)
    outcome = judge(condition, estimate, whole=True)
    return Measured(condition, outcome, _mean(sides[0]), _mean(sides[1]), estimate)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return fsum(known) / len(known) if known else None


def missing(condition: Condition) -> HeadwayError:
    """Return the error for a figure that no run has."""
    return HeadwayError(
        f"{argument('fail_if')} {shown(condition.text)}: no run has the figure {condition.figure}. "
        "Use a figure that headway run --json prints for the scenario."
    )


def _values(figure: str, pairs: Sequence[Summaries]) -> list[tuple[float | None, float | None]]:
    return [(value_of(base, figure), value_of(candidate, figure)) for base, candidate in pairs]


def _means(values: Mapping[str, Sequence[tuple[float | None, float | None]]]) -> tuple[float | None, float | None]:
    columns = [[pair[side] for pairs in values.values() for pair in pairs] for side in (0, 1)]
    return _mean(columns[0]), _mean(columns[1])


def _reason(reason: str, pair: tuple[float | None, float | None], workload: str, place: int) -> str:
    if reason != NO_SAMPLE:
        return f"{reason}; use an absolute limit, such as +1"
    side = "base" if pair[0] is None else "candidate"
    where = f" of {workload}" if workload else ""
    return f"the {side} has no sample of this figure in pair {place}{where}"
