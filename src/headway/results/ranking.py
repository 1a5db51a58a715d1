"""The order of several runs of one scenario, best first, by their summaries."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, Final, Literal

from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.results.groups import fairness, sessions
from headway.results.metrics import summarise
from headway.results.recorder import InstanceStats, Recorder, RunFacts, TierStats
from headway.results.sample import completed_sample
from headway.results.scaling import figures
from headway.types import Json

Best = Literal["low", "high"]
Named = tuple[str, Json]

# The longest matching beginning of a path decides; what is not here (the arrivals, a policy's own figures) cannot rank.
BEST: Final[dict[str, Best]] = {
    "duration_s": "low",
    "preemptions": "low",
    "rates.admission": "high",
    "rates.preemptions_per_request": "low",
    "rates.preemptions_per_s": "low",
    "rates.kv_blocks_per_s": "low",
    "rates.kv_bytes_per_s": "low",
    "pathology": "low",
    "requests.completed": "high",
    "requests.rejected": "low",
    "requests.timed_out": "low",
    "requests.failed": "low",
    "requests.in_flight": "low",
    "requests.not_issued": "low",
    "requests.abandoned": "low",
    "requests.retried": "low",
    "latency": "low",
    "throughput": "high",
    "cache": "high",
    "balance.cv": "low",
    "balance.jain": "high",
    "slo": "high",
    "cost": "low",
    "energy": "low",
    "scaling.replica_seconds": "low",
    "scaling.mean_replicas": "low",
    "scaling.slo_per_replica": "high",
    "scaling.scale_ups": "low",
    "scaling.scale_downs": "low",
    "scaling.oscillations": "low",
    "scaling.failed": "low",
    "scaling.retried": "low",
    "scaling.redirected": "low",
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
# The facts of a run that was none: its summary has every path.
NOTHING: Final = RunFacts(
    started_ps=0,
    ended_ps=0,
    block_tokens=1,
    warmup=0,
    policy_metrics={},
)


def rank(results: Iterable[Named], by: str | None = None) -> list[Named]:
    """Best first; equals keep the order given, and a run without the figure comes last.

    `by` is a figure, see `figure`. Without it: with an SLO the most goodput per planned request, then the lowest p99 of
    TTFT; without one the fewest requests lost, so that shedding does not pay, then the lowest mean of E2E.
    """
    if by is None:
        return sorted(results, key=lambda pair: _default(pair[1]))
    way = direction(by)
    return sorted(results, key=lambda pair: _key(value(pair[1], by), way))


def figure(path: str) -> str:
    """A figure that runs can be ranked by, a dotted path of the summary such as `latency.ttft.p99`, as it is written
    there; what is none is told, before anything has been run."""
    wanted = path.strip().replace("-", "_")
    nothing = Recorder()
    some = {"sessions": sessions(nothing, 0), "fairness": fairness(nothing, completed_sample(nothing, NOTHING), 0)}
    some["scaling"] = figures(nothing, [], NOTHING, 0, 0)
    stores = [TierStats("", name, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, []) for name in ("cpu", "storage")]
    idle = InstanceStats("", role="prefill", kv_blocks=1, tiers=stores)  # has all the parts that some have
    every = summarise(nothing, [idle], NOTHING) | some
    known = [name for name in paths(every) if direction(name)]
    if wanted in known:
        return wanted
    near = [name for name in known if wanted and wanted in name]
    near = near if len(near) <= MANY else []
    hint = suggest(wanted, near or get_close_matches(wanted, known, n=1))
    hint = hint or " One is 'latency.ttft.p99'; docs/metrics.md has them all."
    raise HeadwayError(f"by: no figure to rank by is called {shown(path.strip())}.{hint}")


def direction(path: str) -> Best | None:
    """Whether a low or a high value of this figure is better; None where neither is."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        found = BEST.get(".".join(parts[:length]))
        if found is not None:
            return found
    return None


def value(summary: Json, path: str) -> float | None:
    """The number at a dotted path of a summary; None where the run had no sample, or no such part: no sessions, one
    tenant, no stores below the GPU, instances that neither came nor went."""
    found: Any = summary
    for part in path.split("."):
        found = found.get(part)
        if found is None:
            return None
    return float(found)


def paths(summary: Json, prefix: str = "") -> list[str]:
    """All dotted paths of a summary that lead to a number (or to None)."""
    found = []
    for name, inner in summary.items():
        if isinstance(inner, dict):
            found += paths(inner, f"{prefix}{name}.")
        elif not isinstance(inner, (list, str)):
            found.append(prefix + name)
    return found


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
