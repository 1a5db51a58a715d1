"""Tenant burst: the backlog that one tenant's burst leaves makes requests of other tenants late.

**Bursts.** The time from the first counted arrival to the last is cut into at most `WINDOWS` windows of at least one
second. A tenant bursts in a window if it sends at least `FEWEST` requests, and at least `TIMES` times the median of its
windows. The requests of consecutive such windows are one burst.

**Backlog.** The work of a request is the number of tokens that its instance computes: uncached prompt tokens and output
tokens. The backlog B of an instance is the work of all requests that wait for it or run there. The usual backlog L is
the 10th percentile of B at the arrivals of requests that met their targets. Each tenant has a number U: the work of its
bursts that remains at the instance. Each request of a burst adds its work to U. The sum of all U never exceeds B − L:
if B falls, all U shrink by the same factor. So a burst counts until the backlog is back at its usual level. This holds
even after the burst's own requests are done, because the requests behind them are still late.

**Blame.** A late request missed a target, or was rejected, timed out or failed. Without targets, only the last three
count. A late request blames each other tenant by the mean of U/B over the request's wait, at the instance where the
request waits. If the request missed its TTFT or got no token, the wait lasts from arrival to first token, otherwise to
its end. If no instance received the request, U and B are computed for all instances together. The blame on a tenant is
the sum of these means over the late requests of other tenants.

**Finding.** A tenant has a finding if three conditions hold. The blame is at least `LEAST` requests. The blame is at
least `LEAST_SHARE` of the late requests of other tenants. If the tenant's bursts are to blame for at least
`LEAST_OF_ALL` of all late requests, in the same way and including its own, then late requests of other tenants that are
blamed on the bursts of those tenants themselves do not count here. The third condition compares two groups of other
tenants' requests: those that arrive while this tenant's U is above 0, and those that arrive while every U is 0. The
requests of the first group are late at least `LIFT` times as often as those of the second. Severity: the blame divided
by the number of late requests of other tenants.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from headway.results.backlog_sweep import Period, Sweep
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import (
    CAUSE,
    MOST,
    Observed,
    busiest,
    duration,
    examples,
    moment,
    percent,
    runs,
    seconds,
)
from headway.results.findings.policy_remedies import fair_queue, limit_burst, use
from headway.results.records import ADMISSION, Blame, Finding, Suggestion, group_by
from headway.results.sample import MET, MISSED, UNCOUNTED
from headway.types import PS_PER_SECOND

KIND: Final = "tenant_burst"
ROLE: Final = CAUSE
AREA: Final = "admission"
ORDER: Final = 13
WINDOWS: Final = 200
SHORTEST_PS: Final = PS_PER_SECOND
TIMES: Final = 3
FEWEST: Final = 10
LEAST: Final = 5
LEAST_SHARE: Final = 0.15
LEAST_OF_ALL: Final = 0.25
LIFT: Final = 1.5
ANYWHERE: Final = -1  # stands for all instances together: the place of requests that no instance received


class Burst(NamedTuple):
    """The bursts of one tenant."""

    rows: frozenset[int]
    times: int  # number of bursts
    window_ps: int
    usual: float  # median number of the tenant's requests per window
    at_ps: int  # arrival of the first request of the largest burst
    length_ps: int  # total length of the windows of the largest burst
    largest: int  # number of requests in the largest burst


class Stay(NamedTuple):
    begin: int
    end: int
    row: int


class Suffered(NamedTuple):
    """What a tenant's bursts did to the other tenants."""

    tenant: int
    blame: float
    late: int  # number of late requests of other tenants
    inside: int  # number of requests of other tenants that arrived while work of the bursts remained
    late_inside: int
    outside: int  # number of requests of other tenants that arrived while no work of any burst remained
    late_outside: int
    explains: float  # fraction of all late requests, also of this tenant, that is blamed on the bursts
    own_of_others: float  # late requests of other tenants that are blamed on the bursts of those tenants themselves

    @property
    def share(self) -> float:
        return self.blame / self.late

    @property
    def matters(self) -> bool:
        inside, outside = self.late_inside / max(1, self.inside), self.late_outside / max(1, self.outside)
        several = self.explains >= LEAST_OF_ALL  # whether it is one of several bursts that share most of the loss
        others = self.late - self.own_of_others if several else self.late
        return self.blame >= max(LEAST, LEAST_SHARE * others) and inside >= LIFT * outside


def find(run: Observed) -> list[Finding]:
    found = bursts(run)
    if not found or MISSED not in run.missed:
        return []
    places = _sweep(run, found)
    suffered = [_suffered(run, tenant, places) for tenant in found]
    ranked = sorted((each for each in suffered if each.matters), key=lambda each: (-each.share, each.tenant))
    return [_finding(run, each, found[each.tenant], places, len(ranked)) for each in ranked[:MOST]]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    usual = finding.evidence["usual_requests"] / finding.evidence["window_s"]
    yield from limit_burst(run, finding.evidence["tenant"], usual)
    yield from more_replicas(run, finding)
    yield from fair_queue(run)
    yield from use(run, ADMISSION, "tenant-fair", ", which limits each tenant to its part of the requests in flight")


def bursts(run: Observed) -> dict[int, Burst]:
    """Return the bursts of each tenant that has bursts. If there is only one tenant, return an empty dict."""
    requests, warmup, count = run.requests, run.warmup, len(run.requests)
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row in range(warmup, count):
        rows_of[requests.tenant[row]].append(row)
    if len(rows_of) < 2:
        return {}
    begin = requests.arrival_ps[warmup]
    length = requests.arrival_ps[count - 1] - begin
    width = max(SHORTEST_PS, length // WINDOWS + 1)
    windows = length // width + 1
    found = {}
    for tenant, rows in sorted(rows_of.items()):
        sent = Counter((requests.arrival_ps[row] - begin) // width for row in rows)
        usual = median([*sent.values(), *([0] * (windows - len(sent)))])
        high = {window: number for window, number in sent.items() if number >= max(FEWEST, TIMES * usual)}
        if high:
            numbers = sorted(high)
            series = [numbers[start:end] for start, end in runs(numbers, 1)]
            largest = max(series, key=lambda series: sum(map(high.__getitem__, series)))
            inside = [row for row in rows if (requests.arrival_ps[row] - begin) // width in high]
            first = bisect_left(inside, begin + largest[0] * width, key=requests.arrival_ps.__getitem__)
            found[tenant] = Burst(
                rows=frozenset(inside),
                times=len(series),
                window_ps=width,
                usual=usual,
                at_ps=requests.arrival_ps[inside[first]],
                length_ps=len(largest) * width,
                largest=sum(map(high.__getitem__, largest)),
            )
    return found


# --- the backlogs -----------------------------------------------------------------------------------------------------


Rows = dict[int, list[int]]


class Place(NamedTuple):
    """The backlog of one instance, or of all instances together, and the requests that were first sent there. The lists
    omit requests of the warm-up and requests in flight."""

    sweep: Sweep
    arrived: list[int]  # rows of the requests, in order of arrival
    late: list[int]  # rows of the late requests among them
    arrived_of: Rows  # tenant -> its rows in `arrived`
    late_of: Rows


def _sweep(run: Observed, bursts: dict[int, Burst]) -> dict[int, Place]:
    stays: defaultdict[int, list[Stay]] = defaultdict(list)
    arrived: defaultdict[int, list[int]] = defaultdict(list)
    for row in range(len(run.requests)):
        parts = _stays(run, row)
        for place, stay in parts:
            stays[place].append(stay)
        if run.missed[row] != UNCOUNTED:
            arrived[parts[0][0]].append(row)
    if any(run.missed[row] == MISSED for row in arrived[ANYWHERE]):
        stays[ANYWHERE] = [stay for place in sorted(stays) for stay in stays[place]]
    else:
        stays.pop(ANYWHERE, None)
    columns = run.requests.select("prompt_tokens", "cached_tokens", "output_tokens")
    work = [prompt - cached + output for prompt, cached, output in columns]
    burst_of = {row: tenant for tenant, burst in bursts.items() for row in burst.rows}
    places = {}
    for place in sorted(stays):
        sweep = _sweep_place(run, place, stays[place], work, burst_of)
        late = [row for row in arrived[place] if run.missed[row] == MISSED]
        by_tenant = [group_by(rows, run.requests.tenant.__getitem__) for rows in (arrived[place], late)]
        places[place] = Place(sweep, arrived[place], late, *by_tenant)
    return places


def _stays(run: Observed, row: int) -> list[tuple[int, Stay]]:
    """Return the instances where a request waited or ran, and when. A request that was handed over has two stays: at
    its prefill instance, then at its decode instance."""
    requests = run.requests
    begin, handed, end = requests.arrival_ps[row], requests.handed_ps[row], requests.finished_ps[row]
    end = end if end >= 0 else run.ended_ps
    instance, prefill = requests.instance[row], requests.prefill_instance[row]
    if instance < 0 or prefill < 0:
        return [(max(instance, ANYWHERE), Stay(begin, end, row))]
    if handed < 0:
        return [(prefill, Stay(begin, end, row))]
    return [(prefill, Stay(begin, handed, row)), (instance, Stay(handed, end, row))]


BEGIN, WAIT, END, LEAVE = 2, 3, 1, 0  # kinds of events; if times are equal, the lowest number is handled first


def _sweep_place(run: Observed, place: int, stays: list[Stay], work: list[int], burst_of: dict[int, int]) -> Sweep:
    requests = run.requests
    events = []
    for begin, end, row in stays:
        if end > begin:
            events += [(begin, BEGIN, row, 0), (end, END, row, 0)]
        # If an instance received the late request, only the backlog of this instance is to blame.
        if run.missed[row] == MISSED and (place != ANYWHERE or requests.instance[row] < 0):
            until = _wait_end(run, row)
            length = until - requests.arrival_ps[row]
            if not length:
                events.append((begin, WAIT, row, 0))
            elif until > begin:
                events += [(begin, WAIT, row, length), (min(end, until), LEAVE, row, length)]
    events.sort()
    sweep = Sweep(_usual_backlog(run, events, work))
    for at, kind, row, length in events:
        sweep.advance(at)
        if kind == BEGIN:
            sweep.add_work(work[row], burst_of.get(row))
        elif kind == END:
            sweep.remove_work(work[row])
        elif kind == WAIT:
            sweep.begin_wait(row, requests.tenant[row], length)
        else:
            sweep.end_wait(row, requests.tenant[row], length)
    sweep.close()
    return sweep


def _usual_backlog(run: Observed, events: list[tuple[int, int, int, int]], work: list[int]) -> int:
    """Return the 10th percentile of the backlog at the arrivals of requests that met their targets. If no request met
    its targets, return 0."""
    backlog, levels = 0, []
    for _, kind, row, _ in events:
        if kind == BEGIN:
            if run.missed[row] == MET:
                levels.append(backlog)
            backlog += work[row]
        elif kind == END:
            backlog -= work[row]
    return sorted(levels)[len(levels) // 10] if levels else 0


def _wait_end(run: Observed, row: int) -> int:
    first, end = run.requests.first_token_ps[row], run.requests.finished_ps[row]
    if first >= 0 and row in run.missed_ttft:
        return first
    return end if end >= 0 else run.ended_ps


# --- the finding ------------------------------------------------------------------------------------------------------


def _suffered(run: Observed, tenant: int, places: dict[int, Place]) -> Suffered:
    arrived, late = Counter[str](), Counter[str]()
    for place in places.values():
        times = {"inside": place.sweep.periods[tenant], "any": place.sweep.spans, "all": [(0, run.ended_ps + 1)]}
        own, own_late = place.arrived_of.get(tenant, []), place.late_of.get(tenant, [])
        for word, periods in times.items():
            for period in periods:
                arrived[word] += len(_within(run, place.arrived, period)) - len(_within(run, own, period))
                late[word] += len(_within(run, place.late, period)) - len(_within(run, own_late, period))
    blame = sum(place.sweep.blame[tenant] for place in places.values())
    itself = sum(place.sweep.own[tenant] for place in places.values())
    return Suffered(
        tenant=tenant,
        blame=blame,
        late=max(1, late["all"]),
        inside=arrived["inside"],
        late_inside=late["inside"],
        outside=arrived["all"] - arrived["any"],
        late_outside=late["all"] - late["any"],
        explains=min(1.0, (blame + itself) / run.missed.count(MISSED)),
        own_of_others=sum(
            blame for place in places.values() for other, blame in place.sweep.own.items() if other != tenant
        ),
    )


def _within(run: Observed, rows: list[int], period: Period) -> range:
    """Return the positions in `rows` of the requests that arrived within a period."""
    begin, end = (bisect_left(rows, at, key=run.requests.arrival_ps.__getitem__) for at in period)
    return range(begin, end)


def _finding(run: Observed, each: Suffered, burst: Burst, places: dict[int, Place], total: int) -> Finding:
    name = run.tenants[each.tenant]
    word = "losses" if run.sample.good is None else "SLO misses"
    periods: list[Period] = [period for place in places.values() for period in place.sweep.periods[each.tenant]]
    longest = max(end - begin for begin, end in periods)
    shares = [
        (place.sweep.shares[row], row)
        for place in places.values()
        for period in place.sweep.periods[each.tenant]
        for row in map(place.late.__getitem__, _within(run, place.late, period))
        if run.requests.tenant[row] != each.tenant and row in place.sweep.shares
    ]
    blame_at = {index: place.sweep.blame[each.tenant] for index, place in places.items() if index != ANYWHERE}
    return Finding(
        kind=KIND,
        at_ps=min(begin for begin, _ in periods),
        until_ps=max(end for _, end in periods),
        severity=min(1.0, each.share),
        count=each.late_inside,
        title=(
            f"Bursts of tenant {name} caused {percent(each.share)} of the other tenants' {word} (about "
            f"{each.blame:,.0f} of {each.late:,}): the largest burst had {burst.largest:,} requests within "
            f"{duration(burst.length_ps)} at {moment(burst.at_ps)}, and the work that a burst left took up to "
            f"{duration(longest)}."
        ),
        requests=examples(shares),
        instances=busiest({index: blame for index, blame in blame_at.items() if blame > 0}),
        evidence={
            "tenant": name,
            "share": each.share,
            "blamed": each.blame,
            "late": each.late,
            "bursts": burst.times,
            "window_s": seconds(burst.window_ps),
            "usual_requests": burst.usual,
            "largest_requests": burst.largest,
            "largest_at_s": seconds(burst.at_ps),
            "longest_s": seconds(longest),
            "requests_inside": each.inside,
            "late_inside": each.late_inside,
            "requests_outside": each.outside,
            "late_outside": each.late_outside,
            "of_this_kind": total,
        },
        explains=each.explains,
        blames=[Blame("tenant", name, min(1.0, each.share))],
    )
