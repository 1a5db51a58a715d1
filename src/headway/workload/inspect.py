"""A trace's shape (rate, lengths, burstiness, sessions) and its reuse: what LRU caches would hit in order of arrival.

Reuse follows one rule. Requests come in file order; request i goes to cache i mod N. Its hit is the leading run of its
blocks that are resident before it; then all its blocks are touched first to last, and whatever is over capacity goes,
least recently used first. The ratio is hit blocks to all blocks. Blocks are the trace's own, a partly filled last one
included. This is order alone: no time, no engine's block size, no output tokens.
"""

from __future__ import annotations

import pathlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from math import fsum, sqrt
from typing import Final

from headway.types import PS_PER_SECOND, HeadwayError, Json
from headway.workload.traces import Trace, read_trace

WINDOWS_S: Final = (1, 10, 60)
RATE_BINS: Final = 60
ROOT_SHARE: Final = 10  # a block in at least a tenth of the rows is a shared root, not a conversation's own
ROOT_ROWS: Final = 10  # and in at least so many, lest every block of a short file be one


def inspect(
    path: str | pathlib.Path,
    format: str | None = None,
    capacities: Sequence[int | None] = (None,),
    instances: Sequence[int] = (1,),
) -> Json:
    """All figures of a trace file; a capacity is in blocks a cache, None for unlimited."""
    for capacity in capacities:
        if capacity is not None and capacity < 1:
            raise HeadwayError(f"--capacity: a cache holds at least 1 block (or inf), got {capacity}.")
    for count in instances:
        if count < 1:
            raise HeadwayError(f"--instances: there is at least 1 cache, got {count}.")
    trace = read_trace(pathlib.Path(path), format)
    return describe(trace, capacities, instances)


def describe(trace: Trace, capacities: Sequence[int | None], instances: Sequence[int]) -> Json:
    """The figures of a trace already read."""
    span_ps = trace.arrival_ps[-1] - trace.arrival_ps[0]
    found: Json = {
        "format": trace.format,
        "requests": len(trace),
        "span_s": span_ps / PS_PER_SECOND,
        "rate_per_s": len(trace) * PS_PER_SECOND / span_ps if span_ps else None,
        "prompt_tokens": lengths(trace.prompt_tokens),
        "output_tokens": lengths(trace.output_tokens),
        "arrivals": arrivals(trace.arrival_ps),
        "blocks": None,
        "sessions": None,
        "reuse": [],
    }
    if trace.block_tokens is None:
        found["note"] = (
            f"The {trace.format} format says nothing of content: no blocks, no sessions, no reuse to report."
        )
        return found
    found["blocks"] = {"tokens": trace.block_tokens, "distinct": max(trace.ids) + 1, "referenced": len(trace.ids)}
    found["sessions"] = sessions(trace)
    for count in instances:
        for capacity in capacities:
            ratio = block_hits(trace, count, capacity) / len(trace.ids)
            found["reuse"].append({"instances": count, "capacity": capacity, "block_hit_ratio": ratio})
    return found


def percentile(ordered: Sequence[float], share: float) -> float:
    """With linear interpolation between the neighbours."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


def spread(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    found = {"mean": fsum(ordered) / len(ordered)}
    found |= {f"p{percent}": percentile(ordered, percent / 100) for percent in (50, 90, 99)}
    return found | {"min": ordered[0], "max": ordered[-1]}


def lengths(tokens: array[int]) -> Json:
    """The spread of lengths, their total, and counts by powers of two as [up to, how many]."""
    counts: dict[int, int] = {}
    for length in tokens:
        bits = (length - 1).bit_length()
        counts[bits] = counts.get(bits, 0) + 1
    bins = [[1 << bits, counts.get(bits, 0)] for bits in range(min(counts), max(counts) + 1)]
    return {**spread(tokens), "total": sum(tokens), "histogram": bins}


def arrivals(stamps: array[int]) -> Json:
    """Burstiness: CV of the gaps (0 for even, 1 for Poisson), index of dispersion (variance to mean of the counts in
    whole windows, 1 for Poisson) and peak to mean at a minute; None where the trace is too short to say."""
    gaps = [(later - earlier) / PS_PER_SECOND for earlier, later in pairwise(stamps)]
    span = stamps[-1] - stamps[0]
    dispersion: dict[str, float | None] = {}
    peak = None
    for window in WINDOWS_S:
        counts = _counts(stamps, window * PS_PER_SECOND, span // (window * PS_PER_SECOND))
        mean = sum(counts) / len(counts) if counts else 0
        dispersion[f"{window}s"] = _variance(counts, mean) / mean if len(counts) > 1 and mean else None
        if window == WINDOWS_S[-1] and mean:
            peak = max(counts) / mean
    width = span // RATE_BINS + 1
    rates = [count * PS_PER_SECOND / width for count in _counts(stamps, width, RATE_BINS)] if span else []
    return {
        "cv": _cv(gaps),
        "idc": dispersion,
        "peak_to_mean_60s": peak,
        "distinct_stamps": len(set(stamps)),
        "rate_over_time_per_s": rates,
    }


def _counts(stamps: array[int], width_ps: int, windows: int) -> list[int]:
    counts = [0] * windows
    first = stamps[0]
    for stamp in stamps:
        at = (stamp - first) // width_ps
        if at >= windows:
            break
        counts[at] += 1
    return counts


def _variance(values: Sequence[float], mean: float) -> float:
    return fsum((value - mean) ** 2 for value in values) / len(values)


def _cv(values: Sequence[float]) -> float | None:
    mean = fsum(values) / len(values) if values else 0.0
    return sqrt(_variance(values, mean)) / mean if mean else None


def sessions(trace: Trace) -> Json:
    """Conversations, where the format has no id for them: a request continues the latest earlier one that owns its
    deepest matched block, unless that block is a shared root."""
    references = [0] * (max(trace.ids) + 1)
    for block in trace.ids:
        references[block] += 1
    root = max(ROOT_ROWS, len(trace) / ROOT_SHARE)
    owner: dict[int, int] = {}
    session: list[int] = []
    turns: dict[int, int] = {}
    gaps: list[float] = []
    for row in range(len(trace)):
        blocks = trace.ids[trace.starts[row] : trace.starts[row + 1]]
        deepest = -1
        for block in blocks:
            if block not in owner:
                break
            deepest = block
        if deepest < 0 or references[deepest] >= root:
            session.append(row)
        else:
            earlier = owner[deepest]
            session.append(session[earlier])
            gaps.append((trace.arrival_ps[row] - trace.arrival_ps[earlier]) / PS_PER_SECOND)
        turns[session[row]] = turns.get(session[row], 0) + 1
        owner.update(dict.fromkeys(blocks, row))
    several = [count for count in turns.values() if count > 1]
    return {
        "count": len(turns),
        "turns": spread(list(turns.values())),
        "multi_turn_share": len(several) / len(turns),
        "requests_in_multi_turn_share": sum(several) / len(trace),
        "gap_s": spread(gaps) if gaps else None,
    }


def block_hits(trace: Trace, instances: int, capacity: int | None) -> int:
    """Hit blocks under the rule above."""
    if capacity is None:
        return _unlimited_hits(trace, instances)
    caches: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(instances)]
    ids, starts = trace.ids, trace.starts
    hits = 0
    for row in range(len(trace)):
        cache = caches[row % instances]
        blocks = ids[starts[row] : starts[row + 1]]
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        touch, evict = cache.move_to_end, cache.popitem
        for block in blocks:
            if block in cache:
                touch(block)
                continue
            cache[block] = None
            if len(cache) > capacity:
                evict(last=False)
    return hits


def _unlimited_hits(trace: Trace, instances: int) -> int:
    caches: list[set[int]] = [set() for _ in range(instances)]
    hits = 0
    for row in range(len(trace)):
        cache = caches[row % instances]
        blocks = trace.ids[trace.starts[row] : trace.starts[row + 1]]
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        cache.update(blocks)
    return hits
