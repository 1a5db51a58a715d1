"""Adapter thrashing: instances load adapters again and again, because they have fewer slots than adapters in use.

An instance thrashes if it loads adapters at least `AGAIN` times as often as it has different adapters among its
requests. A load lengthens the step in which a request enters. A request *loads* if its prefill takes longer than usual
for its uncached tokens by at least `LONG` of the load time; the usual time is the 10th percentile per token.

A late request at such an instance explains this finding by the parts of its loss:

* its wait for an adapter slot (queue.adapter), in full;
* its own prefill if it loads, for the load time as a fraction of the prefill time;
* the rest of its wait, and its decode, for the fraction of the time in which the instance loads adapters.

There is one finding if it explains at least `LEAST` of the loss. Severity: the loss that it explains, as a fraction of
the counted requests.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, cast

from headway.config.units import duration_ps
from headway.results.findings.cluster_remedies import more_replicas, set_to
from headway.results.findings.observed import CAUSE, Observed, busiest, duration, examples, many, percent
from headway.results.findings.policy_remedies import adapter_affinity
from headway.results.loss import tokens_of
from headway.results.occupancy import WAITED_FOR, Occupancy, Weights
from headway.results.records import Finding, Suggestion

KIND: Final = "adapter_thrashing"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 22
AGAIN: Final = 3
LONG: Final = 0.8
QUICK: Final = 10  # one request in this many is at least as quick as the usual time
LEAST: Final = 0.1
FEWEST: Final = 5


def find(run: Observed) -> list[Finding]:
    thrashing = _thrashing(run)
    if not thrashing or len(run.loss.late) < FEWEST:
        return []
    occupancy = Occupancy(run.requests, run.requests.tenant, (), run.waits.left_ps, run.ended_ps)
    claims: dict[int, float] = {}
    for instance, load in thrashing.items():
        own = _loading(run, instance, load)
        spans = Weights([(*span, 1.0, 0) for span in own.values()], ())
        for row in run.loss.late:
            if run.home(row) == instance and (claim := _claim(run, occupancy, row, own, spans, load)) > 0:
                claims[row] = claim
    explains = run.loss.claim(claims)
    if explains < LEAST or len(claims) < FEWEST:
        return []
    return [_finding(run, thrashing, claims, explains)]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    reason = ", so that instances keep the adapters of their requests"
    slots = min(finding.evidence["adapters"], 2 * finding.evidence["slots"])
    yield from adapter_affinity(run)
    yield from set_to(run, finding, "adapters.slots", slots, reason)
    yield from more_replicas(run, finding)


def names_of(run: Observed) -> Sequence[str]:
    """Return the name of each request's adapter, or an empty string."""
    return cast(Sequence[str], run.requests.adapter)


def _thrashing(run: Observed) -> dict[int, int]:
    """Return the instances that load adapters again and again, and the time of one load."""
    found = {}
    for index, instance in run.result.instances().items():
        loads = instance.get("adapter_loads") or 0
        settings = run.engine(index).get("adapters") or {}
        used = {names_of(run)[row] for row in run.stays[index].rows} - {""}
        if loads and loads >= AGAIN * len(used) and settings.get("load_time"):
            found[index] = duration_ps(settings["load_time"], "load_time")
    return found


def _loading(run: Observed, instance: int, load: int) -> dict[int, tuple[int, int]]:
    """Return the requests of an instance that loaded an adapter, and when: the end of their prefill is the end."""
    requests = run.requests
    times = {}
    for row in run.stays[instance].rows:
        end = requests.handed_ps[row] if requests.handed_ps[row] >= 0 else requests.first_token_ps[row]
        if requests.started_ps[row] >= 0 and end >= 0 and run.home(row) == instance:
            times[row] = end - requests.started_ps[row]
    tokens = dict(zip(times, tokens_of(requests, list(times), "prefill"), strict=True))
    rates = sorted(time / tokens[row] for row, time in times.items())
    usual = rates[len(rates) // QUICK] if rates else 0.0
    return {
        row: (requests.started_ps[row], requests.started_ps[row] + min(time, load))
        for row, time in times.items()
        if names_of(run)[row] and time - usual * tokens[row] >= LONG * load
    }


def _claim(
    run: Observed, occupancy: Occupancy, row: int, own: Mapping[int, tuple[int, int]], spans: Weights, load: int
) -> float:
    claim = 0.0
    for part, share in run.loss.shares(row).items():
        if part == "queue.adapter":
            claim += share
        elif part in WAITED_FOR:
            _, begin, end = occupancy.period(row, part)
            if part == "prefill":
                claim += share * min(1.0, load / max(1, end - begin)) if row in own else 0.0
            else:
                claim += share * spans.busy(begin, end)
    return claim


def _finding(run: Observed, thrashing: Mapping[int, int], claims: Mapping[int, float], explains: float) -> Finding:
    where: dict[int, float] = {}
    for row, claim in claims.items():
        where[run.home(row)] = where.get(run.home(row), 0.0) + claim
    instances = run.result.instances()
    loads = sum(instances[index]["adapter_loads"] for index in thrashing)
    slots = run.engine(busiest(where)[0])["adapters"]["slots"]
    used = len({name for name in names_of(run) if name})
    count = run.loss.count(len(claims))
    at, until = run.loss.main_period(claims)
    time = sum(instances[index]["adapter_loads"] * load for index, load in thrashing.items())
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{run.names(where)} loaded adapters {loads:,} times, which took {duration(time)} in total, because "
            f"requests use {used:,} adapters and an instance holds {slots:,}; {many(count, 'late request')} waited for "
            f"this, which explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=busiest(where),
        evidence={"adapters": used, "slots": slots, "loads": loads, "load_s": time / 1e12, "late": count},
        explains=explains,
        resource="adapters",
    )
