"""Statistics of recorded or planned requests: lengths, rate, burstiness, tenants, sessions and their gaps.

All statistics are computed from columns of numbers, so that large files fit in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import fsum, sqrt
from typing import Final

from msgspec import Struct, field

from headway.results.statistics import PS_PER_MS, spread_of
from headway.types import PS_PER_SECOND, Json

WINDOWS_S: Final = (1, 10, 60)
RATE_BINS: Final = 60
NONE: Final = -1  # an unknown value in a column


def numbers() -> array[int]:
    return array("q")


class Columns(Struct):
    """Columns with one entry per request, in order of arrival: times, lengths, and integers that identify the tenant,
    kind, model and session of the request."""

    at_ps: array[int] = field(default_factory=numbers)
    prompt_tokens: array[int] = field(default_factory=numbers)
    output_tokens: array[int] = field(default_factory=numbers)
    tenant: array[int] = field(default_factory=numbers)
    kind: array[int] = field(default_factory=numbers)
    model: array[int] = field(default_factory=numbers)
    session: array[int] = field(default_factory=numbers)
    gap_ps: array[int] = field(default_factory=numbers)  # time since the request that this request continues

    def __len__(self) -> int:
        return len(self.prompt_tokens)


def counts(values: Sequence[int]) -> Json:
    """Return statistics of whole numbers. `spread_of` divides its input by `PS_PER_MS` to convert ps to ms, so this
    function multiplies by `PS_PER_MS` first."""
    return dict(spread_of([value * PS_PER_MS for value in values]))


def seconds(durations_ps: Sequence[int]) -> Json | None:
    """Return the distribution of durations in seconds, or None if there are no durations."""
    if not len(durations_ps):
        return None
    return {name: None if value is None else value / 1000 for name, value in spread_of(durations_ps).items()}


def lengths(tokens: Sequence[int]) -> Json:
    """Return the distribution of lengths, the total length, and a histogram by powers of two. Each item of the
    histogram is [upper bound, count]."""
    by_bits: dict[int, int] = {}
    for length in tokens:
        bits = (length - 1).bit_length() if length else 0
        by_bits[bits] = by_bits.get(bits, 0) + 1
    bins = [[1 << bits, by_bits.get(bits, 0)] for bits in range(min(by_bits), max(by_bits) + 1)]
    return {**counts(tokens), "total": sum(tokens), "histogram": bins}


def overview(columns: Columns, clock: bool = True) -> Json:
    """Return the span, the rate, the lengths and the burstiness of requests. If `clock` is false, the requests have no
    common clock, and all statistics of time are None."""
    span_ps = columns.at_ps[-1] - columns.at_ps[0] if clock else None
    return {
        "span_s": None if span_ps is None else span_ps / PS_PER_SECOND,
        "rate_per_s": len(columns) * PS_PER_SECOND / span_ps if span_ps else None,
        "prompt_tokens": lengths(columns.prompt_tokens),
        "output_tokens": lengths(columns.output_tokens),
        "arrivals": arrivals(columns.at_ps) if clock else None,
    }


def arrivals(stamps: Sequence[int]) -> Json:
    """Return statistics of burstiness: the CV of the gaps, the index of dispersion for several window lengths, and the
    ratio of the peak rate to the mean rate per minute. The index of dispersion is the variance of the counts per window
    divided by their mean. For Poisson arrivals, the CV and the index are 1. If the span is too short, a statistic is
    None."""
    gaps = array("d", ((later - earlier) / PS_PER_SECOND for earlier, later in pairwise(stamps)))
    span = stamps[-1] - stamps[0]
    dispersion: dict[str, float | None] = {}
    peak = None
    for window in WINDOWS_S:
        requests = _counts(stamps, stamps[0], window * PS_PER_SECOND, span // (window * PS_PER_SECOND))
        mean = sum(requests) / len(requests) if requests else 0
        dispersion[f"{window}s"] = _variance(requests, mean) / mean if len(requests) > 1 and mean else None
        if window == WINDOWS_S[-1] and mean:
            peak = max(requests) / mean
    return {
        "cv": _cv(gaps),
        "idc": dispersion,
        "peak_to_mean_60s": peak,
        "distinct_stamps": sum(1 for earlier, later in pairwise(stamps) if later != earlier) + 1,
        "rate_over_time_per_s": rates(stamps, stamps[0], stamps[-1]),
    }


def rates(stamps: Iterable[int], first_ps: int, last_ps: int) -> list[float]:
    """Split the time from first to last into equal parts, and return the requests per second in each part. If both
    times are equal, return an empty list."""
    if first_ps == last_ps:
        return []
    width = (last_ps - first_ps) // RATE_BINS + 1
    return [count * PS_PER_SECOND / width for count in _counts(stamps, first_ps, width, RATE_BINS)]


def _counts(stamps: Iterable[int], first_ps: int, width_ps: int, windows: int) -> list[int]:
    requests = [0] * windows
    for stamp in stamps:
        at = (stamp - first_ps) // width_ps
        if at >= windows:
            break
        requests[at] += 1
    return requests


def _variance(values: Sequence[float], mean: float) -> float:
    return fsum((value - mean) ** 2 for value in values) / len(values)


def _cv(values: Sequence[float]) -> float | None:
    mean = fsum(values) / len(values) if values else 0.0
    return sqrt(_variance(values, mean)) / mean if mean else None


def groups(columns: Columns, numbers: Sequence[int], names: Sequence[str | None], clock: bool = True) -> list[Json]:
    """Return the count, the lengths and the rates of the requests of each name, by descending count. The name None
    stands for requests without a name."""
    rows: Mapping[int, array[int]] = {number: array("q") for number in range(len(names))}
    for row, number in enumerate(numbers):
        rows[number].append(row)
    groups = []
    for number, name in enumerate(names):
        own = rows[number]
        if own:
            stamps = (columns.at_ps[row] for row in own)
            groups.append(
                {
                    "name": name,
                    "requests": len(own),
                    "share": len(own) / len(columns),
                    "prompt_tokens": lengths([columns.prompt_tokens[row] for row in own]),
                    "output_tokens": lengths([columns.output_tokens[row] for row in own]),
                    "rate_over_time_per_s": rates(stamps, columns.at_ps[0], columns.at_ps[-1]) if clock else None,
                }
            )
    return sorted(groups, key=lambda group: -int(str(group["requests"])))


def sessions(columns: Columns) -> Json | None:
    """Return the number of sessions, the turns per session and the gaps between turns. If there are no sessions, return
    None."""
    turns: dict[int, int] = {}
    for session in columns.session:
        if session != NONE:
            turns[session] = turns.get(session, 0) + 1
    if not turns:
        return None
    several = [count for count in turns.values() if count > 1]
    return {
        "count": len(turns),
        "turns": counts(list(turns.values())),
        "multi_turn_share": len(several) / len(turns),
        "requests_in_multi_turn_share": sum(several) / len(columns),
        "gap_s": seconds([gap for gap in columns.gap_ps if gap != NONE]),
    }
