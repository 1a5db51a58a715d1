"""The summary of a run: one document of plain numbers, defined in docs/metrics.md.

Integers are summed as integers and divided once. Where a figure has no sample it is None, never zero.
"""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import compress, repeat
from math import sqrt
from operator import floordiv, ge, le, sub
from typing import Any

from msgspec import Struct

from headway.results.gaps import GapCounts
from headway.results.percentiles import ranks, spread, spread_of
from headway.results.recorder import COMPLETED, InstanceStats, Recorder, RunFacts
from headway.types import OUTCOMES, PS_PER_SECOND, Json

PS_PER_HOUR = 3600 * PS_PER_SECOND


class Completed(Struct):
    """The columns of the requests that were completed and count: neither warm-up nor ended otherwise."""

    ttft_ps: list[int]
    queue_wait_ps: list[int]
    e2e_ps: list[int]
    decode_ps: list[int]  # first token to last
    prompt_tokens: list[int]
    output_tokens: list[int]


def summarise(recorder: Recorder, instances: list[InstanceStats], facts: RunFacts) -> Json:
    """The whole summary, in the order in which it is written."""
    completed = _completed(recorder, facts.warmup)
    planned = max(0, len(recorder) - facts.warmup)
    window_ps = facts.ended_ps - recorder.arrival_ps[facts.warmup] if planned else None
    length_ps = facts.ended_ps - facts.started_ps
    return {
        "requests": _requests(recorder),
        "duration_s": length_ps / PS_PER_SECOND,
        "latency": _latency(completed, recorder.gaps),
        "throughput": {
            "requests_per_s": _rate(len(completed.e2e_ps), window_ps),
            "input_tokens_per_s": _rate(sum(completed.prompt_tokens), window_ps),
            "output_tokens_per_s": _rate(sum(completed.output_tokens), window_ps),
        },
        "cache": _cache(recorder, facts),
        "balance": _balance(recorder, len(instances), facts.warmup),
        "slo": _slo(completed, planned, window_ps, facts),
        "cost": _cost(recorder, instances, facts, length_ps),
        "preemptions": sum(stats.preemptions for stats in instances),
        "policy_metrics": dict(facts.policy_metrics),
        "instances": _instances(instances, length_ps),
    }


def _completed(recorder: Recorder, warmup: int) -> Completed:
    chosen = [code == COMPLETED for code in recorder.outcome[warmup:]]

    def column(values: array[int]) -> list[int]:
        return list(compress(values[warmup:], chosen))

    arrival = column(recorder.arrival_ps)
    first = column(recorder.first_token_ps)
    finished = column(recorder.finished_ps)
    return Completed(
        ttft_ps=list(map(sub, first, arrival)),
        queue_wait_ps=list(map(sub, column(recorder.started_ps), arrival)),
        e2e_ps=list(map(sub, finished, arrival)),
        decode_ps=list(map(sub, finished, first)),
        prompt_tokens=column(recorder.prompt_tokens),
        output_tokens=column(recorder.output_tokens),
    )


def _requests(recorder: Recorder) -> Json:
    counts = {outcome: recorder.outcome.count(code) for code, outcome in enumerate(OUTCOMES)}
    return {"arrived": len(recorder), **counts, "not_issued": recorder.not_issued}


def _latency(completed: Completed, gaps: array[int]) -> Json:
    pairs = zip(completed.decode_ps, completed.output_tokens, strict=True)
    tpot_ps = [decode / (tokens - 1) for decode, tokens in pairs if tokens > 1]
    counts = GapCounts(gaps)
    gap_at = counts.select(ranks(counts.count)) if counts.count else {}
    return {
        "ttft": spread_of(completed.ttft_ps),
        "tpot": spread_of(tpot_ps),
        "itl": spread(counts.count, counts.total_ps, gap_at.__getitem__),
        "e2e": spread_of(completed.e2e_ps),
        "queue_wait": spread_of(completed.queue_wait_ps),
    }


def _cache(recorder: Recorder, facts: RunFacts) -> Json:
    started = list(map(ge, recorder.started_ps[facts.warmup :], repeat(0)))
    cached = list(compress(recorder.cached_tokens[facts.warmup :], started))
    prompt = list(compress(recorder.prompt_tokens[facts.warmup :], started))
    block = repeat(facts.block_tokens)
    return {
        "token_hit_ratio": _ratio(sum(cached), sum(prompt)),
        "block_hit_ratio": _ratio(sum(map(floordiv, cached, block)), sum(map(floordiv, prompt, block))),
        "request_hit_ratio": _ratio(len(cached) - cached.count(0), len(cached)),
    }


def _balance(recorder: Recorder, instances: int, warmup: int) -> Json:
    """Over the numbers of requests routed to each instance: standard deviation over mean, and Jain's fairness."""
    routed = Counter(recorder.instance[warmup:])
    counts = [routed[index] for index in range(instances)]
    total = sum(counts)
    squares = sum(count * count for count in counts)
    return {
        "cv": sqrt(instances * squares - total * total) / total if total else None,
        "jain": _ratio(total * total, instances * squares),
    }


def _slo(completed: Completed, planned: int, window_ps: int | None, facts: RunFacts) -> Json:
    """A target is met at or below it; a single output token has no TPOT and misses none."""
    count = len(completed.e2e_ps)
    met: list[list[bool]] = []
    attainment: list[float | None] = [None, None]
    if facts.slo_ttft_ps is not None:
        met.append(list(map(le, completed.ttft_ps, repeat(facts.slo_ttft_ps))))
        attainment[0] = _ratio(met[-1].count(True), count)
    if facts.slo_tpot_ps is not None:
        target = facts.slo_tpot_ps
        pairs = zip(completed.decode_ps, completed.output_tokens, strict=True)
        met.append([decode <= target * (tokens - 1) for decode, tokens in pairs])
        attainment[1] = _ratio(met[-1].count(True), count)
    good = count if not met else list(map(all, zip(*met, strict=True))).count(True)
    return {
        "ttft_attainment": attainment[0],
        "tpot_attainment": attainment[1],
        "goodput_requests_per_s": _rate(good, window_ps),
        "goodput_ratio": _ratio(good, planned),
    }


def _cost(recorder: Recorder, instances: list[InstanceStats], facts: RunFacts, length_ps: int) -> Json:
    """Over the whole run, warm-up included: hardware is paid for whether its requests count or not."""
    completed = [code == COMPLETED for code in recorder.outcome]
    tokens = sum(compress(recorder.prompt_tokens, completed)) + sum(compress(recorder.output_tokens, completed))
    busy_ps = sum(stats.busy_ps for stats in instances) * facts.gpus_per_instance
    held_ps = len(instances) * facts.gpus_per_instance * length_ps
    usd = held_ps / PS_PER_HOUR * facts.usd_per_gpu_hour
    return {
        "gpu_seconds_per_request": _ratio(busy_ps, completed.count(True) * PS_PER_SECOND),
        "gpu_held_seconds": held_ps / PS_PER_SECOND,
        "usd_per_1k_tokens": usd * 1000 / tokens if tokens else None,
    }


def _instances(instances: list[InstanceStats], length_ps: int) -> list[dict[str, Any]]:
    routed = sum(stats.requests for stats in instances)
    return [
        {
            "id": stats.id,
            "requests": stats.requests,
            "share": _ratio(stats.requests, routed),
            "busy_s": stats.busy_ps / PS_PER_SECOND,
            "utilization": _ratio(stats.busy_ps, length_ps),
            "steps": stats.steps,
            "prefill_tokens": stats.prefill_tokens,
            "output_tokens": stats.output_tokens,
            "cached_tokens": stats.cached_tokens,
            "preemptions": stats.preemptions,
            "evicted_blocks": stats.evicted_blocks,
            "peak_kv_utilization": _ratio(stats.peak_kv_blocks, stats.kv_blocks),
            "kv_blocks": stats.kv_blocks,
        }
        for stats in instances
    ]


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rate(count: int, window_ps: int | None) -> float | None:
    """Per second; unknown where no request counts, and a run in which no time passed completed nothing."""
    if window_ps is None:
        return None
    return count * PS_PER_SECOND / window_ps if window_ps > 0 else 0.0
