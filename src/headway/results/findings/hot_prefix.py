"""Hot prefix: many different sessions share a cached prefix, and routing by prefix sends them all to one instance.

The instance is a hot spot (see `hot_spot`). A request was drawn there by its prefix if it is the first turn of its
session and the router believed, rightly, that at least `LEAST` of its prompt was cached there. First turns of different
sessions have nothing in common but a shared prefix. A finding needs at least `SHARE` such requests among those that
were routed to the hot instance while it was hot.

The finding explains what the hot spot explains, times the fraction of such requests. The prefix is named by its length,
the most frequent number of cached tokens. Severity: that of the hot spot, times the same fraction.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from headway.results.findings import hot_spot
from headway.results.findings.cluster_remedies import more_replicas
from headway.results.findings.observed import CAUSE, Observed, many, percent, span, worst
from headway.results.findings.policy_remedies import balance
from headway.results.records import Blame, Finding, Suggestion

KIND: Final = "hot_prefix"
ROLE: Final = CAUSE
AREA: Final = "routing"
ORDER: Final = 24
LEAST: Final = 0.25
SHARE: Final = 0.5


def find(run: Observed) -> list[Finding]:
    if not any(run.requests.predicted_tokens):
        return []
    findings = []
    for spot in hot_spot.find(run):
        (instance,) = spot.instances
        stays = run.stays[instance]
        rows = [
            row for row, begin in zip(stays.rows, stays.begin_ps, strict=True) if spot.at_ps <= begin < spot.until_ps
        ]
        drawn = [row for row in rows if _drawn(run, row)]
        if rows and len(drawn) >= SHARE * len(rows):
            findings.append(_finding(run, spot, rows, drawn))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from balance(run)
    yield from more_replicas(run, finding)


def _drawn(run: Observed, row: int) -> bool:
    requests = run.requests
    known = min(requests.predicted_tokens[row], requests.cached_tokens[row])
    return requests.turn[row] == 0 and known >= LEAST * requests.prompt_tokens[row]


def _finding(run: Observed, spot: Finding, rows: list[int], drawn: list[int]) -> Finding:
    share = len(drawn) / len(rows)
    tokens = Counter(run.requests.predicted_tokens[row] for row in drawn).most_common(1)[0][0]
    (instance,) = spot.instances
    name = run.name(instance)
    return Finding(
        kind=KIND,
        at_ps=spot.at_ps,
        until_ps=spot.until_ps,
        severity=spot.severity * share,
        count=len(drawn),
        title=(
            f"{percent(share)} of the {many(len(rows), 'request')} that were routed to {name} "
            f"{span(spot.at_ps, spot.until_ps)} share a cached prefix, mostly of {tokens:,} tokens; {name} then had "
            f"{spot.evidence['mean_requests']:,.1f} requests on average, and its peers "
            f"{spot.evidence['mean_requests_of_peers']:,.1f}."
        ),
        requests=run.slowest(drawn),
        instances=[instance],
        evidence={"requests": len(rows), "drawn": len(drawn), "prefix_tokens": tokens, **spot.evidence},
        explains=spot.explains * share,
        resource="choice",
        blames=[Blame("prefix", f"{tokens} tokens at {name}", share)],
    )
