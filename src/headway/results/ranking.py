"""Ranks runs of one scenario by their summaries, best first."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.results.estimates import errors
from headway.results.figure_table import Best, declared
from headway.results.groups import fairness, sessions
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, Recorder, RunFacts, TierStats
from headway.results.sample import completed_sample
from headway.results.scaling import scaling
from headway.types import Json

Named = tuple[str, Json]

MANY: Final = 12  # maximum number of names that an error lists
# The facts of a run without requests. `every_figure` reads the names of the figures from the summary of this run.
NOTHING: Final = RunFacts(started_ps=0, ended_ps=0, block_tokens=1, warmup=0, policy_metrics={})


def rank(results: Iterable[Named], by: str | None = None) -> list[Named]:
    """Return the runs best first. Equal runs keep their order; runs without the figure come last.

    `by` is a figure, see `figure`. The default with an SLO is the highest goodput per planned request, then the lowest
    TTFT p99. Without an SLO it is the fewest lost requests, then the lowest mean E2E. Lost requests count first,
    because rejecting requests must not improve the rank.
    """
    if by is None:
        return sorted(results, key=lambda pair: _default(pair[1]))
    way = direction(by)
    return sorted(results, key=lambda pair: _key(value(pair[1], by), way))


def figure(path: str, where: str = "by", ranked: bool = True) -> str:
    """Return the path of a figure, such as `latency.ttft.p99`, exactly as the summary spells it; raise an error if it
    is unknown. A path may lack its first parts if only one figure ends with the rest, as `ttft.p99`. With `ranked`,
    accept only figures that can rank runs."""
    name = path.strip().replace("-", "_")
    known = [figure for figure in every_figure() if direction(figure) or not ranked]
    if name in known or (not ranked and name.startswith("policy_metrics.")):
        return name
    ends = [figure for figure in known if "." in name and figure.endswith(f".{name}")]
    if len(ends) == 1:
        return ends[0]
    near = [figure for figure in known if name and name in figure]
    near = near if len(near) <= MANY else []
    short = {figure.partition(".")[2]: figure for figure in known}
    alike = [short[each] for each in get_close_matches(name, short, n=1)] if "." in name else []
    hint = suggest(name, near or get_close_matches(name, known, n=1) or alike)
    hint = hint or " An example is 'latency.ttft.p99'; docs/metrics.md lists all figures."
    wrong = "runs cannot be ranked by" if ranked else "unknown figure"
    raise HeadwayError(f"{where}: {wrong} {shown(path.strip())}.{hint}")


def every_figure() -> list[str]:
    """Return the paths of all figures that a summary may have, except the metrics that policies define."""
    nothing = Recorder()
    some = {"sessions": sessions(nothing, 0), "fairness": fairness(nothing, completed_sample(nothing, NOTHING), 0)}
    some["estimates"] = errors([])
    some["scaling"] = scaling(nothing, [], NOTHING, 0, 0)
    stores = [TierStats("", tier, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, []) for tier in ("cpu", "storage")]
    # An instance with a role, with tiers and with drafts, because only these have the optional sections of a summary.
    idle = InstanceStats("", role="prefill", kv_blocks=1, tiers=stores, decode_steps=0)
    return paths(summarise(nothing, [idle], NOTHING) | some)


def direction(path: str) -> Best | None:
    """Return whether a low or a high value of this figure is better; None if neither is."""
    figure = declared(path)
    return None if figure is None else figure.better


def value(summary: Json, path: str) -> float | None:
    """Return the number at a dotted path of a summary; None if the run has no sample or no such section."""
    inner: Any = summary
    for part in path.split("."):
        inner = inner.get(part)
        if inner is None:
            return None
    return float(inner)


def paths(summary: Json, prefix: str = "") -> list[str]:
    """Return all dotted paths of a summary that lead to a number or None."""
    names = []
    for name, inner in summary.items():
        if isinstance(inner, dict):
            names += paths(inner, f"{prefix}{name}.")
        elif not isinstance(inner, (list, str)):
            names.append(prefix + name)
    return names


def _key(number: float | None, way: Best | None) -> tuple[bool, float]:
    if number is None or number != number:
        return True, 0.0
    return False, -number if way == "high" else number


def _default(summary: Json) -> tuple[tuple[bool, float], ...]:
    slo, latency, requests = summary["slo"], summary["latency"], summary["requests"]
    if any(share is not None for name, share in slo.items() if name.endswith("_attainment")):
        return _key(slo["goodput_ratio"], "high"), _key(latency["ttft"]["p99"], "low")
    lost = requests["rejected"] + requests["timed_out"] + requests["failed"]
    return _key(lost, "low"), _key(latency["e2e"]["mean"], "low")
