"""What the routers knew of their past at a decision: totals, the request's tenant, and recent latencies. All of this is
computed from the columns of the requests, so neither a run nor a gateway has to record it.

The definitions are those of the views (`Totals`, `TenantView`, `Recent`), but over all routers of the run. The request
that is being routed is neither queued nor in flight.

Many decisions are computed at a time. Most work is done by C functions over lists, because a run may have millions of
decisions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, chain, repeat
from operator import neg, sub
from typing import Final, Generic, TypeVar

from msgspec import Struct

from headway.results.table import Table
from headway.types import PS_PER_SECOND
from headway.views.cluster import SHORT_PS, is_burst
from headway.views.window import WINDOW_PS

HIT_REQUESTS: Final = 100  # number of requests that the hit rate covers, as the signal `hit_rate` defines it
Value = TypeVar("Value")


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


class Steps(Struct, Generic[Value], eq=False, gc=False):
    """A value that changes at certain times. `values` has one entry more than `times`: its first entry is the value
    before the first change."""

    times: list[int]
    values: list[Value]

    def at(self, now_ps: Sequence[int]) -> list[Value]:
        """Return the value at each of these times, which must not decrease. Changes at a time include that time."""
        times = self.times
        first = bisect_right(times, now_ps[0])
        last = bisect_right(times, now_ps[-1], first)
        # for each change in this stretch: the index of the first of these times that it includes
        changes = [*map(bisect_left, repeat(now_ps), times[first:last]), len(now_ps)]
        counts = map(sub, changes, chain((0,), changes))
        return list(chain.from_iterable(map(repeat, self.values[first : last + 1], counts)))


def sums_in_window(amounts: list[tuple[int, int]]) -> tuple[list[int], list[int], list[int]]:
    """Return how the amounts in a sliding window change: the times of the changes, the sum from each of them on, and
    the number of amounts. `amounts` are pairs of time and amount; sort them."""
    amounts.sort()
    times = [at for at, _ in amounts]
    times += [at + WINDOW_PS for at in times]  # each amount enters the window, and then leaves it
    more = [amount for _, amount in amounts]
    more += map(neg, more[:])
    order = sorted(range(len(times)), key=times.__getitem__)
    changes = list(map(times.__getitem__, order))
    counts = accumulate(map(([1] * len(amounts) + [-1] * len(amounts)).__getitem__, order))
    return changes, list(accumulate(map(more.__getitem__, order))), list(counts)


def mean_seconds(amounts: list[tuple[int, int]]) -> Steps[float | None]:
    """Return the mean of the amounts in a sliding window, in seconds; None while the window has no amounts."""
    changes, sums, counts = sums_in_window(amounts)
    means = [total / (count * PS_PER_SECOND) if count else None for total, count in zip(sums, counts, strict=True)]
    return Steps(changes, [None, *means])


def hit_rate(starts: list[tuple[int, int, int]]) -> Steps[float]:
    """Return the fraction of prompt tokens that the last requests at an instance found cached. `starts` has the time,
    the cached tokens and the prompt tokens of each. Requests that start now do so after the decision."""
    starts.sort()
    cached, tokens = (list(accumulate((each[place] for each in starts), initial=0)) for place in (1, 2))
    rates = [0.0]
    for end in range(1, len(starts) + 1):
        begin = end - HIT_REQUESTS if end > HIT_REQUESTS else 0
        count = tokens[end] - tokens[begin]
        rates.append((cached[end] - cached[begin]) / count if count else 0.0)
    return Steps([at + 1 for at, *_ in starts], rates)


NO_LATENCY: Final = Steps[float | None]([], [None])
NO_HITS: Final = Steps([], [0.0])


class Arrivals(Struct):
    """The requests of one tenant: rows and times of arrival; admissions, each as its time multiplied by the number of
    all requests, plus its row; ends of admitted requests."""

    rows: list[int] = []
    times: list[int] = []
    admitted: list[int] = []
    ended: list[int] = []


class RouterPast:
    """The past of a run's routers. `decided` has the request of each decision, in order. `queues` says whether requests
    wait in a queue at the router. If they do, all arrivals at an instant come before all decisions at that instant.
    Otherwise, each request is routed when it arrives."""

    def __init__(self, requests: Table, decided: Sequence[int], queues: bool) -> None:
        self.queues = queues
        self.count = len(requests)
        self.arrival, self.admitted = list(requests.column("arrival_ps")), requests.column("admitted_ps")
        self.tenant, self.slo_class = list(requests.column("tenant")), requests.column("slo_class")
        self.again: set[int] = set()  # indices of the decisions on requests that had been sent before
        self.sent_before: Sequence[int] = range(len(decided))  # for each decision: requests that had been sent before
        routed = set(decided)
        if len(routed) < len(decided):
            self._read_repeats(decided)
        self._read_ends(requests, routed)
        self._read_latencies(requests)

    def _read_repeats(self, decided: Sequence[int]) -> None:
        """Find the decisions on requests that had been sent before, such as retries."""
        routed: set[int] = set()
        sent_before = []
        for place, row in enumerate(decided):
            if row in routed:
                self.again.add(place)
            sent_before.append(len(routed))
            routed.add(row)
        self.sent_before = sent_before

    def _read_ends(self, requests: Table, routed: set[int]) -> None:
        ends: list[tuple[int, int]] = []
        self.left: list[int] = []  # end times of admitted requests that were never sent
        self.tenants: dict[str, Arrivals] = {}
        columns = [requests.column(name) for name in ("finished_ps", "output_tokens")]
        rows = zip(self.tenant, self.arrival, self.admitted, *columns, strict=True)
        tenants, total = self.tenants, self.count
        for row, (name, came, let_in, end, count) in enumerate(rows):
            own = tenants.get(name)
            if own is None:
                own = tenants[name] = Arrivals()
            own.rows.append(row)
            own.times.append(came)
            if let_in >= 0:
                own.admitted.append(let_in * total + row)
                if end >= 0:
                    own.ended.append(end)
            if end >= 0 and row in routed:
                ends.append((end, count))
            elif end >= 0 and let_in >= 0:
                self.left.append(end)
        self.left.sort()
        for own in tenants.values():
            own.admitted.sort()
            own.ended.sort()
        self.let_in = sorted(chain.from_iterable(own.admitted for own in tenants.values()))
        changes, sums, _ = sums_in_window(ends)
        self.ended = [end for end, _ in ends]  # now sorted
        self.throughput = Steps(changes, [0.0, *(tokens * PS_PER_SECOND / WINDOW_PS for tokens in sums)])

    def _read_latencies(self, requests: Table) -> None:
        firsts: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        steps: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        starts: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        names = (
            "first_token_ps", "finished_ps", "output_tokens", "outcome", "instance", "prefill_instance", "started_ps",
            "cached_tokens", "prompt_tokens",
        )  # fmt: skip
        rows = zip(self.arrival, *map(requests.column, names), strict=True)
        for came, began, end, count, outcome, index, prefill, started, cached, tokens in rows:
            if began >= 0:
                firsts[index].append((began, began - came))
                if count > 1 and outcome == "completed":
                    steps[index].append((end, (end - began) // (count - 1)))
            if started >= 0:
                starts[index if prefill < 0 else prefill].append((started, cached, tokens))
        self.recent = {  # the signals of each instance
            "recent_ttft": {index: mean_seconds(amounts) for index, amounts in firsts.items()},
            "recent_tpot": {index: mean_seconds(amounts) for index, amounts in steps.items()},
        }
        self.hits = {index: hit_rate(each) for index, each in starts.items()}

    def states(
        self, places: Sequence[int], rows: Sequence[int], now_ps: Sequence[int]
    ) -> tuple[list[RouterState], list[TenantState]]:
        """Return the states of the routers and of the requests' tenants at decisions, in order of time. `places` are
        the indices of the decisions, `rows` their requests."""
        arrival, admitted, count = self.arrival, self.admitted, self.count
        again = list(map(self.again.__contains__, places))
        if self.queues:
            seen = list(map(bisect_right, repeat(arrival), now_ps))
            before = [(now + 1) * count for now in now_ps]
        else:  # requests with the same arrival time but a later row have not arrived yet
            seen = [
                row + 1 if arrival[row] == now or (first := bisect_left(arrival, now)) <= row else first
                for row, now in zip(rows, now_ps, strict=True)
            ]
            before = [now * count + row for now, row in zip(now_ps, rows, strict=True)]
        # whether the request had been admitted before this decision, so that the counts of admissions include it
        last = 1 if self.queues else 0
        waited = [more or -1 < admitted[row] < now + last for more, row, now in zip(again, rows, now_ps, strict=True)]
        begins = [now - WINDOW_PS for now in now_ps]
        routers = [
            RouterState(
                inflight=sent - ended - more,
                queued=queued if (queued := let_in - sent - left - (late and not more)) > 0 else 0,
                rate=(all_seen - old) * PS_PER_SECOND / WINDOW_PS,
                throughput=throughput,
            )
            for sent, ended, more, let_in, left, late, all_seen, old, throughput in zip(
                map(self.sent_before.__getitem__, places),
                map(bisect_right, repeat(self.ended), now_ps),
                again,
                map(bisect_left, repeat(self.let_in), before),
                map(bisect_right, repeat(self.left), now_ps),
                waited,
                seen,
                map(bisect_right, repeat(arrival), begins),
                self.throughput.at(now_ps),
                strict=True,
            )
        ]
        return routers, self._tenants(rows, now_ps, seen, before, waited)

    def _tenants(
        self, rows: Sequence[int], now_ps: Sequence[int], seen: list[int], before: list[int], waited: list[bool]
    ) -> list[TenantState]:
        names = list(map(self.tenant.__getitem__, rows))
        owns = list(map(self.tenants.__getitem__, names))
        times = [own.times for own in owns]
        counts = list(map(bisect_left, [own.rows for own in owns], seen))
        begins, shortly = [now - WINDOW_PS for now in now_ps], [now - SHORT_PS for now in now_ps]
        return [
            TenantState(
                name=name,
                slo_class=slo_class,
                requests=count,
                active=let_in - ended - late,
                rate=(count - old) * PS_PER_SECOND / WINDOW_PS,
                burst=is_burst(count - older, count - old, now - own[0]),
            )
            for name, slo_class, count, let_in, ended, late, old, older, now, own in zip(
                names,
                map(self.slo_class.__getitem__, rows),
                counts,
                map(bisect_left, [own.admitted for own in owns], before),
                map(bisect_right, [own.ended for own in owns], now_ps),
                waited,
                map(bisect_right, times, begins, repeat(0), counts),
                map(bisect_right, times, shortly, repeat(0), counts),
                now_ps,
                times,
                strict=True,
            )
        ]

    def recent_of(self, signal: str, instance: int, now_ps: Sequence[int]) -> list[float | None]:
        """Return the signal `recent_ttft` or `recent_tpot` of an instance at these times."""
        return self.recent[signal].get(instance, NO_LATENCY).at(now_ps)

    def hit_rates(self, instance: int, now_ps: Sequence[int]) -> list[float]:
        """Return the fraction of prompt tokens found cached at an instance, by the requests that started last. A
        request counts at the instance that computed its prompt at last."""
        return self.hits.get(instance, NO_HITS).at(now_ps)
