"""What a plan must hold: bounds on figures of a run, as in "ttft_p99<=500ms, attainment>=0.99".

    ttft_p99, tpot_mean, itl_p95, e2e_max, queue_wait_p90     any latency with any statistic of the summary, at most
    attainment                                                the share of all planned requests within the SLO, at least
    ttft_attainment, tpot_attainment, e2e_attainment          the share of the completed ones that met one target
    completed                                                 the share of all planned requests that were completed

Latencies are those of completed requests, so a policy that turns the slow ones away would pass. Where no bound looks at
all planned requests, `completed>=0.99` goes with the others.
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
PROMISED: Final = ("ttft", "tpot", "e2e")  # what a scenario's `slo` may say
SIGNS: Final[dict[str, Callable[[float, float], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
WORDS: Final = {"<=": "at most", "<": "below", ">=": "at least", ">": "above"}
ALIKE: Final = {"goodput_ratio": "attainment", "goodput": "attainment"}
OF_ALL: Final = ("attainment", "completed")  # whose share is one of all planned requests
ENOUGH: Final = 0.99
EXAMPLE: Final = '"ttft_p99<=500ms, attainment>=0.99"'


class Target(Struct, frozen=True):
    """A bound on one figure."""

    figure: str
    sign: str
    limit: float  # milliseconds, or a share

    @property
    def share(self) -> bool:
        """Whether it is a share, and so bounded from below; else a latency in milliseconds."""
        return is_share(self.figure)

    def value(self, figures: Json) -> float | None:
        return figure_of(figures, self.figure)

    def met(self, figures: Json) -> bool:
        """Whether a run keeps it; one without a sample does not."""
        value = self.value(figures)
        return value is not None and SIGNS[self.sign](value, self.limit)

    def describe_value(self, value: float | None) -> str:
        """A value of the figure with its unit."""
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


def figure_names() -> list[str]:
    """Every figure that a target may bound."""
    return [*(f"{name}_{at}" for name in LATENCIES for at in NAMES), *_shares()]


def _shares() -> list[str]:
    return ["attainment", *(f"{name}_attainment" for name in PROMISED), "completed"]


def figure_of(figures: Json, name: str) -> float | None:
    """A figure of a run's summary, by its name here."""
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
    """The targets of a text, or those of the scenario's own SLO: 99 % of all planned requests within it."""
    promised = _promises(scenario)
    if slo is None:
        if not promised:
            wrong = "the scenario promises nothing, so there is nothing to plan for"
            raise HeadwayError(f"{WHERE}: {wrong}; say what must hold, as in {EXAMPLE}.")
        return (Target("attainment", ">=", ENOUGH),)
    by_figure: dict[str, Target] = {}
    texts = [slo] if isinstance(slo, str) else slo
    for part in [part for text in texts for part in text.split(",")]:
        target = _target(part)
        if target.figure in by_figure:
            raise HeadwayError(f"{WHERE}: {target.figure} is bounded twice; keep one of them.")
        _check_promised(target.figure, promised)
        by_figure[target.figure] = target
    if not any(name in by_figure for name in OF_ALL):
        by_figure["completed"] = Target("completed", ">=", ENOUGH)
    return tuple(by_figure.values())


def _target(text: str) -> Target:
    match = re.fullmatch(r"\s*([\w.-]*)\s*(<=|>=|<|>|=+|)\s*(.*?)\s*", text)
    name, sign, value = match.groups() if match else ("", "", "")
    if not name or not value or sign not in SIGNS:
        raise HeadwayError(f"{WHERE}: {shown(text.strip())} is not a target; write bounds as in {EXAMPLE}.")
    figure = name.replace("-", "_").replace(".", "_").removeprefix("latency_").removeprefix("slo_")
    figure = ALIKE.get(figure, figure)
    if figure not in figure_names():
        raise HeadwayError(f"{WHERE}: no figure is called {shown(cut(name))}.{_hint(figure)}")
    share = is_share(figure)
    if sign.startswith("<") == share:
        right = f"{figure}>=0.99" if share else f"{figure}<=500ms"
        least = "at least so much is wanted" if share else "at most so long is wanted"
        raise HeadwayError(f"{WHERE}: {cut(text.strip())}: {least} of it; write it as {right}.")
    where = f"{WHERE}: {figure}"
    return Target(figure, sign, _share(value, where) if share else _milliseconds(value, where))


def _hint(figure: str) -> str:
    hint = suggest(figure, figure_names())
    if not hint.startswith(" Known"):
        return hint
    return f" A latency ({', '.join(LATENCIES)}) with a statistic ({', '.join(NAMES)}), or {', '.join(_shares())}."


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


def _promises(scenario: Scenario) -> list[str]:
    """The latencies that the scenario or a tenant bounds."""
    slos = [scenario.slo, *scenario.workload.slos().values()]
    return [name for name in PROMISED if any(getattr(slo, f"{name}_ps") is not None for slo in slos)]


def _check_promised(figure: str, promised: list[str]) -> None:
    name = figure.removesuffix("attainment").rstrip("_")
    if not figure.endswith("attainment") or (name in promised if name else promised):
        return
    key = f"slo.{name or 'ttft'}"
    raise HeadwayError(f"{WHERE}: {figure}: the scenario promises no such thing; give it '{key}', as in {key}=500ms.")
