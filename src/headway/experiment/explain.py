"""Why a request went where it went: what the router saw and believed, what was true, what else could have been."""

from __future__ import annotations

from pathlib import Path

from headway.errors import HeadwayError
from headway.experiment.counterfactual import Progress, counterfactuals
from headway.experiment.run import finished, prepare
from headway.results.decisions import RECORDED_BY_KIND, Decision
from headway.results.records import Counterfactual
from headway.results.result import Result
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND, Json

PS_PER_MS = PS_PER_SECOND // 1000


def explain(
    run: str | Path | Result, request: int, *, workers: int | None = None, progress: Progress | None = None
) -> Json:
    """The document that `headway explain` prints. A run whose decisions were not traced is simulated once more, which
    gives the same decisions; and once for every other instance that the request could have gone to."""
    result = traced(run if isinstance(run, Result) else Result.load(run))
    if not 0 <= request < len(result.requests):
        there = f"there are requests 0 to {len(result.requests) - 1}" if len(result.requests) else "the run has none"
        raise HeadwayError(f"request: {there}, got {request}.")
    assert result.decisions is not None
    facts = {name: result.requests.column(name)[request] for name in result.requests}
    found = result.decisions.of(request)
    verdicts = [
        {"at_s": one.at_ps / PS_PER_SECOND, "verdict": one.verdict, "reason": one.reason, "delay_ms": _ms(one.delay_ps)}
        for one in result.decisions.verdicts
        if one.request == request
    ]
    document: Json = {"request": _request(facts), "admission": verdicts, "decision": None}
    if "shadow" not in result.summary():
        document["request"]["believed_tokens"] = None  # no policy of the run says what it believes cached
    live = bool(result.scenario.get("live"))
    if live and "shadow" not in result.summary():  # engines do not tell what they found, so what was believed is there
        document["request"] |= {"believed_tokens": facts["cached_tokens"], "cached_tokens": None}
    if not found:
        return document
    tried: list[Counterfactual] = []
    if not live:  # which happened once
        tried = counterfactuals(result, requests=[request], alternatives=None, workers=workers, progress=progress)
    ids = result.instance_ids()
    document["decision"] = _decision(found[0], tried, ids, facts["routed_ps"])
    if live:
        document["decision"]["live"] = True
    document["taken_again"] = [
        {"at_s": one.at_ps / PS_PER_SECOND, "target": ids[one.target], "reason": one.reason} for one in found[1:]
    ]
    if found[1:] or document["request"]["cached_tokens"] is None:  # what was found was found where it went last
        own = next(one for one in document["decision"]["candidates"] if one["id"] == ids[found[0].judged])
        own["true"]["cached_tokens"] = None
    return document


def traced(result: Result) -> Result:
    """The run with its decisions: as it was read, or simulated anew."""
    if result.decisions is not None:
        return result
    if result.key() == "":
        told = "its decisions were not traced, and a policy of it was an object of somebody's program"
        raise HeadwayError(f'The run cannot be simulated again: {told}; trace it at once with trace="decisions".')
    return finished(prepare(Scenario.load(result.scenario)), "decisions")


def _request(facts: Json) -> Json:
    came, first, started = facts["arrival_ps"], facts["first_token_ps"], facts["started_ps"]
    return {
        "id": facts["request"],
        "arrival_s": came / PS_PER_SECOND,
        **{name: facts[name] for name in ("tenant", "slo_class", "session", "turn", "prompt_tokens", "output_tokens")},
        "outcome": facts["outcome"],
        "reason": facts["reason"],
        "queue_wait_ms": _ms(started - came) if started >= 0 else None,
        "ttft_ms": _ms(first - came) if first >= 0 else None,
        "e2e_ms": _ms(facts["finished_ps"] - came) if facts["outcome"] == "completed" else None,
        "believed_tokens": facts["predicted_tokens"],
        "cached_tokens": facts["cached_tokens"],
        "loaded_from": facts["loaded_from"] or None,
        "preemptions": facts["preemptions"],
    }


def _decision(one: Decision, tried: list[Counterfactual], ids: dict[int, str], routed_ps: int) -> Json:
    known = [other for other in tried if other.regret_ps is not None]
    best = max(known, key=lambda other: (other.regret_ps or 0, -other.alternative), default=None)
    return {
        "at_s": one.at_ps / PS_PER_SECOND,
        "router": one.router,
        "target": ids[one.target],
        "prefill": None if one.prefill < 0 else ids[one.prefill],
        "reason": one.reason,
        "priority": one.priority,
        "lowest_wins": one.lowest_wins,
        "candidates": [_candidate(one, place, tried, ids) for place in range(len(one.candidates))],
        "estimated_regret_ms": _ms(one.estimated_regret_ps() or 0),
        "true_regret_ms": None if best is None else _ms(max(0, best.regret_ps or 0)),
        "best_alternative": None if best is None else _alternative(best, ids),
        "objective": tried[0].objective if tried else None,
        "objective_value": tried[0].value if tried else None,
    }


def _candidate(one: Decision, place: int, tried: list[Counterfactual], ids: dict[int, str]) -> Json:
    index = one.candidates[place]
    mine = [other for other in tried if index == other.changed]
    return {
        "id": ids.get(index, str(index)),
        "chosen": index in (one.target, one.prefill),
        **{name: values[place] if (values := getattr(one, name)) else None for name in RECORDED_BY_KIND},
        "believed_tokens": one.believed_tokens[place],
        "estimated_ttft_ms": None if one.estimated_ttft_ps[place] < 0 else _ms(one.estimated_ttft_ps[place]),
        "scores": {name: row[place] for name, row in one.scores.items()},
        "total": one.totals[place] if one.totals else None,
        "true": _true(one, mine[0]) if mine else _own(one) if index == one.judged else None,
    }


def _own(one: Decision) -> Json:
    return {"cached_tokens": one.cached_tokens, "ttft_ms": _known(one.ttft_ps), "e2e_ms": _known(one.e2e_ps)}


def _true(one: Decision, other: Counterfactual) -> Json:
    return {
        "cached_tokens": None if other.alternative_cached_tokens < 0 else other.alternative_cached_tokens,
        "ttft_ms": _known(other.alternative_ttft_ps),
        "e2e_ms": _known(other.alternative_e2e_ps),
        "objective": other.alternative_value,
    }


def _alternative(best: Counterfactual, ids: dict[int, str]) -> Json:
    return {
        "id": ids[best.changed],
        "ttft_ms": _known(best.alternative_ttft_ps),
        "e2e_ms": _known(best.alternative_e2e_ps),
        "gain_ms": _ms(best.regret_ps or 0),
        "objective": best.alternative_value,
    }


def _known(ps: int) -> float | None:
    return None if ps < 0 else _ms(ps)


def _ms(ps: int) -> float:
    return ps / PS_PER_MS
