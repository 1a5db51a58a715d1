"""Totals over a run's routing decisions, computed in one pass. They say how often decisions ignored cached prefixes,
and what this cost.

A decision is judged by the instance that computes the prompt. Outcomes count only for requests that were dispatched
once, so that each outcome follows from a single decision.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from heapq import heappush, heappushpop
from math import fsum
from typing import Final

from msgspec import Struct, field

from headway.policies.scorecards import TOTAL
from headway.results.decisions import Decision, Decisions, scorer_weights
from headway.results.result import Result

SHORT_QUEUE: Final = 5  # a queue with fewer requests than this is short
WORST_KEPT: Final = 64  # the survey keeps this many decisions with the highest regret


class Away(Struct):
    """Decisions that chose an instance although another instance was believed to cache more of the prompt."""

    count: int = 0
    # Sum over these decisions: number of tokens believed cached at the best instance, minus those at the chosen one.
    tokens: int = 0
    uncached: int = 0  # number of decisions whose request hit no cache
    missed: int = 0  # number of decisions whose request missed its targets
    judged: int = 0  # number of decisions for which it is known whether the request missed its targets
    short_queue: int = 0  # number of decisions in which that best instance had a short queue
    deciders: Counter[str] = field(default_factory=Counter)  # scorer that contributed most -> number of decisions


class Survey(Struct):
    count: int = 0
    candidates: int = 0  # total number of candidates of all decisions
    estimated: int = 0  # number of decisions for which the latency model has an estimate
    regret_ps: int = 0  # sum of the estimated regrets
    regretted: int = 0  # number of decisions with regret
    away: Away = field(default_factory=Away)
    hit_elsewhere: int = 0  # number of cache misses while another instance was believed to cache more of the prompt
    compared: int = 0  # number of decisions with both an estimated and an actual time to first token
    expected_ps: int = 0  # sum of the estimated times to first token of the compared decisions
    waited_ps: int = 0  # sum of the actual times from the compared decisions to the first tokens
    worst: list[tuple[int, int]] = field(default_factory=list)  # (estimated regret, index of the decision), worst first
    regrets_ps: array[int] = field(default_factory=lambda: array("q"))  # regret of each decision with an estimate
    # For each scorer and decision: the score of the chosen instance minus the mean score of all candidates.
    # If the lowest score wins, the sign is reversed.
    arguments: dict[str, array[float]] = field(default_factory=dict)
    # For each request, as of its last decision: the number of queued requests at the chosen instance, and the number
    # of tokens believed to be cached there. Both are -1 if the request has no decision.
    queued: array[int] = field(default_factory=lambda: array("i"))
    believed: array[int] = field(default_factory=lambda: array("q"))


def survey(result: Result, missed: Sequence[int] | None = None, step: int = 1) -> Survey:
    """Return the totals over every decision, or over every `step`-th one. `missed` says for each request whether it
    missed its targets."""
    rows, worst = len(result.requests), list[tuple[int, int]]()
    decisions = result.decisions or Decisions([])
    totals = Survey(queued=array("i", [-1]) * rows, believed=array("q", [-1]) * rows)
    columns = [result.requests.column(name) for name in ("started_ps", "cached_tokens", "first_token_ps")]
    retries, redirects = (result.requests.column(name) for name in ("retries", "redirects"))
    weights = scorer_weights(result.scenario.get("policies", {}).get("routing", {}))
    for place in range(0, len(decisions), step):
        decision = decisions[place]
        row = decision.request
        totals.count += 1
        totals.candidates += len(decision.candidates)
        once = not retries[row] and not redirects[row]
        started, cached, first = (column[row] if once else -1 for column in columns)
        chosen = decision.place(decision.judged)
        totals.queued[row], totals.believed[row] = decision.queued[chosen], decision.believed_tokens[chosen]
        regret = decision.estimated_regret_ps()
        if regret is not None:
            totals.estimated += 1
            totals.regrets_ps.append(regret)
            totals.regret_ps += regret
            if regret > 0:
                totals.regretted += 1
                push = heappush if len(worst) < WORST_KEPT else heappushpop
                push(worst, (regret, -place))
            if first >= 0:
                totals.compared += 1
                totals.expected_ps += decision.estimated_ttft_ps[chosen]
                totals.waited_ps += first - decision.at_ps
        _beliefs(totals, decision, chosen, started, cached, missed[row] if once and missed is not None else -1, weights)
        _arguments(totals, decision, weights)
    totals.worst = [(regret, -place) for regret, place in sorted(worst, reverse=True)]
    return totals


def _beliefs(
    totals: Survey, decision: Decision, chosen: int, started: int, cached: int, missed: int, weights: dict[str, float]
) -> None:
    holder = best_holder(decision)
    believed, most = decision.believed_tokens[chosen], decision.believed_tokens[holder]
    if started >= 0 and cached == 0 and most > 0 and holder != chosen:
        totals.hit_elsewhere += 1
    if most <= believed:
        return
    away = totals.away
    away.count += 1
    away.tokens += most - believed
    away.short_queue += decision.queued[holder] < SHORT_QUEUE
    away.uncached += started >= 0 and cached == 0
    if missed >= 0:
        away.judged += 1
        away.missed += missed
    decider = spoke_most(decision, chosen, holder, weights)
    if decider is not None:
        away.deciders[decider] += 1


def _arguments(totals: Survey, decision: Decision, weights: dict[str, float]) -> None:
    """Append, for each scorer, the score of the chosen candidate minus the mean score of all candidates. If the lowest
    score wins, reverse the sign."""
    target, sign = decision.place(decision.target), -1 if decision.lowest_wins else 1
    for scorer, scores in terms(decision, weights).items():
        scored = [score for score in scores if score is not None]
        chosen = scores[target]
        if chosen is not None and len(scored) > 1:
            argument = sign * (chosen - fsum(scored) / len(scored))
            totals.arguments.setdefault(scorer, array("d")).append(argument)


def best_estimate(decision: Decision) -> int:
    """Return the position of the candidate with the earliest estimated first token. If there are no estimates, return
    the position of the chosen candidate."""
    places = [place for place, estimate in enumerate(decision.estimated_ttft_ps) if estimate >= 0]
    return min(places, key=decision.estimated_ttft_ps.__getitem__, default=decision.place(decision.judged))


def best_holder(decision: Decision) -> int:
    """Return the position of the candidate that can compute the prompt and is believed to cache most of it. If several
    candidates are equal, return the chosen one or, if the chosen one is not among them, the first."""
    chosen = decision.place(decision.judged)
    best = chosen
    for place, tokens in enumerate(decision.believed_tokens):
        if tokens > decision.believed_tokens[best] and decision.estimated_ttft_ps[place] >= 0:
            best = place
    return best


def spoke_most(decision: Decision, chosen: int, other: int, weights: dict[str, float]) -> str | None:
    """Return the scorer or term that contributed most to the choice of `chosen` over `other`. If the decision has fewer
    than two scorers or terms, or if none of them preferred `chosen`, return None."""
    parts = terms(decision, weights)
    if len(parts) < 2:
        return None
    sign, best, gain = -1 if decision.lowest_wins else 1, None, 0.0
    for scorer, scores in parts.items():
        mine, its = scores[chosen], scores[other]
        if mine is not None and its is not None:
            by = sign * weights.get(scorer, 1.0) * (mine - its)
            if by > gain:
                best, gain = scorer, by
    return best


def terms(decision: Decision, weights: dict[str, float]) -> dict[str, list[float | None]]:
    """Return the scores whose weighted sum is the total. If a policy has a single score and lists the terms of this
    score, return these terms. If the terms do not add up to the score, for example because they are factors of a
    product, return the score alone."""
    total = decision.scores.get(TOTAL)
    if total is None or len(decision.scores) == 1:
        return decision.scores
    parts = {name: scores for name, scores in decision.scores.items() if name != TOTAL}
    for place, value in enumerate(total):
        values = [(weights.get(name, 1.0), scores[place]) for name, scores in parts.items()]
        whole = fsum(weight * score for weight, score in values if score is not None)
        if value is not None and abs(whole - value) > 1e-6 * abs(value):
            return {TOTAL: total}
    return parts
