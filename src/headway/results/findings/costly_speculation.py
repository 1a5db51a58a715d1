"""Costly speculation: engines verify drafts for longer than the accepted ones save.

The step times come from the latency model of the scenario, for the mean batch of the instance while requests are late:
with the drafts of `speculation`, and without. A decode gains `speculation.tokens_per_step` tokens per step in this run.
The slowdown s is the time per token with drafts, divided by the time without. The GPU time of a draft head or a draft
model is left out, so s is at least this.

If s is at least `COSTLY`, late requests of the instance count for two parts of their loss:

* decode: the time that it would save, (1 − 1/s) of its decode, as a fraction of the lost time;
* waits for slots, KV blocks or tokens, which decodes hold: by the formula u/(1 − u) for queues, they would be shorter
  by 1 − (v/(1 − v)) / (u/(1 − u)), with u = `BUSIEST` and v = u/s.

There is one finding if it explains at least `LEAST` of the loss. Severity: the loss that it explains, as a fraction of
the counted requests.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from headway.config.units import duration_ps
from headway.errors import HeadwayError
from headway.latency.verification import Verification
from headway.results.findings.chunk_size import BUSIEST, usual_engine
from headway.results.findings.cluster_remedies import more_replicas, set_to
from headway.results.findings.observed import CAUSE, Observed, busiest, examples, many, percent
from headway.results.findings.policy_remedies import balance
from headway.results.records import Finding, Suggestion

KIND: Final = "costly_speculation"
ROLE: Final = CAUSE
AREA: Final = "scheduling"
ORDER: Final = 23
COSTLY: Final = 1.05
LEAST: Final = 0.1
FEWEST: Final = 5
HELD: Final = ("queue.slots", "queue.kv", "queue.tokens")


class Cost(NamedTuple):
    """What a decode of an instance pays for its drafts."""

    slowdown: float
    tokens: int  # drafts per step
    decodes: int  # in the mean batch


def find(run: Observed) -> list[Finding]:
    gained = (run.summary.get("speculation") or {}).get("tokens_per_step")
    if not gained or len(run.loss.late) < FEWEST:
        return []
    at, until = run.loss.main_period(dict.fromkeys(run.loss.late, 1.0))
    costs: dict[int, Cost] = {}
    for instance in run.instances:
        cost = _cost(run, instance, gained, at, until)
        if cost is not None and cost.slowdown >= COSTLY:
            costs[instance] = cost
    claims = {
        row: claim
        for row in run.loss.late
        if (cost := costs.get(run.requests.instance[row])) is not None
        and (claim := _claim(run, row, cost.slowdown)) > 0
    }
    explains = run.loss.claim(claims)
    return [_finding(run, claims, explains, costs, gained)] if explains >= LEAST and len(claims) >= FEWEST else []


def suggest(run: Observed, finding: Finding) -> Iterator[Suggestion]:
    reason = ", so that decodes verify no drafts at this load"
    yield from set_to(run, finding, "speculation.tokens", 0, reason, role="decode")
    yield from more_replicas(run, finding, "decode")
    yield from balance(run)


def _cost(run: Observed, instance: int, gained: float, at: int, until: int) -> Cost | None:
    """Return what drafts cost an instance; None if it does not speculate, or if its latency model is not known."""
    section = run.engine(instance).get("speculation") or {}
    tokens = section.get("tokens")
    engine = usual_engine(run, instance, at, until) if tokens else None
    if not tokens or engine is None or not engine.decodes:
        return None
    try:
        draft_ps = duration_ps(section.get("draft"), "draft")
    except HeadwayError:  # drafts by n-grams take no time; those of a head or a model are left out
        draft_ps = 0
    with_drafts = Verification(engine.model, tokens, None, draft_ps).run(engine.decodes, engine.context, ())[0]
    return Cost(with_drafts / (gained * engine.without_chunk_ps), tokens, engine.decodes)


def _claim(run: Observed, row: int, slowdown: float) -> float:
    """Return the part of a late request's loss that drafts explain."""
    then = BUSIEST / slowdown
    shorter = 1 - (then / (1 - then)) / (BUSIEST / (1 - BUSIEST))
    claim = run.loss.of(row, HELD) * shorter
    first, end = run.requests.first_token_ps[row], run.requests.finished_ps[row]
    if (share := run.loss.of(row, ("decode",))) and 0 <= first < end:
        target = run.tpot_target(row)
        usual = 0 if target is None else target * max(0, run.requests.output_tokens[row] - 1)
        claim += share * min(1.0, (end - first) * (1 - 1 / slowdown) / max(1, end - first - usual))
    return claim


def _finding(
    run: Observed, claims: Mapping[int, float], explains: float, costs: Mapping[int, Cost], gained: float
) -> Finding:
    where: dict[int, float] = {}
    for row, claim in claims.items():
        where[run.requests.instance[row]] = where.get(run.requests.instance[row], 0.0) + claim
    worst = costs[busiest(where)[0]]
    count = run.loss.count(len(claims))
    at, until = run.loss.main_period(claims)
    return Finding(
        kind=KIND,
        at_ps=at,
        until_ps=until,
        severity=explains * run.loss.late_share,
        count=count,
        title=(
            f"Speculation costs more than it saves at {run.names(where)}: with {many(worst.decodes, 'decode')} in the "
            f"batch, a step with {many(worst.tokens, 'draft')} each gives {gained:.2f} tokens per decode, and a token "
            f"takes {worst.slowdown:.2f} times as long as without drafts. {many(count, 'late request')} lost time by "
            f"this, which explains {percent(explains)} of the loss."
        ),
        requests=examples((claim, row) for row, claim in claims.items()),
        instances=busiest(where),
        evidence={
            "drafts": worst.tokens,
            "tokens_per_step": gained,
            "slowdown": worst.slowdown,
            "decodes": worst.decodes,
            "late": count,
        },
        explains=explains,
        resource="decode",
    )
