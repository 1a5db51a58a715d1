"""Cache thrashing: blocks were loaded from a store below the GPU soon after they had been stored away there.

Such loads are the run's `thrashes`: of blocks that came down less than a second before. Those of one tier between which
no more than `GAP_PS` passes are an episode, and one of `LEAST` loads or more is told. Severity: the blocks so loaded,
over all blocks loaded from that tier in the run.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from headway.results.findings.observed import (
    Observed,
    busiest,
    examples,
    listed,
    many,
    percent,
    runs,
    seconds,
    span,
    worst,
)
from headway.results.records import Finding, Thrash
from headway.types import PS_PER_SECOND

KIND: Final = "cache_thrashing"
GAP_PS: Final = 10 * PS_PER_SECOND
LEAST: Final = 10


def find(seen: Observed) -> list[Finding]:
    by_tier: dict[str, list[Thrash]] = {}
    for one in seen.thrashes:
        by_tier.setdefault(one.tier, []).append(one)
    found = []
    for tier, loads in by_tier.items():
        for begin, end in runs([one.at_ps for one in loads], GAP_PS):
            if end - begin >= LEAST:
                found.append(_finding(seen, tier, loads[begin:end]))
    return worst(found)


def _finding(seen: Observed, tier: str, loads: list[Thrash]) -> Finding:
    blocks = sum(one.blocks for one in loads)
    loaded = max(seen.summary.get("tiers", {}).get(tier, {}).get("loaded_blocks", 0), blocks)
    where: Counter[int] = Counter()
    rows: Counter[int] = Counter()
    for one in loads:
        where[one.instance] += one.blocks
        rows[one.request] += one.blocks
    names = [seen.name(instance) for instance in busiest(where)]
    at, until = loads[0].at_ps, loads[-1].at_ps
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=blocks / loaded if loaded else 0.0,
        count=len(loads),
        title=(
            f"{many(len(loads), 'load')} at {listed(names)} {span(at, until)} fetched {many(blocks, 'block')} back "
            f"from the {tier} tier less than a second after they had been stored there: {percent(blocks / loaded)} of "
            "all blocks loaded from it."
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
    )
