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
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, repeat
from operator import add, mul, sub
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


def sums_in_window(times: list[int], amounts: list[int]) -> tuple[list[int], Iterator[int], Iterator[int]]:
    """Return how the amounts in a sliding window change: the times of the changes, the sum from each of them on, and
    the number of amounts. `times` are the times of the amounts, in order."""
    count = len(times)
    both = times + [at + WINDOW_PS for at in times]  # each amount enters the window, and then leaves it
    order = sorted(range(2 * count), key=both.__getitem__)
    more = amounts + [-amount for amount in amounts]
    changes = accumulate(1 if place < count else -1 for place in order)
    return _pick(both, order), accumulate(_pick(more, order)), changes


def mean_seconds(times: list[int], amounts: list[int]) -> Steps[float | None]:
    """Return the mean of the amounts in a sliding window, in seconds; None while the window has no amounts."""
    changes, sums, counts = sums_in_window(times, amounts)
    means = [total / (count * PS_PER_SECOND) if count else None for total, count in zip(sums, counts, strict=True)]
    return Steps(changes, [None, *means])


def hit_rate(times: list[int], cached: list[int], tokens: list[int]) -> Steps[float]:
    """Return the fraction of prompt tokens that the last requests at an instance found cached. The lists have, for each
    request, the time at which it starts, in order, and its cached tokens and prompt tokens. Requests that start now do
    so after the decision."""
    if len(set(times)) < len(times):  # the order of requests that start together decides which are the last
        times, cached, tokens = map(list, zip(*sorted(zip(times, cached, tokens, strict=True)), strict=True))
    found, all_tokens = (_sums_of_last(amounts, HIT_REQUESTS) for amounts in (cached, tokens))
    rates = [hits / count if count else 0.0 for hits, count in zip(found, all_tokens, strict=True)]
    return Steps([at + 1 for at in times], [0.0, *rates])


def _sums_of_last(amounts: list[int], most: int) -> list[int]:
    """Return for each amount the sum of the last `most` amounts up to this one."""
    totals = list(accumulate(amounts))
    return totals[:most] + list(map(sub, totals[most:], totals))


def _grouped(rows: Sequence[int], keys: Sequence[int]) -> dict[int, list[int]]:
    """Return the rows with each key, in the same order."""
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for row in rows:
        groups[keys[row]].append(row)
    return groups


def _pick(column: Sequence[Value], rows: Sequence[int]) -> list[Value]:
    return [column[row] for row in rows]


NO_LATENCY: Final = Steps[float | None]([], [None])
NO_HITS: Final = Steps([], [0.0])


class Arrivals(Struct):
    """The requests of one tenant: rows and times of arrival; admissions, each as its time multiplied by the number of
    all requests, plus its row; ends of admitted requests."""

    rows: Sequence[int]
    times: list[int]
    admitted: list[int]
    ended: list[int] = []


class RouterPast:
    """The past of a run's routers. `decided` has the request of each decision, in order. `queues` says whether requests
    wait in a queue at the router. If they do, all arrivals at an instant come before all decisions at that instant.
    Otherwise, each request is routed when it arrives."""

    def __init__(self, requests: Table, decided: Sequence[int], queues: bool) -> None:
        self.queues = queues
        self.count = len(requests)
        self.arrival, self.admitted = list(requests.column("arrival_ps")), list(requests.column("admitted_ps"))
        self.tenant, self.slo_class = list(requests.column("tenant")), list(requests.column("slo_class"))
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
        arrival, admitted, total = self.arrival, self.admitted, self.count
        finished, tokens = (list(requests.column(name)) for name in ("finished_ps", "output_tokens"))
        self.by_end = by_end = [row for row in sorted(range(total), key=finished.__getitem__) if finished[row] >= 0]
        sent = by_end if len(routed) == total else [row for row in by_end if row in routed]
        self.ended = _pick(finished, sent)  # end times of requests that were sent
        # end times of admitted requests that were never sent
        unsent = [row for row in by_end if row not in routed] if len(sent) < len(by_end) else []
        self.left = [finished[row] for row in unsent if admitted[row] >= 0]
        changes, sums, _ = sums_in_window(self.ended, _pick(tokens, sent))
        self.throughput = Steps(changes, [0.0, *(tokens * PS_PER_SECOND / WINDOW_PS for tokens in sums)])
        self.tenants: dict[str, Arrivals] = {}
        rows_of: dict[str, Sequence[int]] = dict.fromkeys(self.tenant, range(total))
        self.alone = len(rows_of) == 1  # whether all requests have the same tenant
        if not self.alone:
            groups: dict[str, list[int]] = {name: [] for name in rows_of}
            for row, name in enumerate(self.tenant):
                groups[name].append(row)
            rows_of = {**groups}
        for name, rows in rows_of.items():
            keys = map(add, map(mul, _pick(admitted, rows), repeat(total)), rows)
            let_in = sorted(key for key in keys if key >= 0)
            self.tenants[name] = Arrivals(rows, arrival if self.alone else _pick(arrival, rows), let_in)
        for row in by_end:
            if admitted[row] >= 0:
                self.tenants[self.tenant[row]].ended.append(finished[row])
        self.let_in = sorted(chain.from_iterable(own.admitted for own in self.tenants.values()))
        self.at_once = not self.queues and admitted == arrival  # whether requests are admitted when they arrive
        self.same_ends = all(own.ended == self.ended for own in self.tenants.values())
        self.finished, self.tokens = finished, tokens

    def _read_latencies(self, requests: Table) -> None:
        """Find the recent latencies and the hit rates of each instance."""
        names = (
            "first_token_ps", "outcome", "instance", "prefill_instance", "started_ps", "cached_tokens", "prompt_tokens",
        )  # fmt: skip
        first, outcome, instance, prefill, started, cached, prompt = (list(requests.column(name)) for name in names)
        arrival, finished, tokens = self.arrival, self.finished, self.tokens
        in_order = sorted(range(self.count), key=first.__getitem__)
        firsts = _grouped([row for row in in_order if first[row] >= 0], instance)
        whole = [row for row in self.by_end if tokens[row] > 1 and outcome[row] == "completed" and first[row] >= 0]
        self.recent = {  # the signals of each instance
            "recent_ttft": {
                index: mean_seconds(began := _pick(first, rows), list(map(sub, began, _pick(arrival, rows))))
                for index, rows in firsts.items()
            },
            "recent_tpot": {
                index: mean_seconds(
                    _pick(finished, rows), [(finished[row] - first[row]) // (tokens[row] - 1) for row in rows]
                )
                for index, rows in _grouped(whole, instance).items()
            },
        }
        begun = [row for row in sorted(range(self.count), key=started.__getitem__) if started[row] >= 0]
        computed_by = [index if one < 0 else one for index, one in zip(instance, prefill, strict=True)]
        self.hits = {
            index: hit_rate(*(_pick(column, rows) for column in (started, cached, prompt)))
            for index, rows in _grouped(begun, computed_by).items()
        }

    def states(
        self, places: Sequence[int], rows: Sequence[int], now_ps: Sequence[int]
    ) -> tuple[list[RouterState], list[TenantState]]:
        """Return the states of the routers and of the requests' tenants at decisions, in order of time. `places` are
        the indices of the decisions, `rows` their requests."""
        arrival, admitted, total = self.arrival, self.admitted, self.count
        again = list(map(self.again.__contains__, places)) if self.again else [False] * len(places)
        before: list[int] = []
        # `let_in`: number of admissions; `waited`: whether this request had been admitted before this decision, so that
        # the number includes it
        let_in: Sequence[int]
        if self.at_once and _pick(arrival, rows) == now_ps:  # as usual, all requests are routed when they arrive
            seen, let_in, waited = [row + 1 for row in rows], rows, again
        else:
            if self.queues:
                seen = list(map(bisect_right, repeat(arrival), now_ps))
                before = [(now + 1) * total for now in now_ps]
            else:  # requests with the same arrival time but a later row have not arrived yet
                seen = [
                    row + 1 if arrival[row] == now or (first := bisect_left(arrival, now)) <= row else first
                    for row, now in zip(rows, now_ps, strict=True)
                ]
                before = [now * total + row for now, row in zip(now_ps, rows, strict=True)]
            let_in = list(map(bisect_left, repeat(self.let_in), before))
            last = 1 if self.queues else 0
            waited = [
                more or -1 < admitted[row] < now + last for more, row, now in zip(again, rows, now_ps, strict=True)
            ]
        old = list(map(bisect_right, repeat(arrival), [now - WINDOW_PS for now in now_ps]))
        ended = list(map(bisect_right, repeat(self.ended), now_ps))
        routers = [
            RouterState(
                sent - over - more,
                queued if (queued := known - sent - left - (late and not more)) > 0 else 0,
                (count - past) * PS_PER_SECOND / WINDOW_PS,
                throughput,
            )
            for sent, over, more, known, left, late, count, past, throughput in zip(
                _pick(self.sent_before, places),
                ended,
                again,
                let_in,
                map(bisect_right, repeat(self.left), now_ps) if self.left else [0] * len(places),
                waited,
                seen,
                old,
                self.throughput.at(now_ps),
                strict=True,
            )
        ]
        if self.alone and self.same_ends:
            return routers, self._tenants(rows, now_ps, [seen, let_in, ended, waited, old])
        return routers, self._tenants(rows, now_ps, self._of_tenants(rows, now_ps, seen, before, waited))

    def _of_tenants(
        self, rows: Sequence[int], now_ps: Sequence[int], seen: list[int], before: list[int], waited: list[bool]
    ) -> list[Sequence[int]]:
        """Return for each request's tenant the numbers of its requests that have arrived, were admitted and have ended,
        `waited`, and the number of requests before the window. Without `before`, every request is admitted when it
        arrives."""
        owns = [self.tenants[self.tenant[row]] for row in rows]
        counts = list(map(bisect_left, [own.rows for own in owns], seen))
        let_in = (
            list(map(bisect_left, [own.admitted for own in owns], before))
            if before
            else [count - 1 for count in counts]
        )
        ended = list(map(bisect_right, [own.ended for own in owns], now_ps))
        begins = [now - WINDOW_PS for now in now_ps]
        old = list(map(bisect_right, [own.times for own in owns], begins, repeat(0), counts))
        return [counts, let_in, ended, waited, old]

    def _tenants(
        self, rows: Sequence[int], now_ps: Sequence[int], numbers: Sequence[Sequence[int]]
    ) -> list[TenantState]:
        """Return the states of the requests' tenants. `numbers` has the columns of `_of_tenants`."""
        names = _pick(self.tenant, rows)
        times = [self.tenants[name].times for name in names]
        shortly = [now - SHORT_PS for now in now_ps]
        return [
            TenantState(
                name,
                slo_class,
                count,
                let_in - ended - late,
                (count - old) * PS_PER_SECOND / WINDOW_PS,
                is_burst(count - older, count - old, now - own[0]),
            )
            for name, slo_class, count, let_in, ended, late, old, older, now, own in zip(
                names,
                _pick(self.slo_class, rows),
                *numbers,
                map(bisect_right, times, shortly, repeat(0), numbers[0]),
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
