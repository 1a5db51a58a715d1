"""Shadow divergence: the router's prediction of cache hits is wrong.

A request is an unexpected miss if its `predicted_tokens` are above 0 and its `cached_tokens` are 0. It is an unexpected
hit if its `predicted_tokens` are 0 and its `cached_tokens` are above 0. The section `shadow` of the summary uses the
same definitions. Misses and hits have separate findings. Each finding needs at least the fraction `LEAST_SHARE` of the
requests whose first step began. Severity of misses: the unexpected misses divided by the expected hits. Severity of
hits: half of the unexpected hits divided by all hits, because an unexpected hit does no harm.
"""

from collections import Counter
from typing import Final

from headway.results.findings.observed import Observed, busiest, examples, many, percent
from headway.results.records import Finding

KIND: Final = "shadow_divergence"
AREA: Final = "cache"
ADVICE: Final = (
    "Cache: the router's prefix index is often wrong; set its size to that of the instances' caches (lru_blocks), or"
    " give it fresher signals."
)
ORDER: Final = 4
LEAST_SHARE: Final = 0.05


def find(run: Observed) -> list[Finding]:
    if "shadow" not in run.summary:
        return []
    warmup = run.warmup
    misses: dict[int, int] = {}
    hits: dict[int, int] = {}
    started = expected = actual = 0
    rows = run.requests.select("started_ps", "predicted_tokens", "cached_tokens", start=warmup)
    for row, (began, believed, cached) in enumerate(rows, warmup):
        if began < 0:
            continue
        started += 1
        expected += believed > 0
        actual += cached > 0
        if believed and not cached:
            misses[row] = believed
        elif cached and not believed:
            hits[row] = cached
    findings = []
    if misses and len(misses) >= LEAST_SHARE * started:
        findings.append(_finding(run, "unexpected_misses", misses, expected, started, 1.0))
    if hits and len(hits) >= LEAST_SHARE * started:
        findings.append(_finding(run, "unexpected_hits", hits, actual, started, 0.5))
    return findings


def _finding(run: Observed, way: str, tokens: dict[int, int], base: int, started: int, weight: float) -> Finding:
    """Describe unexpected misses or hits; `base` counts the expected hits (for misses) or all hits (for hits)."""
    count = len(tokens)
    where = Counter(map(run.home, tokens))
    names = run.names(where)
    mean = sum(tokens.values()) / count
    if way == "unexpected_misses":
        title = (
            f"{count:,} of {many(base, 'request')} ({percent(count / base)}) that the router expected to hit a cache "
            f"missed it, at {names}; the router expected {mean:,.0f} cached tokens each on average."
        )
    else:
        title = (
            f"{count:,} of {many(base, 'request')} ({percent(count / base)}) that hit a cache were not expected to, at "
            f"{names}; each had {mean:,.0f} cached tokens on average that the router did not know of."
        )
    return Finding(
        kind=KIND,
        at_ps=min(run.requests.routed_ps[row] for row in tokens),
        until_ps=max(run.requests.started_ps[row] for row in tokens),
        severity=weight * count / base,
        count=count,
        title=title,
        requests=examples((amount, row) for row, amount in tokens.items()),
        instances=busiest(where),
        evidence={way: count, "of": base, "started": started, "share_of_started": count / started, "mean_tokens": mean},
    )
