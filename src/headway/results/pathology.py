"""Problems in queues: the sections `rates` and `pathology`, of the whole run and of each group of requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress, repeat
from operator import lt

from msgspec import Struct

from headway.results.kv_sections import distinct_stores
from headway.results.recorder import InstanceStats, RequestColumns
from headway.results.sample import rate, ratio
from headway.results.waits import Waits
from headway.types import Json


class Pathology:
    """Priority inversions and head-of-line blocking among the requests after the warm-up."""

    def __init__(self, requests: RequestColumns, warmup: int, ended_ps: int) -> None:
        self.requests = requests
        self.warmup = warmup
        self.waits = Waits(requests, ended_ps)
        self.passed = [row for row in self.waits.inversions() if row >= warmup]
        self.blocked_ps = {row: time for row, time in self.waits.blocked_ps().items() if row >= warmup}
        self.waited_ps = self.waits.waited_ps()[warmup:]

    def whole(self, preemptions: int, instances: Sequence[InstanceStats], length_ps: int, latency: Json) -> Json:
        """Return the sections `rates` and `pathology` of the whole run."""
        requests, warmup = self.requests, self.warmup
        count = max(0, len(requests) - warmup)
        sums = _Sums(
            arrived=count,
            admitted=count - requests.admitted_ps[warmup:].count(-1),
            started=count - requests.started_ps[warmup:].count(-1),
            preempted=sum(requests.preemptions[warmup:]),
            waited_ps=sum(self.waited_ps),
            passed=len(self.passed),
            blocked_ps=sum(self.blocked_ps.values()),
        )
        sections = sums.sections(latency)
        sections["rates"] |= {"preemptions_per_s": rate(preemptions, length_ps), **_kv_traffic(instances, length_ps)}
        return sections

    def groups(self, codes: Sequence[int], count: int) -> list[_Sums]:
        """Return the counts and the waiting times of each group of requests. `codes` has the group of each request;
        `count` is the number of groups."""
        requests, warmup = self.requests, self.warmup
        codes = codes[warmup:]
        arrived = Counter(codes)
        admitted = arrived - Counter(compress(codes, map(lt, requests.admitted_ps[warmup:], repeat(0))))
        started = arrived - Counter(compress(codes, map(lt, requests.started_ps[warmup:], repeat(0))))
        waited = [0] * count
        for code, time in zip(codes, self.waited_ps, strict=True):
            waited[code] += time
        groups = [_Sums(arrived[code], admitted[code], started[code], waited_ps=waited[code]) for code in range(count)]
        preempted = requests.preemptions[warmup:]
        for code, times in zip(compress(codes, preempted), filter(None, preempted), strict=True):
            groups[code].preempted += times
        for row in self.passed:
            groups[codes[row - warmup]].passed += 1
        for row, time in self.blocked_ps.items():
            groups[codes[row - warmup]].blocked_ps += time
        return groups


class _Sums(Struct):
    arrived: int = 0
    admitted: int = 0
    started: int = 0
    preempted: int = 0  # number of preemptions, not of preempted requests
    waited_ps: int = 0
    passed: int = 0
    blocked_ps: int = 0

    def sections(self, latency: Json) -> Json:
        return {
            "rates": {
                "admission": ratio(self.admitted, self.arrived),
                "preemptions_per_request": ratio(self.preempted, self.started),
            },
            "pathology": {
                "priority_inversions": self.passed,
                "head_of_line_blocking": ratio(self.blocked_ps, self.waited_ps),
                "tail_latency_blowup": {
                    name: ratio(latency[name]["p99"], latency[name]["p50"]) for name in ("ttft", "e2e")
                },
            },
        }


def _kv_traffic(instances: Sequence[InstanceStats], length_ps: int) -> Json:
    """Return the KV traffic to and from the tiers below the GPUs. Without such tiers, return an empty dict."""
    stores = distinct_stores(instances)
    if not stores:
        return {}
    blocks = sum(store.stored_blocks + store.loaded_blocks for store in stores)
    return {
        "kv_blocks_per_s": rate(blocks, length_ps),
        "kv_bytes_per_s": rate(sum(store.moved_bytes for store in stores), length_ps),
    }
