"""The order of several runs of one scenario, best first, by their summaries."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, Literal

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.results.groups import fairness, sessions
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, Recorder, RunFacts, TierStats
from headway.results.sample import completed_sample
from headway.results.scaling import scaling
from headway.types import Json

Best = Literal["low", "high"]
Named = tuple[str, Json]

# The longest matching beginning of a path decides; what is not here (a policy's own figures) or None cannot rank.
BEST: Final[dict[str, Best | None]] = {
    "duration_s": "low",
    "preemptions": "low",
    "rates": "low",
    "rates.admission": "high",
    "pathology": "low",
    "requests": "low",
    "requests.arrived": None,
    "requests.completed": "high",
    "latency": "low",
    "throughput": "high",
    "cache": "high",
    "balance.cv": "low",
    "balance.jain": "high",
    "slo": "high",
    "cost": "low",
    "energy": "low",
    "scaling": "low",
    "scaling.mean_serving": None,
    "scaling.slo_per_replica": "high",
    "scaling.faults": None,
    "fairness": "high",
    "sessions.completed": "high",
    "sessions.duration": "low",
    "tiers.gpu.hit_ratio": "high",
    "tiers.cpu.hit_ratio": "high",
    "tiers.cpu.thrashed_blocks": "low",
    "tiers.storage.hit_ratio": "high",
    "tiers.storage.thrashed_blocks": "low",
    "loads.wait": "low",
    "transfer.bytes": "low",
    "transfer.wait": "low",
    "transfer.time": "low",
}
MANY: Final = 12  # names that a sentence may list
# The facts of an empty run: its summary has every path.
NOTHING: Final = RunFacts(started_ps=0, ended_ps=0, block_tokens=1, warmup=0, policy_metrics={})


def rank(results: Iterable[Named], by: str | None = None) -> list[Named]:
    """Best first; equals keep the order given, and a run without the figure comes last.

    `by` is a figure, see `figure`. Without it: with an SLO the most goodput per planned request, then the lowest p99 of
    TTFT; without one the fewest requests lost, so that shedding does not pay, then the lowest mean of E2E.
    """
    if by is None:
        return sorted(results, key=lambda pair: _default(pair[1]))
    way = direction(by)
    return sorted(results, key=lambda pair: _key(value(pair[1], by), way))


def figure(path: str, where: str = "by", ranked: bool = True) -> str:
    """Return the path of a figure of the summary, such as `latency.ttft.p99`, as it is written there; raise an error
    for an unknown one. With `ranked` only figures that runs can be ranked by are known."""
    name = path.strip().replace("-", "_")
    known = [figure for figure in every_figure() if direction(figure) or not ranked]
    if name in known or (not ranked and name.startswith("policy_metrics.")):
        return name
    near = [figure for figure in known if name and name in figure]
    near = near if len(near) <= MANY else []
    hint = suggest(name, near or get_close_matches(name, known, n=1))
    hint = hint or " One is 'latency.ttft.p99'; docs/metrics.md has them all."
    use = "figure to rank by" if ranked else "figure"
    raise HeadwayError(f"{where}: no {use} is called {shown(path.strip())}.{hint}")


def every_figure() -> list[str]:
    """Return the paths of all figures that a summary may have, without a policy's own."""
    nothing = Recorder()
    some = {"sessions": sessions(nothing, 0), "fairness": fairness(nothing, completed_sample(nothing, NOTHING), 0)}
    some["scaling"] = scaling(nothing, [], NOTHING, 0, 0)
    stores = [TierStats("", tier, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, []) for tier in ("cpu", "storage")]
    idle = InstanceStats("", role="prefill", kv_blocks=1, tiers=stores)  # has all optional parts
    return paths(summarise(nothing, [idle], NOTHING) | some)


def direction(path: str) -> Best | None:
    """Whether a low or a high value of this figure is better; None where neither is."""
    while path not in BEST and "." in path:
        path = path.rpartition(".")[0]
    return BEST.get(path)


def value(summary: Json, path: str) -> float | None:
    """The number at a dotted path of a summary; None where the run had no sample, or no such part: no sessions, one
    tenant, no stores below the GPU, instances that neither came nor went."""
    inner: Any = summary
    for part in path.split("."):
        inner = inner.get(part)
        if inner is None:
            return None
    return float(inner)


def paths(summary: Json, prefix: str = "") -> list[str]:
    """All dotted paths of a summary that lead to a number (or to None)."""
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
