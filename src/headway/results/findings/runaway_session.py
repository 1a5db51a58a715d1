"""Runaway session: the growing context of one session makes other requests late.

A candidate is a session of at least `TURNS` turns whose largest prompt has at least `GROWTH` times the tokens of its
first one, and at least `HEAVY` times the median prompt of the run. A late request blames the session for the session's
share in what the request waited for (see `results.occupancy`). If the session occupies other instances of the same kind
more, the mean over these instances counts, because the router then sends their requests elsewhere. There is one finding
for each session that has at least `LEAST_SHARE` of the time that other late requests lost. Severity: the loss that the
finding explains, as a fraction of the counted requests.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import nlargest
from statistics import median_low
from typing import Final, cast

from headway.results.findings.bottleneck import main_resource
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, examples, many, moment, percent, worst
from headway.results.findings.policy_remedies import cached_prefixes, fair_queue, limit_tenant, use
from headway.results.findings.run_settings import caches_prefixes, reads_prefixes
from headway.results.occupancy import WAITED_FOR, Occupancy
from headway.results.records import SCHEDULER, Blame, Finding, Suggestion

KIND: Final = "runaway_session"
ROLE: Final = CAUSE
AREA: Final = "admission"
ORDER: Final = 17
TURNS: Final = 5
GROWTH: Final = 4
HEAVY: Final = 8
LEAST_SHARE: Final = 0.15
FEWEST: Final = 5
CANDIDATES: Final = 5  # sessions with the most prompt tokens that are examined
Blamed = dict[str, dict[int, float]]  # session -> late request -> the fraction of its loss


def find(run: Observed) -> list[Finding]:
    return worst(_finding(run, session, blame) for session, blame in blamed(run).items() if len(blame) >= FEWEST)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    if not (reads_prefixes(run) and caches_prefixes(run)):  # each turn repeats the context, which is or can be cached
        yield from cached_prefixes(run)
    yield from use(run, SCHEDULER, "shortest-prefill", ", which starts short prompts before those of the session")
    yield from limit_tenant(run, finding.evidence["tenant"])
    yield from fair_queue(run)
    yield from more_replicas(run, finding)


def tenants(run: Observed) -> dict[int, float]:
    """Return, for each tenant with a runaway session, the fraction of the tenant's uncached prompt tokens that this
    session has."""
    requests = run.requests
    sessions = blamed(run)
    if not sessions:
        return {}
    of_tenant: defaultdict[int, int] = defaultdict(int)
    of_session: defaultdict[tuple[int, str], int] = defaultdict(int)
    for row in range(len(requests)):
        tokens = requests.prompt_tokens[row] - requests.cached_tokens[row]
        of_tenant[requests.tenant[row]] += tokens
        if names_of(run)[row] in sessions:
            of_session[requests.tenant[row], names_of(run)[row]] += tokens
    return {tenant: tokens / max(1, of_tenant[tenant]) for (tenant, _), tokens in of_session.items()}


def names_of(run: Observed) -> Sequence[str]:
    """Return the name of each request's session, or an empty string."""
    return cast(Sequence[str], run.requests.session)


def candidates(run: Observed) -> list[str]:
    requests = run.requests
    if not run.loss.late or not any(names_of(run)):
        return []
    rows: defaultdict[str, list[int]] = defaultdict(list)
    for row, session in enumerate(names_of(run)):
        if session:
            rows[session].append(row)
    prompts = requests.prompt_tokens
    usual = median_low(prompts)
    grown = {
        session: sum(prompts[row] - requests.cached_tokens[row] for row in turns)
        for session, turns in rows.items()
        if len(turns) >= TURNS and max(prompts[row] for row in turns) >= max(GROWTH * prompts[turns[0]], HEAVY * usual)
    }
    return nlargest(CANDIDATES, grown, key=grown.__getitem__)


def blamed(run: Observed) -> Blamed:
    """Return the runaway sessions, and what they explain of the loss of other requests."""
    sessions = candidates(run)
    if not sessions:
        return {}
    occupancy = Occupancy(run.requests, names_of(run), sessions, run.waits.left_ps, run.ended_ps)
    peers_of = {instance: peers for peers in run.peers.values() for instance in peers}
    result: Blamed = {}
    for session in sessions:
        rows = [row for row in run.loss.late if names_of(run)[row] != session]
        blame = {row: _blame(run, occupancy, peers_of, row, session) for row in rows}
        if sum(blame.values()) >= LEAST_SHARE * max(1, len(rows)):
            result[session] = blame
    return result


def _blame(run: Observed, occupancy: Occupancy, peers_of: dict[int, list[int]], row: int, session: str) -> float:
    blame = 0.0
    for part, share in run.loss.shares(row).items():
        kind = WAITED_FOR.get(part)
        if kind is None:
            continue
        instance, begin, end = occupancy.period(row, part)
        peers = peers_of.get(instance, [instance])
        shares = {peer: occupancy.share(kind, peer, session, begin, end) for peer in peers}
        elsewhere = {peer: occupancy.share("prefill", peer, session, begin, end) for peer in peers}
        blame += share * max(shares.get(instance, 0.0), sum(elsewhere.values()) / len(peers))
    return blame


def _finding(run: Observed, session: str, blame: dict[int, float]) -> Finding:
    requests = run.requests
    turns = [row for row, of in enumerate(names_of(run)) if of == session]
    first, largest = requests.prompt_tokens[turns[0]], max(requests.prompt_tokens[row] for row in turns)
    explains = run.loss.claim(blame)
    at, until = run.loss.main_period(blame)
    count = run.loss.count(len(blame))
    tenant = run.tenants[requests.tenant[turns[0]]]
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"The prompts of session {session} of tenant {tenant} grew from {first:,} to {largest:,} tokens in "
            f"{many(len(turns), 'turn')}, mostly after {moment(requests.arrival_ps[turns[0]])}: other requests waited "
            f"for it, which explains {percent(explains)} of the loss."
        ),
        requests=examples((fraction, row) for row, fraction in blame.items()),
        evidence={
            "session": session,
            "tenant": tenant,
            "turns": len(turns),
            "first_prompt_tokens": first,
            "largest_prompt_tokens": largest,
            "late": count,
        },
        explains=explains,
        resource=main_resource(run, blame),
        blames=[Blame("session", session, 1.0), Blame("tenant", tenant, 1.0)],
    )
