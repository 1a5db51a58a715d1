"""Counters and histograms of ended requests.

`plain` returns them as mappings that one process can send to another. `merge` adds up the mappings of several
processes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from operator import add
from typing import TYPE_CHECKING, Any, Final

from headway.types import PS_PER_SECOND, Json

if TYPE_CHECKING:
    from headway.gateway.exchange import Exchange

# Upper bounds of histogram buckets, in seconds.
LONG: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
FIRST: Final = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
SHORT: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1)
WAITS: Final = (0.0001, 0.0005, 0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
BUCKETS: Final = {"ttft": FIRST, "tpot": SHORT, "e2e": LONG, "queue_wait": WAITS}
MOST_NAMES: Final = 200  # maximum number of models, of engines and of reasons; further names count as "other"
MOST_GROUPS: Final = 2000  # maximum number of model-engine pairs; each pair has 75 lines on the metrics page
OTHER: Final = "other"
BETWEEN: Final = "\x1f"  # separator between the labels in the key of a counter
WINDOW_S: Final = 60
SAMPLES: Final = 200  # maximum number of requests per second that enter the percentiles
SHARES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
# Upper bounds of the buckets, in picoseconds. A histogram is a list of integers:
# the count of each bucket, the count above the last bound, and the sum of all values in picoseconds.
TTFT, TPOT, E2E, QUEUE_WAIT = (tuple(round(end * PS_PER_SECOND) for end in ends) for ends in BUCKETS.values())


class Group:
    """Counts of the requests of one model at one engine. For requests that no engine received, both names are empty."""

    __slots__ = ("believed", "e2e", "ends", "output", "prompt", "queue_wait", "tpot", "ttft")

    def __init__(self) -> None:
        self.ends: dict[tuple[str, int], int] = {}  # number of requests, by outcome and status
        self.prompt = self.output = self.believed = 0  # numbers of tokens: of prompts, of outputs, believed cached
        self.ttft, self.tpot, self.e2e, self.queue_wait = ([0] * (len(ends) + 2) for ends in BUCKETS.values())


class Second:
    """The requests that ended in one second. `samples` has TTFT, TPOT, E2E and queue wait of the first SAMPLES of these
    requests."""

    __slots__ = ("_counts", "ended", "number", "samples")

    def __init__(self, number: int) -> None:
        self.number = number
        self.ended = 0
        self.samples: list[tuple[int, int, int, int]] = []  # in picoseconds; -1: the request has no such duration
        self._counts: list[Counter[int]] | None = None

    def counts(self) -> list[Counter[int]]:
        """Return the number of durations in each bucket, for a past second. The result is computed once, and cached."""
        if self._counts is None:
            columns = zip(*self.samples, strict=True) if self.samples else ((),) * len(BUCKETS)
            self._counts = [Counter(bucket(value) for value in column if value >= 0) for column in columns]
            self.samples = []
        return self._counts


def bucket(value: int) -> int:
    """Return the bucket number of a duration in picoseconds. Each power of two has 16 buckets."""
    if value < 32:
        value = 32
    length = value.bit_length()
    return length << 4 | (value >> (length - 5)) & 15


class GatewayMetrics:
    def __init__(self) -> None:
        self.groups: dict[tuple[str, str], Group] = {}
        self.retries: dict[str, int] = {}
        self.refusals: dict[int, int] = {}
        self.seconds = [Second(-1) for _ in range(WINDOW_S + 1)]
        self._models: dict[str, None] = {}
        self._engines: dict[str, None] = {}

    def count_retry(self, why: str) -> None:
        """Count a request that is sent to another engine. `why` is the reason."""
        if why not in self.retries and len(self.retries) >= MOST_NAMES:
            why = OTHER
        self.retries[why] = self.retries.get(why, 0) + 1

    def count_refusal(self, status: int) -> None:
        """Count a request that the gateway itself refuses: it is invalid, or its key or path is unknown."""
        self.refusals[status] = self.refusals.get(status, 0) + 1

    def count_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        """Count an ended request. Call this once for each request."""
        request, backend, sent_ps = exchange.request, exchange.backend, exchange.sent_ps
        key = ("", "") if backend is None else (request.model, backend.spec.name)
        group = self.groups.get(key)
        if group is None:
            group = self._group(*key)
        end = (outcome, exchange.status)
        group.ends[end] = group.ends.get(end, 0) + 1
        number = now_ps // PS_PER_SECOND
        second = self.seconds[number % (WINDOW_S + 1)]
        if second.number != number:
            second = self.seconds[number % (WINDOW_S + 1)] = Second(number)
        second.ended += 1
        if sent_ps < 0:
            return
        arrival_ps, tally, flight = request.arrival_ps, exchange.tally, exchange.flight
        tokens = tally.tokens
        group.prompt += request.prompt_tokens
        group.output += tokens
        if flight is not None:
            group.believed += flight.cached
        wait = sent_ps - arrival_ps
        _add(group.queue_wait, QUEUE_WAIT, wait)
        ttft = tpot = e2e = -1
        first_ps, completed = exchange.first_ps, outcome == "completed"
        if completed:
            e2e = now_ps - arrival_ps
            _add(group.e2e, E2E, e2e)
        if first_ps >= 0 and tally.stream:  # an answer that is not streamed does not show its first token
            ttft = first_ps - arrival_ps
            _add(group.ttft, TTFT, ttft)
            if completed and tokens > 1:
                tpot = (now_ps - first_ps) // (tokens - 1)
                _add(group.tpot, TPOT, tpot)
        if second.ended <= SAMPLES:
            second.samples.append((ttft, tpot, e2e, wait))

    def _group(self, model: str, engine: str) -> Group:
        """Return the group of counts for a model and an engine. The number of groups is limited, because clients choose
        the names of models."""
        key = (_bound_name(self._models, model), _bound_name(self._engines, engine))
        if len(self.groups) >= MOST_GROUPS and key not in self.groups:
            key = (OTHER, key[1])
        return self.groups.setdefault(key, Group())

    # --- reading -----------------------------------------------------------------------------------------------------

    def plain(self, now_ps: int) -> Json:
        """Return all counts by name and labels, in the form that `merge` accepts."""
        counters: dict[str, dict[str, int]] = {
            "requests": {},
            "retries": dict(self.retries),
            "refusals": {str(status): count for status, count in self.refusals.items()},
            "prompt_tokens": {},
            "output_tokens": {},
            "believed_cached_tokens": {},
        }
        histograms: dict[str, dict[str, list[int]]] = {name: {} for name in BUCKETS}
        for labels, group in self.groups.items():
            key = BETWEEN.join(labels)
            for (outcome, status), count in group.ends.items():
                counters["requests"][BETWEEN.join((*labels, outcome, str(status)))] = count
            counters["prompt_tokens"][key] = group.prompt
            counters["output_tokens"][key] = group.output
            counters["believed_cached_tokens"][key] = group.believed
            for name in BUCKETS:
                histograms[name][key] = list(getattr(group, name))
        return {"counters": counters, "histograms": histograms, "recent": self._recent(now_ps)}

    def _recent(self, now_ps: int) -> Json:
        """Return the counts of the last 60 whole seconds, without the current second."""
        now = now_ps // PS_PER_SECOND
        seconds = [second for second in self.seconds if now - WINDOW_S <= second.number < now]
        recent: Json = {"ended": {"": sum(second.ended for second in seconds)}}
        for place, name in enumerate(BUCKETS):
            sums: Counter[int] = Counter()
            for second in seconds:
                sums.update(second.counts()[place])
            recent[name] = {str(at): sums[at] for at in sorted(sums)}
        return recent


def _add(histogram: list[int], ends: tuple[int, ...], duration_ps: int) -> None:
    histogram[bisect_left(ends, duration_ps)] += 1
    histogram[-1] += duration_ps


def _bound_name(names: dict[str, None], name: str) -> str:
    if name not in names:
        if len(names) >= MOST_NAMES:
            return OTHER
        name = "".join(sign if sign.isprintable() else "?" for sign in name[:MOST_NAMES])
        names[name] = None
    return name


def merge(plains: Iterable[Json]) -> Json:
    """Add up the numbers of several processes, separately for each metric name and combination of labels."""
    merged: Json = {}
    for plain in plains:
        for kind, figures in plain.items():
            for name, values in figures.items():
                sums: dict[str, Any] = merged.setdefault(kind, {}).setdefault(name, {})
                for key, value in values.items():
                    known = sums.get(key)
                    if known is None:
                        sums[key] = list(value) if isinstance(value, list) else value
                    elif isinstance(value, list):
                        sums[key] = list(map(add, known, value))
                    else:
                        sums[key] = known + value
    return merged


def percentiles(plain: Json, up_s: float = WINDOW_S) -> Json:
    """Return percentiles in ms over the last minute, or since the gateway's start if that is more recent. A percentile
    is within 1/32 of the true value, or None without requests. `count` is the number of sampled requests."""
    shares: Json = {"requests_per_s": plain["recent"]["ended"][""] / min(WINDOW_S, max(1, int(up_s)))}
    for name in BUCKETS:
        counts = sorted((int(at), count) for at, count in plain["recent"][name].items())
        total = sum(count for _, count in counts)
        shares[name] = {"count": total, **{word: _at_rank(counts, total * share) for word, share in SHARES.items()}}
    return shares


def _at_rank(counts: list[tuple[int, int]], rank: float) -> float | None:
    below = 0
    for at, count in counts:
        below += count
        if below >= rank:
            return (16.5 + (at & 15)) * float(1 << ((at >> 4) - 5)) / 1e9  # the middle of the bucket, in ms
    return None
