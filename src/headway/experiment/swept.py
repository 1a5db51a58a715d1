"""The points of a sweep, and its verdict: up to which value the SLO holds, or which point is best."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.config.units import duration_ps, exact, rate
from headway.config.wording import join_words
from headway.errors import HeadwayError
from headway.experiment.grid import Axis, names
from headway.experiment.paired import SHARE, Noise, mean_summary
from headway.experiment.verdict import verdict as best_of
from headway.results.ranking import rank, value
from headway.results.statistics import interval
from headway.types import Json

KEPT: Final = 0.99  # the SLO holds if at least this fraction of the planned requests meets it
LOADS: Final = ("rate", "speed", "concurrency", "users")  # keys whose larger values make the SLO harder to meet
SIZES: Final = ("instances", "min_replicas", "max_replicas")  # keys whose larger values make the SLO easier to meet
SHOWN: Final = 8  # maximum number of combinations in a verdict
SHARES: Final = (SHARE, "cache.token_hit_ratio")


class Swept(Struct, frozen=True, dict=True):
    """A point of the grid with its summary for each seed."""

    vary: Json
    label: str
    policy: str
    key: str
    folder: str
    slo: bool  # whether the scenario or a tenant has an SLO
    summaries: list[Json]

    @cached_property
    def summary(self) -> Json:
        return mean_summary(self.summaries)

    def holds(self) -> bool | None:
        """Return whether 99 % of the planned requests meet the SLO with every seed. Without an SLO, return None."""
        if not self.slo:
            return None
        return all((value(summary, SHARE) or 0.0) >= KEPT for summary in self.summaries)

    def figures(self, paths: Iterable[str]) -> Json:
        """Return the mean of each figure over the seeds and its 95 % confidence interval. If there is a single seed,
        the bounds of the interval are None."""
        figures: Json = {}
        for figure in paths:
            mean = interval([value(summary, figure) for summary in self.summaries], figure in SHARES)
            figures[figure] = dict.fromkeys(("mean", "low", "high")) if mean is None else asdict(mean)
        return figures


def verdict(points: Sequence[Swept], axes: Sequence[Axis], base: Json) -> str:
    """Say up to which load or size the SLO holds, for each combination of the other keys. If neither a load nor a size
    varies, or a point has no SLO, name the best point."""
    axis = _decisive(axes)
    if axis is None or not all(point.slo for point in points):
        ranked = rank([(point.label, point.summary) for point in points])
        noise = Noise({point.label: point.summaries for point in points}) if len(points[0].summaries) > 1 else None
        return best_of(ranked, base, plain=points[0].label, noise=noise)
    place = axes.index(axis)
    name = names(axes)[place]
    size = sorted(axis.values, key=lambda value: _amount(value) or 0)
    grows = axis.keys[-1] in LOADS
    eased = size if grows else size[::-1]
    held = {group: _reach(its, axis, eased) for group, its in _groups(points, axes, axis).items()}
    order = sorted(held, key=lambda group: -held[group] or 1)  # groups in which the SLO never holds come last
    phrases: dict[str, list[str]] = {}
    for group in order[:SHOWN]:
        phrases.setdefault(_phrase(held[group], eased, name, grows), []).append(group)
    text = join_words(
        [phrase + (f" with {join_words(groups)}" if any(groups) else "") for phrase, groups in phrases.items()]
    )
    more = f" ({len(order) - SHOWN} more combinations not shown)" if len(order) > SHOWN else ""
    seeds = len(points[0].summaries)
    each = f", with each of {seeds} seeds" if seeds > 1 else ""
    return f"The SLO ({100 * KEPT:.0f} % of the requests within it{each}) holds {text}{more}."


def _decisive(axes: Sequence[Axis]) -> Axis | None:
    """Return the varied key that decides whether the SLO holds: a load if there is one, else a size."""
    for keys in (LOADS, SIZES):
        for axis in axes:
            if axis.keys[-1] in keys and all(_amount(value) is not None for value in axis.values):
                return axis
    return None


def _amount(value: Any) -> Fraction | None:
    """Return a number to sort a value by, whatever its unit. If the value is not a quantity, return None."""
    if isinstance(value, int | float):
        return exact(str(value))
    for read in (rate, duration_ps):
        try:
            return Fraction(read(value, ""))
        except HeadwayError:
            continue
    return None


def _groups(points: Sequence[Swept], axes: Sequence[Axis], axis: Axis) -> dict[str, list[Swept]]:
    """Group the points that differ only in the value of `axis`. The name of a group is the values of the other keys in
    words."""
    others = [other for other in axes if other is not axis]
    groups: dict[str, list[Swept]] = {}
    for point in points:
        words = []
        for other, name in zip(others, names(others), strict=True):
            text = other.text(point.vary[other.path])
            words.append(text if other.stage is not None else f"{name} {text}")
        groups.setdefault(" and ".join(words), []).append(point)
    return groups


def _reach(points: Sequence[Swept], axis: Axis, eased: Sequence[Any]) -> int:
    """Count the values of `axis` for which the SLO holds, starting from the easiest (`eased` lists the easiest first).
    Stop at the first value for which it does not hold."""
    holds = {str(point.vary[axis.path]): point.holds() for point in points}
    reach = 0
    for step in eased:
        if not holds[str(step)]:
            break
        reach += 1
    return reach


def _phrase(reach: int, eased: Sequence[Any], name: str, grows: bool) -> str:
    if not reach:
        return f"at no tested {name}"
    last = "" if reach < len(eased) else f" (the {'highest' if grows else 'lowest'} tested)"
    if grows:
        return f"up to {name} {eased[reach - 1]}{last}"
    return f"from {eased[reach - 1]} {name}{last} on"
