"""Cold cache: instances that started during the run compute prompts that warm instances have cached.

An instance is new if it begins to serve after the run has begun: a started replica, or a restarted instance. The usual
hits are the fraction of prompt tokens found in caches by requests at instances that are not new, or not yet restarted.
A request is a *miss* if it finds less than half of the usual hits. The instance is cold from its start until the last
`CHUNK` requests in a row of which at least `MORE` more are misses than usual.

A late request at a cold instance explains this finding by two parts of its loss. Its own prefill counts if the request
is a miss, for the missing tokens as a fraction of the tokens that it computed. Its wait for prefill counts for the
share of the misses in the prompts that the instance computed meanwhile (see `results.occupancy`). Both are reduced by
the misses that are usual. There is one finding if it explains at least `LEAST` of the loss, and if the usual hits are
at least `HITS`. Severity: the loss that it explains, as a fraction of the counted requests.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, moment, percent
from headway.results.findings.policy_remedies import balance, cached_prefixes, reject_late
from headway.results.occupancy import PREFILL, WAITED_FOR, Occupancy
from headway.results.records import Blame, Finding, Suggestion
from headway.types import SERVING

KIND: Final = "cold_cache"
ROLE: Final = CAUSE
AREA: Final = "caching"
ORDER: Final = 19
HITS: Final = 0.2
CHUNK: Final = 20
MORE: Final = 0.1
LEAST: Final = 0.1
FEWEST: Final = 5
COLD: Final = 1  # the group of misses at cold instances


class Usual(NamedTuple):
    hits: float  # fraction of the prompt tokens that are cached
    misses: float  # fraction of the requests that are misses


def find(run: Observed) -> list[Finding]:
    starts = new_instances(run)
    if not starts or len(run.loss.late) < FEWEST:
        return []
    usual = _usual(run, starts)
    if usual.hits < HITS:
        return []
    rows = {instance: _cold_rows(run, instance, since, usual) for instance, since in starts.items()}
    cold = {row: instance for instance, found in rows.items() for row in found}
    misses = {row for row in cold if _is_miss(run, row, usual.hits)}
    if not misses:
        return []
    excess = max(0.0, 1 - usual.misses * len(cold) / len(misses))
    group_of = [COLD if row in misses else 0 for row in range(len(run.requests))]
    occupancy = Occupancy(run.requests, group_of, [COLD], run.waits.left_ps, run.ended_ps)
    claims = {}
    for row in run.loss.late:
        if row in cold and (claim := excess * _claim(run, occupancy, row, row in misses, usual.hits)) > 0:
            claims[row] = claim
    explains = run.loss.claim(claims)
    if explains < LEAST or len(claims) < FEWEST:
        return []
    return [_finding(run, starts, cold, claims, explains, usual)]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from cached_prefixes(run)
    yield from more_replicas(run, finding)
    yield from balance(run)
    yield from reject_late(run)


def new_instances(run: Observed) -> dict[int, int]:
    """Return the instances that began to serve after the begin of the run, and when; of several starts, the first."""
    starts: dict[int, int] = {}
    open_: set[int] = set()
    for change in run.result.states:
        if change.state in SERVING:
            if change.instance not in open_ and change.at_ps > run.started_ps:
                starts.setdefault(change.instance, change.at_ps)
            open_.add(change.instance)
        else:
            open_.discard(change.instance)
    return starts


def _usual(run: Observed, starts: dict[int, int]) -> Usual:
    """Return the usual hits and misses, of counted requests if there are enough of them."""
    requests = run.requests
    warm = [
        row
        for row in run.waiting
        if requests.started_ps[row] >= 0 and requests.started_ps[row] < starts.get(run.home(row), run.ended_ps + 1)
    ]
    prompts = sum(requests.prompt_tokens[row] for row in warm)
    if len(warm) < CHUNK or not prompts:
        return Usual(0.0, 1.0)
    hits = sum(requests.cached_tokens[row] for row in warm) / prompts
    return Usual(hits, sum(_is_miss(run, row, hits) for row in warm) / len(warm))


def _is_miss(run: Observed, row: int, hits: float) -> bool:
    return 2 * run.requests.cached_tokens[row] < hits * run.requests.prompt_tokens[row]


def _cold_rows(run: Observed, instance: int, since: int, usual: Usual) -> list[int]:
    """Return the requests that a new instance began while it was cold, in order of their begin."""
    requests = run.requests
    rows = [row for row in run.stays[instance].rows if requests.started_ps[row] >= since and run.home(row) == instance]
    rows.sort(key=requests.started_ps.__getitem__)
    end = 0
    for begin in range(0, len(rows), CHUNK):
        chunk = rows[begin : begin + CHUNK]
        if sum(_is_miss(run, row, usual.hits) for row in chunk) >= (usual.misses + MORE) * len(chunk):
            end = begin + len(chunk)
    return rows[:end]


def _claim(run: Observed, occupancy: Occupancy, row: int, missed: bool, hits: float) -> float:
    claim = 0.0
    for part, share in run.loss.shares(row).items():
        if part == "prefill" and missed:
            prompt, cached = run.requests.prompt_tokens[row], run.requests.cached_tokens[row]
            claim += share * min(1.0, (hits * prompt - cached) / max(1, prompt - cached))
        elif part != "prefill" and WAITED_FOR.get(part) == PREFILL:
            instance, begin, end = occupancy.period(row, part)
            claim += share * occupancy.share(PREFILL, instance, COLD, begin, end)
    return claim


def _finding(
    run: Observed, starts: dict[int, int], cold: dict[int, int], claims: dict[int, float], explains: float, usual: Usual
) -> Finding:
    requests = run.requests
    where = Counter(cold[row] for row in claims)
    weights: dict[int, float] = {}
    for row, claim in claims.items():
        weights[cold[row]] = weights.get(cold[row], 0.0) + claim
    found = _hits(run, cold)
    first = min(starts[instance] for instance in where)
    until = max(requests.started_ps[row] for row in cold)
    count = run.loss.count(len(claims))
    total = sum(weights.values())
    return Finding(
        kind=KIND,
        at_ps=first,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"{run.names(where)} started at {moment(first)} or later with cold caches: {many(len(cold), 'request')} "
            f"found {percent(found)} of their prompts cached until {moment(until)}, and {percent(usual.hits)} is usual "
            f"at warm instances; this explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=busiest(weights),
        evidence={
            "requests": len(cold),
            "late": count,
            "hits": found,
            "usual_hits": usual.hits,
            "since_s": {run.name(instance): starts[instance] / 1e12 for instance in sorted(where)},
        },
        explains=explains,
        resource="prefill",
        blames=[Blame("instance", run.name(instance), weights[instance] / total) for instance in busiest(weights)[:3]],
    )


def _hits(run: Observed, rows: Iterable[int]) -> float:
    prompts = sum(run.requests.prompt_tokens[row] for row in rows)
    return sum(run.requests.cached_tokens[row] for row in rows) / max(1, prompts)
