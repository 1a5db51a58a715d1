"""What one engine has told of itself, when each figure came and until when it is trusted."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from headway.types import PS_PER_SECOND
from headway.views.instance import MEAN_IF_MISSING, REPORTED_LIVE, SIGNALS, InstanceView

WATTS_WINDOW: Final = 30 * PS_PER_SECOND
HITS_WINDOW: Final = 60 * PS_PER_SECOND
LOAD: Final = ("queued", "running")  # what makes a report one of load
COUNTS: Final = tuple(name for name in REPORTED_LIVE if SIGNALS[name].type is int)
MEASURED: Final = (*COUNTS, *MEAN_IF_MISSING)
TOLD: Final = (*MEASURED, *[name for name in REPORTED_LIVE if name not in MEASURED])
CONVERTED: Final = ("kv_used", "kv_blocks")  # a page counts other blocks than the gateway


class Figure(NamedTuple):
    value: Any
    at: int  # ps
    until: int  # ps, from when on it is not trusted
    polled: bool  # by this gateway, not brought by an agent


class Mean:
    """Of a figure over the last while, each sample for the time since the one before it."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.samples: deque[tuple[int, float]] = deque()

    def add(self, at: int, value: float) -> float:
        samples = self.samples
        if samples and at <= samples[-1][0]:
            samples.pop()
        samples.append((at, value))
        while len(samples) > 1 and samples[1][0] <= at - self.window:
            samples.popleft()
        if len(samples) == 1:
            return value
        areas, last = [], max(samples[0][0], at - self.window)
        start = last
        for when, what in list(samples)[1:]:
            areas.append(what * (when - last))
            last = when
        return math.fsum(areas) / (last - start)


class Hits:
    """The share of recent prompt tokens that were found cached, from counters that only grow."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.samples: deque[tuple[int, int, int]] = deque()

    def add(self, at: int, hits: int, queries: int) -> float | None:
        samples = self.samples
        if samples and (hits < samples[-1][1] or queries < samples[-1][2]):
            samples.clear()  # the engine has begun anew
        samples.append((at, hits, queries))
        while len(samples) > 2 and samples[1][0] <= at - self.window:
            samples.popleft()
        _, hits_then, queries_then = samples[0] if queries > samples[0][2] else (0, 0, 0)
        asked = queries - queries_then
        return min(1.0, (hits - hits_then) / asked) if asked else None


class Reading:
    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.watts, self.hits = Mean(WATTS_WINDOW), Hits(HITS_WINDOW)
        self.reporting = False  # whether the plane goes by what it says of its load
        self.neutral_at = 0  # ps, when the plane was last told what stands for its figures

    def take(self, signals: Mapping[str, Any], at: int, lasts: int, polled: bool) -> None:
        """What an agent brings yields to what this gateway has seen itself, as long as that is fresh."""
        for name in TOLD:
            if name not in signals:
                continue
            known, value = self.figures.get(name), signals[name]
            if polled and name == "watts":
                value = self.watts.add(at, value)
            if polled or known is None or not known.polled or known.until <= at:
                self.figures[name] = Figure(value, at, at + lasts, polled)

    def fresh(self, now: int) -> dict[str, Any]:
        return {name: figure.value for name, figure in self.figures.items() if figure.until > now}

    def ages(self, now: int) -> dict[str, float]:
        """Seconds since each signal came."""
        return {name: (now - figure.at) / PS_PER_SECOND for name, figure in self.figures.items()}

    def signals_of(self, page: Mapping[str, Any], view: InstanceView, block_tokens: int, at: int) -> dict[str, Any]:
        """A page in the words of a view, its blocks as long as the gateway's. Figures that it lacks are filled in where
        policies need them together: an engine that tells of its queue alone runs the rest, and one that says nothing of
        its cache holds the prompts in flight."""
        found = {name: page[name] for name in TOLD if name in page and name not in CONVERTED}
        if any(name in found for name in LOAD):
            found.setdefault("queued", max(0, view.inflight - found.get("running", 0)))
            found.setdefault("running", max(0, view.inflight - found["queued"]))
        blocks, size = page.get("kv_blocks", 0), page.get("block_tokens", 0)
        tokens = page.get("kv_tokens", 0) or blocks * size
        blocks = tokens // block_tokens or blocks
        if blocks:
            found["kv_blocks"] = blocks
        blocks = blocks or view.kv_blocks
        if "kv_usage" in page:
            found["kv_used"] = round(page["kv_usage"] * blocks)
        elif "kv_tokens_used" in page:
            found["kv_used"] = min(blocks, page["kv_tokens_used"] // block_tokens)
        elif "queued" in found:
            found["kv_used"] = min(blocks, view.inflight_tokens // block_tokens)
        if "hits" in page and "queries" in page:
            rate = self.hits.add(at, page["hits"], page["queries"])
            if rate is not None:
                found["hit_rate"] = rate
        return found


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return math.fsum(found) / len(found) if found else 0.0


def cleaned(signals: Mapping[str, Any]) -> dict[str, Any]:
    """What an agent says, as far as it can be true."""
    found: dict[str, Any] = {}
    for name in MEASURED:
        value = signals.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15:
            found[name] = int(value) if name in COUNTS else float(value)
            if SIGNALS[name].kind == "share":
                found[name] = min(1.0, found[name])
    if found.get("kv_blocks") == 0:
        del found["kv_blocks"]
    return found
