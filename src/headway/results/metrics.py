"""The summary of a run: one document of plain numbers, defined in docs/metrics.md.

Integers are summed as integers and divided once. A figure without a sample is None, never zero.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import compress, repeat
from math import fsum, sqrt
from operator import floordiv
from typing import Any

from headway.results.estimates import estimates
from headway.results.gaps import GapCounts
from headway.results.groups import groups, jain
from headway.results.kv_sections import own_tiers, tiers, transfers
from headway.results.pathology import Pathology
from headway.results.recorder import COMPLETED, InstanceStats, Recorder, RequestColumns, RunFacts
from headway.results.sample import attainment, column_of_started, completed_sample, good, latency, ratio, throughput
from headway.results.scaling import held_ps, present, scaling
from headway.results.shadow import shadow
from headway.results.statistics import Spread, ranks, spread
from headway.types import OUTCOMES, PS_PER_SECOND, Json

PS_PER_HOUR = 3600 * PS_PER_SECOND
MILLION = 1_000_000
# Beginnings of the figures that take most of the time: gaps between tokens, queues, and groups of requests.
GAPS = "latency.itl"
BY_WAIT = ("rates", "pathology", "tenants", "classes", "kinds", "models", "fairness", "sessions")


def costs(recorder: Recorder, instances: Sequence[InstanceStats], length_ps: int) -> Json:
    """Return the sections `cost` and `energy`."""
    completed = [code == COMPLETED for code in recorder.outcome]
    requests = completed.count(True)
    tokens = sum(compress(recorder.prompt_tokens, completed)) + sum(compress(recorder.output_tokens, completed))
    busy_ps = sum(stats.busy_ps * stats.gpus for stats in instances)
    held: Counter[float] = Counter()  # USD per GPU hour -> paid GPU time in ps, summed as integers to stay exact
    for stats in instances:
        held[stats.usd_per_gpu_hour] += stats.gpus * held_ps(stats, length_ps)
    usd = fsum(time_ps / PS_PER_HOUR * price for price, time_ps in held.items())
    kwh = _kwh(instances, length_ps)
    return {
        "cost": {
            "gpu_seconds_per_request": ratio(busy_ps, requests * PS_PER_SECOND),
            "gpu_held_seconds": held.total() / PS_PER_SECOND,
            "usd": usd,
            "usd_per_1k_tokens": usd * 1000 / tokens if tokens else None,
            "usd_per_1m_tokens": usd * MILLION / tokens if tokens else None,
        },
        "energy": {
            "kwh": kwh,
            "wh_per_request": kwh * 1000 / requests if kwh is not None and requests else None,
            "kwh_per_1m_tokens": kwh * MILLION / tokens if kwh is not None and tokens else None,
        },
    }


def _kwh(instances: Sequence[InstanceStats], length_ps: int) -> float | None:
    """Return the energy in kWh: busy watts during steps, and idle watts during the rest of the paid time. If the watts
    of a GPU are unknown, return None."""
    if any(not stats.busy_watts for stats in instances):
        return None
    drawn: Counter[float] = Counter()  # power in watts -> total time with this power, in ps
    for stats in instances:
        drawn[stats.busy_watts] += stats.busy_ps
        drawn[stats.idle_watts] += held_ps(stats, length_ps) - stats.busy_ps
    return fsum(time_ps / PS_PER_HOUR * watts for watts, time_ps in drawn.items()) / 1000


def summarise(
    recorder: Recorder, instances: list[InstanceStats], facts: RunFacts, figures: Collection[str] | None = None
) -> Json:
    """Return the summary, with its sections in the order of the file. If only some `figures` are needed, leave out the
    costly sections that have none of them."""
    by_wait = figures is None or any(figure.startswith(BY_WAIT) for figure in figures)
    by_gap = figures is None or any(figure.startswith(GAPS) for figure in figures)
    sample = completed_sample(recorder, facts)
    counted = max(0, len(recorder) - facts.warmup)
    window_ps = facts.ended_ps - recorder.arrival_ps[facts.warmup] if counted else None
    length_ps = facts.ended_ps - facts.started_ps
    times = latency(sample)
    # Turns that clients abandoned after a rejection count as planned requests, so that rejecting does not raise the
    # goodput ratio.
    planned = counted + recorder.abandoned if counted else 0
    here = present(recorder, instances)
    there = [instances[index] for index in here]
    preemptions = sum(stats.preemptions for stats in instances)
    ills = Pathology(recorder, facts.warmup, facts.ended_ps) if by_wait else None
    return {
        "requests": _requests(recorder),
        "duration_s": length_ps / PS_PER_SECOND,
        "latency": {
            "ttft": times["ttft"],
            "tpot": times["tpot"],
            **({"itl": _gaps(recorder.gaps)} if by_gap else {}),
            "e2e": times["e2e"],
            "queue_wait": times["queue_wait"],
        },
        "throughput": throughput(sample, window_ps),
        "cache": cache_ratios(recorder, facts),
        **shadow(recorder, facts),
        "balance": _balance(recorder, here, instances, facts.warmup),
        "slo": attainment(sample, planned, window_ps),
        **costs(recorder, there, length_ps),
        "preemptions": preemptions,
        **({} if ills is None else ills.whole(preemptions, there, length_ps, times)),
        "policy_metrics": dict(facts.policy_metrics),
        **estimates(recorder, facts.warmup),
        **({"routers": {"count": len(facts.routers), "requests": facts.routers}} if facts.routers else {}),
        **_adapters(recorder, there),
        **_speculation(there),
        **tiers(there, length_ps),
        **transfers(recorder, there, facts.warmup, length_ps),
        **({"scaling": scaling(recorder, instances, facts, good(sample), planned)} if facts.pools else {}),
        **({} if ills is None else groups(recorder, sample, facts, window_ps, ills)),
        "instances": _instances(here, there, length_ps),
    }


def _requests(recorder: Recorder) -> Json:
    counts = {outcome: recorder.outcome.count(code) for code, outcome in enumerate(OUTCOMES)}
    rest = {"retried": recorder.retried, "not_issued": recorder.not_issued, "abandoned": recorder.abandoned}
    return {"arrived": len(recorder), **counts, **rest}


def _gaps(gaps: array[int]) -> Spread:
    counts = GapCounts(gaps)
    gap_at = counts.select(ranks(counts.count)) if counts.count else {}
    return spread(counts.count, counts.total_ps, gap_at.__getitem__)


def cache_ratios(recorder: RequestColumns, facts: RunFacts) -> Json:
    """Return the fractions of prompt tokens, blocks and requests that were found in the KV cache."""
    cached = column_of_started(recorder, facts, "cached_tokens")
    prompt = column_of_started(recorder, facts, "prompt_tokens")
    block = repeat(facts.block_tokens)
    return {
        "token_hit_ratio": ratio(sum(cached), sum(prompt)),
        "block_hit_ratio": ratio(sum(map(floordiv, cached, block)), sum(map(floordiv, prompt, block))),
        "request_hit_ratio": ratio(len(cached) - cached.count(0), len(cached)),
    }


def _balance(recorder: Recorder, here: list[int], instances: list[InstanceStats], warmup: int) -> Json:
    """Return the coefficient of variation and Jain's index of the requests per instance, without prefill instances."""
    routed = Counter(recorder.instance[warmup:])
    counts = [routed[index] for index in here if instances[index].role != "prefill"]
    total = sum(counts)
    squares = sum(count * count for count in counts)
    return {
        "cv": sqrt(len(counts) * squares - total * total) / total if total else None,
        "jain": jain(counts),
    }


def _adapters(recorder: Recorder, instances: list[InstanceStats]) -> Json:
    """Return the section `adapters` of the whole run. If no instance has adapter slots, return an empty dict."""
    loads = [stats.adapter_loads for stats in instances if stats.adapter_loads is not None]
    if not loads:
        return {}
    load_ps = sum(stats.adapter_load_ps for stats in instances)
    requests = len(recorder) - recorder.adapter.count(-1)
    return {"adapters": {"loads": sum(loads), "load_s": load_ps / PS_PER_SECOND, "requests": requests}}


def _speculation(instances: list[InstanceStats]) -> Json:
    """Return the section `speculation` of the whole run. If no instance speculates, return an empty dict."""
    speculating = [stats for stats in instances if stats.decode_steps is not None]
    if not speculating:
        return {}
    steps = sum(stats.decode_steps or 0 for stats in speculating)
    drafted = sum(stats.drafted_tokens for stats in speculating)
    accepted = sum(stats.accepted_tokens for stats in speculating)
    return {
        "speculation": {
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
            "acceptance_rate": ratio(accepted, drafted),
            "tokens_per_step": ratio(steps + accepted, steps),
        }
    }


def _link(stats: InstanceStats, length_ps: int) -> Json:
    if stats.role != "prefill":
        return {}
    return {"sent_bytes": stats.sent_bytes, "link_utilization": ratio(stats.link_busy_ps, length_ps)}


def _instances(here: list[int], instances: list[InstanceStats], length_ps: int) -> list[dict[str, Any]]:
    # True: number of requests routed to prefill instances; False: number of requests routed to all other instances
    routed: Counter[bool] = Counter()
    for stats in instances:
        routed[stats.role == "prefill"] += stats.requests
    return [
        {
            "id": stats.id,
            **({} if stats.held_ps is None else {"index": index, "held_s": stats.held_ps / PS_PER_SECOND}),
            **({} if stats.pool is None else {"pool": stats.pool, "model": stats.model}),
            **({} if stats.role is None else {"role": stats.role}),
            "requests": stats.requests,
            "share": ratio(stats.requests, routed[stats.role == "prefill"]),
            "busy_s": stats.busy_ps / PS_PER_SECOND,
            "utilization": ratio(stats.busy_ps, held_ps(stats, length_ps)),
            "steps": stats.steps,
            "prefill_tokens": stats.prefill_tokens,
            "output_tokens": stats.output_tokens,
            "cached_tokens": stats.cached_tokens,
            "preemptions": stats.preemptions,
            "evicted_blocks": stats.evicted_blocks,
            "peak_kv_utilization": ratio(stats.peak_kv_blocks, stats.kv_blocks),
            "kv_blocks": stats.kv_blocks,
            **({} if stats.adapter_loads is None else {"adapter_loads": stats.adapter_loads}),
            **own_tiers(stats, length_ps),
            **_link(stats, length_ps),
        }
        for index, stats in zip(here, instances, strict=True)
    ]
