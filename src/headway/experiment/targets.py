"""The SLO of a plan: bounds on figures of a run, as in "ttft_p99<=500ms, attainment>=0.99".

    ttft_p99, tpot_mean, itl_p95, e2e_max, queue_wait_p90     upper bound: any latency with any statistic of the summary
    attainment                                                lower bound: fraction of planned requests within the SLO
    ttft_attainment, tpot_attainment, e2e_attainment          lower bound: fraction of completed requests within target
    completed                                                 lower bound: fraction of planned requests that completed

Latencies count completed requests only, so a policy that rejects slow requests would pass. Therefore a plan adds
`completed>=0.99` if no bound counts all planned requests.
"""

import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Final

from msgspec import Struct

from headway.config.units import duration_ps, exact
from headway.config.wording import cut, shown, suggest
from headway.errors import HeadwayError
from headway.results.statistics import NAMES, PS_PER_MS
from headway.scenario.scenario import Scenario
from headway.types import Json

WHERE: Final = "slo"
LATENCIES: Final = ("ttft", "tpot", "itl", "e2e", "queue_wait")
PROMISED: Final = ("ttft", "tpot", "e2e")  # latencies that a scenario's `slo` may bound
SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
WORDS: Final = {"<=": "at most", "<": "below", ">=": "at least", ">": "above"}
ALIKE: Final = {"goodput_ratio": "attainment", "goodput": "attainment"}
OF_ALL: Final = ("attainment", "completed")  # fractions of all planned requests
SHARES: Final = ("attainment", *(f"{name}_attainment" for name in PROMISED), "completed")
FIGURES: Final = (*(f"{name}_{at}" for name in LATENCIES for at in NAMES), *SHARES)
ENOUGH: Final = 0.99
EXAMPLE: Final = '"ttft_p99<=500ms, attainment>=0.99"'


class Target(Struct, frozen=True):
    """A bound on one figure."""

    figure: str
    sign: str
    limit: float  # in milliseconds, or a fraction

    @property
    def share(self) -> bool:
        """Whether the figure is a fraction, which has a lower bound. Any other figure is a latency in ms with an upper
        bound."""
        return is_share(self.figure)

    def value(self, figures: Json) -> float | None:
        return figure_of(figures, self.figure)

    def met(self, figures: Json) -> bool:
        """Return whether a run meets the target. A run without a value of the figure misses the target."""
        value = self.value(figures)
        return value is not None and SIGNS[self.sign](value, self.limit)

    def describe_value(self, value: float | None) -> str:
        """Return a value of the figure with its unit."""
        if value is None:
            return "unknown"
        return f"{100 * value:.1f} %" if self.share else f"{value:,.{0 if value >= 1000 else 1}f} ms"

    def describe_limit(self) -> str:
        limit = f"{100 * self.limit:g} %" if self.share else f"{self.limit:,g} ms"
        return f"{WORDS[self.sign]} {limit}"

    def describe(self) -> str:
        return f"{self.figure}{self.sign}{self.limit:.6g}" + ("" if self.share else "ms")


def is_share(figure: str) -> bool:
    return figure == "completed" or figure.endswith("attainment")


def figure_of(figures: Json, name: str) -> float | None:
    """Return a figure of a run's summary by its name in a target, or None if the run has no value of the figure."""
    if name == "completed":
        requests = figures["requests"]
        planned = requests["arrived"] - requests["retried"] + requests["abandoned"]
        return requests["completed"] / planned if planned else None
    if is_share(name):
        value = figures["slo"]["goodput_ratio" if name == "attainment" else name]
    else:
        latency, _, at = name.rpartition("_")
        value = figures["latency"][latency][at]
    return None if value is None else float(value)


def targets(slo: str | Sequence[str] | None, scenario: Scenario) -> tuple[Target, ...]:
    """Parse the targets. If `slo` is None, 99 % of all planned requests must meet the scenario's SLO."""
    slos = [scenario.slo, *scenario.workload.slos().values()]
    promised = [name for name in PROMISED if any(getattr(each, f"{name}_ps") is not None for each in slos)]
    if slo is None:
        if not promised:
            raise HeadwayError(f"{WHERE}: the scenario has no target to plan for. Give a target, as in {EXAMPLE}.")
        return (Target("attainment", ">=", ENOUGH),)
    by_figure: dict[str, Target] = {}
    texts = [slo] if isinstance(slo, str) else slo
    for part in [part for text in texts for part in text.split(",")]:
        target = _target(part)
        if target.figure in by_figure:
            raise HeadwayError(f"{WHERE}: {target.figure} is bounded twice. Remove one bound.")
        _check_promised(target.figure, promised)
        by_figure[target.figure] = target
    if not any(name in by_figure for name in OF_ALL):
        by_figure["completed"] = Target("completed", ">=", ENOUGH)
    return tuple(by_figure.values())


def _target(text: str) -> Target:
    match = re.fullmatch(r"\s*([\w.-]*)\s*(<=|>=|<|>|=+|)\s*(.*?)\s*", text)
    name, sign, value = match.groups() if match else ("", "", "")
    if not name or not value or sign not in SIGNS:
        raise HeadwayError(f"{WHERE}: {shown(text.strip())} is not a bound. Write bounds as in {EXAMPLE}.")
    figure = name.replace("-", "_").replace(".", "_").removeprefix("latency_").removeprefix("slo_")
    figure = ALIKE.get(figure, figure)
    if figure not in FIGURES:
        hint = suggest(figure, FIGURES)
        if hint.startswith(" Known"):  # no similar name; the list of all names would be too long
            names, statistics, shares = (", ".join(known) for known in (LATENCIES, NAMES, SHARES))
            hint = f" Use a latency ({names}) with a statistic ({statistics}), or {shares}."
        raise HeadwayError(f"{WHERE}: there is no figure {shown(cut(name))}.{hint}")
    share = is_share(figure)
    if sign.startswith("<") == share:
        bound, right = ("lower", f"{figure}>=0.99") if share else ("upper", f"{figure}<=500ms")
        raise HeadwayError(f"{WHERE}: {cut(text.strip())}: {figure} takes {bound} bounds. Write it as {right}.")
    where = f"{WHERE}: {figure}"
    return Target(figure, sign, _share(value, where) if share else _milliseconds(value, where))


def _milliseconds(value: str, where: str) -> float:
    ps = duration_ps(value, where)
    if ps <= 0:
        raise HeadwayError(f"{where}: must be greater than zero, got {shown(value)}.")
    return float(Fraction(ps, PS_PER_MS))


def _share(value: str, where: str) -> float:
    number = exact(value.removesuffix("%").strip())
    share = None if number is None else number / 100 if value.endswith("%") else number
    if share is None or not 0 < share <= 1:
        raise HeadwayError(f"{where}: expected a share above 0 and up to 1, as in 0.99 or 99%, got {shown(value)}.")
    return float(share)


def _check_promised(figure: str, promised: list[str]) -> None:
    name = figure.removesuffix("attainment").rstrip("_")
    if not figure.endswith("attainment") or (name in promised if name else promised):
        return
    key = f"slo.{name or 'ttft'}"
    raise HeadwayError(f"{WHERE}: {figure}: the scenario has no such target. Set '{key}', as in {key}=500ms.")
