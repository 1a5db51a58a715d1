"""The conditions of a check, such as `ttft.p99>+5%`: when the check fails.

    ttft.p99>+5%                    a relative change from the base: percent with a sign
    throughput.requests_per_s<-2%   the figure falls by more than 2 %
    latency.tpot.p99>+5ms           an absolute change from the base: a number with a sign
    cache.token_hit_ratio<0.4       a level of the candidate alone: a number without a sign
    tenants.chat.latency.e2e.p99>+5%

A condition turns the figures of a pair of runs into one number and compares the mean of these numbers with a limit. For
relative changes, the number is the logarithm of candidate / base, so that a seed in which both sides are slow weighs as
much as any other.
"""

import re
from collections.abc import Sequence
from math import exp, log
from typing import Final, Literal

from msgspec import Struct

from headway.config.units import SHORT, TIME, exact
from headway.config.wording import cut, shown
from headway.errors import HeadwayError, argument
from headway.evolve.objectives import figures_of, plain, prefix_of
from headway.results.figure_table import MS, declared
from headway.results.ranking import direction
from headway.results.ranking import figure as known_figure
from headway.types import Json

Kind = Literal["relative", "change", "level"]
EXAMPLE: Final = '"ttft.p99>+5%"'
FORM: Final = re.compile(r"\s*([^<>=]+?)\s*([<>])\s*([+-]?)\s*([^<>=+-][^<>=]*?)\s*")
LIMIT: Final = re.compile(r"([0-9._eE+-]+)\s*(.*)")
SECOND: Final = "s"
RATIO: Final = "ratio"
NO_SAMPLE: Final = "no sample"


class Condition(Struct, frozen=True):
    """A bound on a figure. If the figure is beyond it, the check fails."""

    text: str  # as the user wrote it
    figure: str
    sign: Literal["<", ">"]
    kind: Kind
    limit: float  # a fraction for relative changes, otherwise in the unit of the figure

    @property
    def unit(self) -> str:
        figure = declared(plain(self.figure))
        return "" if figure is None else figure.unit

    @property
    def bound(self) -> float:
        """The limit on the scale of `number`."""
        return log(1 + self.limit) if self.kind == "relative" else self.limit

    @property
    def towards_better(self) -> bool:
        """Whether the condition fails a check because the figure got better."""
        return direction(plain(self.figure)) == ("high" if self.sign == ">" else "low")

    def number(self, base: float | None, candidate: float | None) -> float | str:
        """Return the number of a pair of runs, or the reason why the pair has none."""
        if candidate is None or base is None:
            return NO_SAMPLE
        if self.kind == "level":
            return candidate
        if self.kind == "change":
            return candidate - base
        if base == candidate:
            return 0.0
        if base <= 0 or candidate <= 0:
            side = "base" if base <= 0 else "candidate"
            return f"the {side} has {base if base <= 0 else candidate:g} in a run, so a relative change means nothing"
        return log(candidate / base)

    def shown(self, value: float) -> float:
        """Return a value of the scale of `number` on the scale of the limit."""
        return exp(value) - 1 if self.kind == "relative" else value


def value_of(summary: Json, figure: str) -> float | None:
    """Return a figure of a summary, also of one tenant or class; None if the summary has no such number."""
    return figures_of(summary, [figure])[figure]


def read_conditions(texts: str | Sequence[str]) -> tuple[Condition, ...]:
    """Parse the conditions of a check. An error names the condition."""
    where = argument("fail_if")
    several = [texts] if isinstance(texts, str) else list(texts)
    if not several:
        raise HeadwayError(f"{where}: name at least one condition, such as {EXAMPLE}.")
    conditions: dict[tuple[str, str, str], Condition] = {}
    for text in several:
        each = _condition(text, where)
        if (each.figure, each.sign, each.kind) in conditions:
            raise HeadwayError(f"{where}: {each.figure} is bounded twice by conditions of one kind. Remove one.")
        conditions[each.figure, each.sign, each.kind] = each
    return tuple(conditions.values())


def no_worse_than(figure: str, by: float) -> str:
    """Return the condition that a figure gets worse by more than a fraction, as text."""
    prefix = prefix_of(figure)
    path = prefix + known_figure(figure.removeprefix(prefix), where="figure")
    if isinstance(by, bool) or not isinstance(by, int | float) or not 0 <= by < 1:
        raise HeadwayError(f"by: expected a fraction of at least 0 and below 1, such as 0.05, got {shown(by)}.")
    worse = ">+" if direction(plain(path)) == "low" else "<-"
    return f"{figure}{worse}{100 * by:g}%"


def _condition(text: str, where: str) -> Condition:
    place = f"{where} {shown(text)}"
    match = FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise HeadwayError(f"{place}: expected a figure, < or >, and a limit, as in {EXAMPLE}.")
    name, sign, plus, rest = match.groups()
    prefix = prefix_of(name)
    try:
        figure = prefix + known_figure(name.removeprefix(prefix), where=place, ranked=False)
    except HeadwayError as error:
        raise HeadwayError(str(error)) from None
    unit = declared(plain(figure))
    kind, limit = _limit(plus, rest, "" if unit is None else unit.unit, place)
    return Condition(cut(" ".join(text.split())), figure, "<" if sign == "<" else ">", kind, limit)


def _limit(plus: str, text: str, unit: str, place: str) -> tuple[Kind, float]:
    """Return the kind of a condition and its limit: with a sign, it is a change, otherwise a level."""
    match = LIMIT.fullmatch(text)
    number = None if match is None else exact(match[1])
    if match is None or number is None:
        raise HeadwayError(f"{place}: {shown(text)} is not a limit; write +5%, +20ms or 0.4.")
    amount = float(-number if plus == "-" else number)
    suffix = match[2]
    if suffix == "%" and not plus and unit == RATIO:
        return "level", amount / 100
    if suffix == "%":
        if not plus and amount:
            raise HeadwayError(f"{place}: write the sign of a change from the base, as in +{text} or -{text}.")
        if not -100 < amount <= 1e6:
            raise HeadwayError(f"{place}: a relative limit lies between -100 % and +1,000,000 %.")
        return "relative", amount / 100
    return ("change" if plus else "level"), amount * _factor(suffix, unit, place)


def _factor(suffix: str, unit: str, place: str) -> float:
    if not suffix:
        return 1.0
    if unit in (MS, SECOND) and suffix in TIME:
        return TIME[suffix] / (SHORT[MS] if unit == MS else TIME[SECOND])
    right = "a time such as 20ms" if unit in (MS, SECOND) else f"a number ({unit})" if unit else "a number"
    raise HeadwayError(f"{place}: {shown(suffix)} is not a unit of this figure; write {right}, or a percentage.")
