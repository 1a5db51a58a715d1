"""Shadow divergence: the router's prediction of cached tokens is wrong.

`headway.results.shadow` defines which requests diverge, as in the section `shadow` of the summary. An unexpected miss
is a request whose belief was too high, an unexpected hit is one whose belief was too low. Misses and hits have separate
findings. For request i, Qᵢ is the number of prompt tokens that the router believed cached, and Hᵢ is the number that
was cached. The tokens of a finding are Σ |Qᵢ − Hᵢ| over its requests. The base of the misses is Σ Qᵢ over all requests
that started; the base of the hits is Σ Hᵢ over these requests. A finding needs tokens of at least a fraction of the
base: `LEAST_MISSED` for misses, `LEAST_UNKNOWN` for hits. The latter is larger: most routers do not know generated
tokens, so that every healthy run of conversations has unexpected hits. Severity of misses: the tokens divided by the
base. Severity of hits: half of that quotient, because an unexpected hit does no harm.

To say since when the belief drifts, the time from the first dispatch to the last is cut into at most `SLICES` equal
slices of at least one second. A slice drifts if its tokens are at least the same fraction of its base. If the last
slice with a base drifts, the drifting slices that lead up to it form a series, and the finding begins with the first
of them; slices without a base do not interrupt the series. Otherwise the finding begins with the first request that
diverges.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headway.results.findings.cluster_remedies import kv_events
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, moment, percent, seconds, span
from headway.results.findings.policy_remedies import index_size
from headway.results.records import Blame, Finding, Suggestion
from headway.results.shadow import TOLERANCE, divergences
from headway.results.time_grid import Grid
from headway.results.time_split import QUEUED
from headway.types import PS_PER_SECOND, Json

KIND: Final = "shadow_divergence"
ROLE: Final = CAUSE
AREA: Final = "cache"
ORDER: Final = 4
LEAST_MISSED: Final = 0.05
LEAST_UNKNOWN: Final = 0.2
SLICES: Final = 20
LISTED: Final = 10  # maximum number of instances in the evidence


class Way(NamedTuple):
    """One of the two directions in which a belief is wrong."""

    name: str
    weight: float
    least: float  # a finding needs at least this quotient: sum of `tokens` divided by sum of `base`
    base: list[int]  # for each started request: its believed tokens (for misses) or its cached tokens (for hits)
    tokens: dict[int, int]  # index in `base` of each diverging request -> by how many tokens the belief was wrong


def find(run: Observed) -> list[Finding]:
    if "shadow" not in run.summary:
        return []
    requests = run.requests
    rows = [row for row in range(run.warmup, len(requests)) if requests.started_ps[row] >= 0]
    columns = (requests.predicted_tokens, requests.cached_tokens, requests.prompt_tokens)
    believed, cached, prompts = ([column[row] for row in rows] for column in columns)
    tolerance = run.summary["shadow"].get("tolerance_tokens", TOLERANCE)
    drifts = dict(divergences(believed, cached, prompts, tolerance))
    high = {place: drift for place, drift in drifts.items() if drift > 0}
    low = {place: -drift for place, drift in drifts.items() if drift < 0}
    ways = (
        Way("unexpected_misses", 1.0, LEAST_MISSED, believed, high),
        Way("unexpected_hits", 0.5, LEAST_UNKNOWN, cached, low),
    )
    return [
        _finding(run, rows, way, sum(prompts))
        for way in ways
        if way.tokens and sum(way.tokens.values()) >= way.least * sum(way.base)
    ]


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from index_size(run)
    yield from kv_events(run)


def _finding(run: Observed, rows: Sequence[int], way: Way, prompts: int) -> Finding:
    count, tokens, base = len(way.tokens), sum(way.tokens.values()), sum(way.base)
    wrong = {rows[place]: amount for place, amount in way.tokens.items()}
    where, requests_at, base_at = Counter[int](), Counter(map(run.home, wrong)), Counter[int]()
    for row, amount in wrong.items():
        where[run.home(row)] += amount
    for row, amount in zip(rows, way.base, strict=True):
        base_at[run.home(row)] += amount
    grid, shares = _over_time(run, rows, way)
    since = _since(grid, shares, way.least)
    begin = min(run.requests.routed_ps[row] for row in wrong)
    until = max(run.requests.started_ps[row] for row in wrong)
    when = span(begin, until) if since is None else f"since {moment(max(begin, since))}"
    total = f"{tokens:,} of {base:,} tokens ({percent(tokens / base)})"
    if way.name == "unexpected_misses":
        title = (
            f"The router expected {total} to be cached {when}, but they were not: {many(count, 'request')} of "
            f"{len(rows):,} had fewer cached tokens than expected, by {tokens / count:,.0f} on average, most at "
            f"{run.names(where)}."
        )
    else:
        title = (
            f"The router did not know of {total} that were cached {when}: {many(count, 'request')} of {len(rows):,} "
            f"had more cached tokens than it believed, by {tokens / count:,.0f} on average, most at {run.names(where)}."
        )
    evidence: Json = {
        way.name: count,
        "started": len(rows),
        "share_of_started": count / len(rows),
        "tokens": tokens,
        "of_tokens": base,
        "share_of_prompts": tokens / prompts if prompts else 0.0,
        "mean_tokens": tokens / count,
        "since_s": None if since is None else seconds(max(begin, since)),
        "slice_s": seconds(grid.step_ps),
        "share_by_slice": shares,
        "by_instance": {
            run.name(index): {"requests": requests_at[index], "tokens": where[index], "of_tokens": base_at[index]}
            for index in busiest(where)[:LISTED]
        },
    }
    return Finding(
        kind=KIND,
        at_ps=begin if since is None else max(begin, since),
        until_ps=until,
        severity=way.weight * tokens / base,
        count=count,
        title=title,
        requests=examples((amount, row) for row, amount in wrong.items()),
        instances=busiest(where),
        evidence=evidence,
        explains=_explains(run, rows, tokens) if way.name == "unexpected_misses" else 0.0,
        resource="choice",
        blames=[Blame("instance", run.name(index), where[index] / tokens) for index in busiest(where)[:LISTED]],
    )


def _explains(run: Observed, rows: Sequence[int], tokens: int) -> float:
    """Return the fraction of the loss that unexpected misses explain: their part of all computed prompt tokens, times
    the loss in waits for prefill and in prefill itself. If no request had any cached token, a correct belief would have
    saved nothing."""
    requests = run.requests
    if not any(requests.cached_tokens):
        return 0.0
    computed = sum(requests.prompt_tokens[row] - requests.cached_tokens[row] for row in rows)
    return min(1.0, tokens / max(1, computed)) * run.loss.share(run.loss.late, (*QUEUED, "prefill"))


def _over_time(run: Observed, rows: Sequence[int], way: Way) -> tuple[Grid, list[float | None]]:
    """Return the slices, and for each the tokens divided by the base; None if the slice has no base."""
    times = [run.requests.routed_ps[row] for row in rows]
    begin, length = min(times), max(times) - min(times)
    step = max(PS_PER_SECOND, -(-length // SLICES))
    grid = Grid(begin, step, length // step + 1)
    tokens, base = [0] * grid.bins, [0] * grid.bins
    for place, (at, amount) in enumerate(zip(times, way.base, strict=True)):
        slice_ = (at - begin) // step
        base[slice_] += amount
        tokens[slice_] += way.tokens.get(place, 0)
    return grid, [part / whole if whole else None for part, whole in zip(tokens, base, strict=True)]


def _since(grid: Grid, shares: list[float | None], least: float) -> int | None:
    """Return the time from which all slices with a base drift. If the last slice with a base does not drift, return
    None."""
    first = None
    for place in reversed(range(len(shares))):
        share = shares[place]
        if share is not None and share < least:
            break
        if share is not None:
            first = place
    return None if first is None else grid.start_ps + first * grid.step_ps
