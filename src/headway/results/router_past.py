"""What the routers knew of their past at a decision: totals, the request's tenant, and recent latencies. All of this is
computed from the columns of the requests, so neither a run nor a gateway has to record it.

The definitions are those of the views (`Totals`, `TenantView`, `Recent`), but over all routers of the run. The request
that is being routed is neither queued nor in flight.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct

from headway.results.table import Table
from headway.types import NEVER, PS_PER_SECOND
from headway.views.cluster import SHORT_PS, is_burst
from headway.views.window import WINDOW_PS

HIT_REQUESTS: Final = 100  # number of requests that the hit rate covers, as the signal `hit_rate` defines it


class RouterState(Struct, frozen=True, gc=False):
    """The totals of the routers at a decision."""

    inflight: int  # number of requests sent to an instance that have not ended
    queued: int  # number of requests in the router's queue
    rate: float  # requests per second that arrived in the last 10 s
    throughput: float  # output tokens per second, of the requests that ended in the last 10 s


class TenantState(Struct, frozen=True, gc=False):
    """The state of a request's tenant when the request is routed."""

    name: str
    slo_class: str  # SLO class of the request
    requests: int  # number of requests that have arrived, including this one
    active: int  # number of admitted requests that have not ended, in the router's queue or at an instance
    rate: float  # requests per second that arrived in the last 10 s
    burst: bool  # whether the tenant sends far more than its mean rate


class RecentSum(Struct, eq=False, gc=False):
    """Amounts over time: sorted times, and the sum of all amounts up to each of them. `total` and `mean_s` belong to
    the window that a decision asked for last. They are also valid for every window that ends at or after `since`, but
    before `until`."""

    times: list[int]
    sums: list[int]
    since: int = 0
    until: int = 0
    total: int = 0
    mean_s: float | None = None  # mean of the amounts in the window, in seconds; None if the window has no amounts

    @classmethod
    def of(cls, amounts: list[tuple[int, int]]) -> RecentSum:
        amounts.sort()
        times = [at for at, _ in amounts]
        return cls([-NEVER, *times, NEVER], [0, 0, *accumulate(amount for _, amount in amounts)])

    def look(self, now_ps: int) -> RecentSum:
        """Set `total` and `mean_s` to those of the window that ends now, and return this object."""
        times, sums = self.times, self.sums
        end = bisect_right(times, now_ps)
        begin = bisect_right(times, now_ps - WINDOW_PS, 0, end)
        self.total = sums[end] - sums[begin]
        self.mean_s = self.total / ((end - begin) * PS_PER_SECOND) if end > begin else None
        self.since = max(times[end - 1], times[begin - 1] + WINDOW_PS)
        self.until = min(times[end], times[begin] + WINDOW_PS)
        return self


class RecentHits(Struct, eq=False, gc=False):
    """The requests that started at an instance: sorted times, and the sums of cached and of all prompt tokens up to
    each of them. `share` is valid after `since`, up to and including `until`."""

    times: list[int]
    cached: list[int]
    tokens: list[int]
    since: int = 0
    until: int = 0
    share: float = 0.0

    @classmethod
    def of(cls, starts: list[tuple[int, int, int]]) -> RecentHits:
        starts.sort()
        cached, tokens = (list(accumulate((each[place] for each in starts), initial=0)) for place in (1, 2))
        return cls([at for at, *_ in starts], cached, tokens)

    def look(self, now_ps: int) -> float:
        """Return the fraction of prompt tokens that the last requests before now found cached. Requests that start now
        do so after the decision."""
        end = bisect_left(self.times, now_ps)
        begin = max(0, end - HIT_REQUESTS)
        self.since = self.times[end - 1] if end else -NEVER
        self.until = self.times[end] if end < len(self.times) else NEVER
        tokens = self.tokens[end] - self.tokens[begin]
        self.share = (self.cached[end] - self.cached[begin]) / tokens if tokens else 0.0
        return self.share


class Arrivals(Struct):
    """The requests of one tenant: rows and times of arrival; (time, row) of admissions; ends of admitted requests."""

    rows: list[int] = []
    times: list[int] = []
    admitted: list[tuple[int, int]] = []
    ended: list[int] = []


class RouterPast:
    """The past of a run's routers. `decided` has the request of each decision, in order. `queues` says whether requests
    wait in a queue at the router. If they do, all arrivals at an instant come before all decisions at that instant.
    Otherwise, each request is routed when it arrives."""

    def __init__(self, requests: Table, decided: Sequence[int], queues: bool) -> None:
        self.queues = queues
        names = ("arrival_ps", "admitted_ps", "first_token_ps", "finished_ps", "output_tokens", "instance")
        columns = [requests.column(name) for name in names]
        self.arrival, self.admitted, *_ = columns
        self.tenant, self.slo_class = requests.column("tenant"), requests.column("slo_class")
        self.again: set[int] = set()  # indices of the decisions on requests that had been sent before
        self.sent_before: list[int] = []  # for each decision: number of other requests that had been sent
        routed: set[int] = set()
        for place, row in enumerate(decided):
            if row in routed:
                self.again.add(place)
            self.sent_before.append(len(routed))
            routed.add(row)
        ends: list[tuple[int, int]] = []
        self.left: list[int] = []  # end times of admitted requests that were never sent
        self.tenants: dict[str, Arrivals] = {}
        firsts: dict[int, list[tuple[int, int]]] = {}
        steps: dict[int, list[tuple[int, int]]] = {}
        outcome = requests.column("outcome")
        for row, (came, let_in, began, end, count, index) in enumerate(zip(*columns, strict=True)):
            arrivals = self.tenants.get(self.tenant[row])
            if arrivals is None:
                arrivals = self.tenants[self.tenant[row]] = Arrivals()
            arrivals.rows.append(row)
            arrivals.times.append(came)
            if let_in >= 0:
                arrivals.admitted.append((let_in, row))
                if end >= 0:
                    arrivals.ended.append(end)
            if end >= 0 and row in routed:
                ends.append((end, count))
            elif end >= 0 and let_in >= 0:
                self.left.append(end)
            if began >= 0:
                firsts.setdefault(index, []).append((began, began - came))
                if count > 1 and outcome[row] == "completed":
                    steps.setdefault(index, []).append((end, (end - began) // (count - 1)))
        self.left.sort()
        for arrivals in self.tenants.values():
            arrivals.admitted.sort()
            arrivals.ended.sort()
        self.let_in = sorted(pair for arrivals in self.tenants.values() for pair in arrivals.admitted)
        self.ended = sorted(end for end, _ in ends)
        self.output = RecentSum.of(ends)
        self.ttft = {index: RecentSum.of(amounts) for index, amounts in firsts.items()}
        self.tpot = {index: RecentSum.of(amounts) for index, amounts in steps.items()}
        starts: dict[int, list[tuple[int, int, int]]] = {}
        started_at = ("instance", "prefill_instance", "started_ps", "cached_tokens", "prompt_tokens")
        for at, prefill, started, cached, tokens in zip(*map(requests.column, started_at), strict=True):
            if started >= 0:
                starts.setdefault(at if prefill < 0 else prefill, []).append((started, cached, tokens))
        self.hits = {index: RecentHits.of(each) for index, each in starts.items()}

    def states(self, place: int, row: int, now_ps: int) -> tuple[RouterState, TenantState]:
        """Return the state of the routers and of the request's tenant at a decision."""
        arrival = self.arrival
        again = place in self.again
        if self.queues:
            seen, before = bisect_right(arrival, now_ps), (now_ps + 1, -1)
        else:  # requests with the same arrival time but a later row have not arrived yet
            seen, before = max(bisect_left(arrival, now_ps), row + 1), (now_ps, row)
        # whether the request had been admitted before this decision, so that the counts of admissions include it
        waited = again or -1 < self.admitted[row] < before[0]
        begin_ps = now_ps - WINDOW_PS
        inflight = self.sent_before[place] - bisect_right(self.ended, now_ps) - again
        queued = bisect_left(self.let_in, before) - self.sent_before[place] - bisect_right(self.left, now_ps)
        router = RouterState(
            inflight=inflight,
            queued=max(0, queued - (waited and not again)),
            rate=(seen - bisect_right(arrival, begin_ps)) * PS_PER_SECOND / WINDOW_PS,
            throughput=self.output.look(now_ps).total * PS_PER_SECOND / WINDOW_PS,
        )
        name = self.tenant[row]
        own = self.tenants[name]
        count = bisect_left(own.rows, seen)
        recent = count - bisect_right(own.times, begin_ps, 0, count)
        short = count - bisect_right(own.times, now_ps - SHORT_PS, 0, count)
        tenant = TenantState(
            name=name,
            slo_class=self.slo_class[row],
            requests=count,
            active=bisect_left(own.admitted, before) - bisect_right(own.ended, now_ps) - waited,
            rate=recent * PS_PER_SECOND / WINDOW_PS,
            burst=is_burst(short, recent, now_ps - own.times[0]),
        )
        return router, tenant

    def recent(self, name: str, candidates: Sequence[int], now_ps: int) -> list[float | None]:
        """Return the signal `recent_ttft` or `recent_tpot` of each candidate."""
        of_instance = (self.ttft if name == "recent_ttft" else self.tpot).get
        means: list[float | None] = []
        for index in candidates:
            recent = of_instance(index)
            if recent is None:
                means.append(None)
            elif recent.since <= now_ps < recent.until:
                means.append(recent.mean_s)
            else:
                means.append(recent.look(now_ps).mean_s)
        return means

    def hit_rates(self, candidates: Sequence[int], now_ps: int) -> list[float]:
        """Return the fraction of prompt tokens found cached at each candidate, by the requests that started last. A
        request counts at the instance that computed its prompt at last. If no request started, the list
        is empty."""
        if not self.hits:
            return []
        rates = []
        for index in candidates:
            hits = self.hits.get(index)
            if hits is None:
                rates.append(0.0)
            else:
                rates.append(hits.share if hits.since < now_ps <= hits.until else hits.look(now_ps))
        return rates
