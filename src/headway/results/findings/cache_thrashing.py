"""Cache thrashing: instances load blocks from a tier below the GPU soon after they stored them there.

Such loads are the run's `thrashes`. Loads from one tier that are at most `GAP_PS` apart form an episode, which needs at
least `LEAST` loads. It explains the loss in these loads, and in waits for KV blocks that requests held while they
loaded; of the latter, the episode's part of all blocks loaded from that tier in the run. Severity: this part.
"""

from collections import Counter
from collections.abc import Collection, Iterator
from typing import Final

from headway.results.findings.cluster_remedies import faster_tiers, larger_cache, more_replicas
from headway.results.findings.observed import (
    CAUSE,
    Observed,
    busiest,
    examples,
    many,
    percent,
    runs,
    seconds,
    span,
    worst,
)
from headway.results.findings.policy_remedies import cached_prefixes
from headway.results.records import Finding, Suggestion, Thrash, group_by
from headway.types import PS_PER_SECOND

KIND: Final = "cache_thrashing"
ROLE: Final = CAUSE
AREA: Final = "memory"
ORDER: Final = 3
GAP_PS: Final = 10 * PS_PER_SECOND
LEAST: Final = 10


def find(run: Observed) -> list[Finding]:
    findings = []
    for tier, loads in group_by(run.result.thrashes, lambda load: load.tier).items():
        for begin, end in runs([load.at_ps for load in loads], GAP_PS):
            if end - begin >= LEAST:
                findings.append(_finding(run, tier, loads[begin:end]))
    return worst(findings)


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    yield from larger_cache(run, finding)
    yield from cached_prefixes(run)
    yield from faster_tiers(run, finding)
    yield from more_replicas(run, finding)


def _finding(run: Observed, tier: str, loads: list[Thrash]) -> Finding:
    blocks = sum(load.blocks for load in loads)
    loaded = max(run.summary.get("tiers", {}).get(tier, {}).get("loaded_blocks", 0), blocks)
    where: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for load in loads:
        where[load.instance] += load.blocks
        rows[load.request] += load.blocks
    at, until = loads[0].at_ps, loads[-1].at_ps
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=blocks / loaded if loaded else 0.0,
        count=len(loads),
        title=(
            f"{many(len(loads), 'load')} on {run.names(where)} {span(at, until)} fetched {many(blocks, 'block')} from "
            f"the {tier} tier less than one second after storing them there: {percent(blocks / loaded)} of all blocks "
            "loaded from that tier."
        ),
        requests=examples((count, row) for row, count in rows.items()),
        instances=busiest(where),
        evidence={
            "tier": tier,
            "loads": len(loads),
            "blocks": blocks,
            "loaded_blocks": loaded,
            "requests": len(rows),
            "episode_s": seconds(until - at),
        },
        explains=_explains(run, rows, where, at, until, blocks / loaded if loaded else 0.0),
        resource="store",
    )


def _explains(
    run: Observed, rows: Collection[int], instances: Collection[int], at: int, until: int, share: float
) -> float:
    """Return the loss in the loads of these requests, and in waits for KV blocks that loads held; of the latter, the
    given share."""
    waits = [row for row in run.loss.within(at, until) if run.home(row) in instances]
    claims = {row: share * (run.loss_behind(row).get("load", 0.0) - run.loss.of(row, ("load",))) for row in waits}
    for row in rows:
        claims[row] = claims.get(row, 0.0) + run.loss.of(row, ("load",))
    return run.loss.claim(claims)
