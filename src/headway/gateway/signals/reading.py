"""The reported values of one engine, with their times of arrival and expiry."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from headway.types import PS_PER_SECOND
from headway.views.instance import MEAN_IF_MISSING, REPORTED_LIVE, SIGNALS, InstanceView

WATTS_WINDOW: Final = 30 * PS_PER_SECOND
HITS_WINDOW: Final = 60 * PS_PER_SECOND
LOAD: Final = ("queued", "running")  # signals that show an engine's load
COUNTS: Final = tuple(name for name in REPORTED_LIVE if SIGNALS[name].type is int)
MEASURED: Final = (*COUNTS, *MEAN_IF_MISSING)
REPORTABLE: Final = (*MEASURED, *[name for name in REPORTED_LIVE if name not in MEASURED])
CONVERTED: Final = ("kv_used", "kv_blocks")  # numbers of blocks, which must be converted to the gateway's block size


class Figure(NamedTuple):
    value: Any
    at: int  # time of the value, in ps
    until: int  # time at which the value becomes stale, in ps
    polled: bool  # True: from a page that this gateway polled; False: from an agent


class Mean:
    """The mean of samples over a window. The weight of a sample is the time since the previous sample."""

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
    """The fraction of recent prompt tokens that were cached, computed from cumulative counters."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.samples: deque[tuple[int, int, int]] = deque()

    def add(self, at: int, hits: int, queries: int) -> float | None:
        samples = self.samples
        if samples and (hits < samples[-1][1] or queries < samples[-1][2]):
            samples.clear()  # a counter has shrunk, because the engine has restarted
        samples.append((at, hits, queries))
        while len(samples) > 2 and samples[1][0] <= at - self.window:
            samples.popleft()
        _, hits_then, queries_then = samples[0] if queries > samples[0][2] else (0, 0, 0)
        recent = queries - queries_then
        return min(1.0, (hits - hits_then) / recent) if recent else None


class Reading:
    def __init__(self) -> None:
        self.figures: dict[str, Figure] = {}
        self.watts, self.hits = Mean(WATTS_WINDOW), Hits(HITS_WINDOW)
        self.reporting = False  # whether the plane uses the engine's load signals
        # If this engine's signals are missing, the plane gets the means of the other engines instead. This is the time
        # at which it last got them, in ps.
        self.neutral_at = 0

    def take(self, signals: Mapping[str, Any], at: int, lasts: int, polled: bool) -> None:
        """Store signals. An agent's signals do not replace fresh signals that this gateway polled. Watts are averaged
        over 30 s, whatever their source."""
        for name in REPORTABLE:
            if name not in signals:
                continue
            known, value = self.figures.get(name), signals[name]
            if polled or known is None or not known.polled or known.until <= at:
                if name == "watts":
                    value = self.watts.add(at, value)
                self.figures[name] = Figure(value, at, at + lasts, polled)

    def fresh(self, now: int) -> dict[str, Any]:
        return {name: figure.value for name, figure in self.figures.items() if figure.until > now}

    def ages(self, now: int) -> dict[str, float]:
        """Return the age of each signal in seconds."""
        return {name: (now - figure.at) / PS_PER_SECOND for name, figure in self.figures.items()}

    def signals_of(
        self, page: Mapping[str, Any], view: InstanceView, block_tokens: int, at: int, block_bytes: int | None = None
    ) -> dict[str, Any]:
        """Return the signals of a page, with KV blocks converted to the gateway's block size. `block_bytes` is the size
        of such a block; without it, signals in bytes are ignored. If the page has only one
        of the numbers of queued and running requests, compute the other from the requests in flight. If the page does
        not report how much of the KV cache is in use, use the number of tokens in flight."""
        signals = {name: page[name] for name in REPORTABLE if name in page and name not in CONVERTED}
        if any(name in signals for name in LOAD):
            signals.setdefault("queued", max(0, view.inflight - signals.get("running", 0)))
            signals.setdefault("running", max(0, view.inflight - signals["queued"]))
        blocks, size = page.get("kv_blocks", 0), page.get("block_tokens", 0)
        tokens = page.get("kv_tokens", 0) or blocks * size
        blocks = tokens // block_tokens or blocks
        if blocks:
            signals["kv_blocks"] = blocks
        blocks = blocks or view.kv_blocks
        if "kv_usage" in page:
            signals["kv_used"] = round(page["kv_usage"] * blocks)
        elif "kv_tokens_used" in page:
            signals["kv_used"] = min(blocks, page["kv_tokens_used"] // block_tokens)
        elif "queued" in signals:
            signals["kv_used"] = min(blocks, view.inflight_tokens // block_tokens)
        if "hits" in page and "queries" in page:
            rate = self.hits.add(at, page["hits"], page["queries"])
            if rate is not None:
                signals["hit_rate"] = rate
        return signals | _tiers(page, view, block_tokens, block_bytes)


def _tiers(page: Mapping[str, Any], view: InstanceView, block_tokens: int, block_bytes: int | None) -> dict[str, Any]:
    """Return the signals about the stores below the GPU. Disk and remote store are one tier."""
    used: dict[str, int] = {}
    if page.get("cpu_tokens"):
        used["cpu"] = page.get("cpu_tokens_used", 0) // block_tokens
    elif block_bytes and "cpu_bytes_used" in page:
        used["cpu"] = page["cpu_bytes_used"] // block_bytes
    storage = [page[name] for name in ("disk_bytes_used", "remote_bytes_used") if name in page]
    if block_bytes and storage and ("storage" in view.tier_blocks or any(storage)):
        used["storage"] = sum(storage) // block_bytes
    signals: dict[str, Any] = {"tier_used": used} if used else {}
    if page.get("cpu_tokens"):
        signals["tier_blocks"] = {"cpu": page["cpu_tokens"] // block_tokens} | {
            name: blocks for name, blocks in view.tier_blocks.items() if name != "cpu"
        }
    return signals


def clean(signals: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plausible values of an agent's report, and omit the others."""
    plausible: dict[str, Any] = {}
    for name in MEASURED:
        value = signals.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e15:
            plausible[name] = int(value) if name in COUNTS else float(value)
            if SIGNALS[name].kind == "share":
                plausible[name] = min(1.0, plausible[name])
    if plausible.get("kv_blocks") == 0:
        del plausible["kv_blocks"]
    return plausible
