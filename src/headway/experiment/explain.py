"""Explains the routing of a request: what the router saw and believed, the true values, and the alternatives."""

from pathlib import Path
from typing import Any, ClassVar, Final

from headway.config.arguments import checked
from headway.display.displayed import Document, Types, cells, columns_of
from headway.display.progress import RunProgress, watch
from headway.errors import HeadwayError
from headway.experiment.counterfactual import counterfactuals
from headway.experiment.run import prepare, run_prepared
from headway.experiment.runner import Progress
from headway.results.decisions import RECORDED_SINGLE, Decision
from headway.results.records import Counterfactual
from headway.results.result import Result
from headway.results.statistics import PS_PER_MS
from headway.scenario.scenario import Scenario
from headway.types import PS_PER_SECOND, Json
from headway.views.instance import SIGNALS

# The results of a simulation in which the request goes to a candidate, with their types.
TRUE: Final = {"cached_tokens": int, "ttft_ms": float, "e2e_ms": float, "objective": float}


class Explanation(Document):
    """Why a request went to an instance: the candidates, what the router saw of them, and their true outcomes."""

    _view: ClassVar[str] = "headway.report.notebook:explanation_view"
    _types: ClassVar[Types] = {
        "id": str,
        "chosen": bool,
        **{name: float if SIGNALS[name].kind in ("share", "seconds") else int for name in RECORDED_SINGLE},
        "believed_tokens": int,
        **dict.fromkeys(("estimated_ttft_ms", "total"), float),
        **{f"true.{name}": kind for name, kind in TRUE.items()},
    }

    def columns(self) -> dict[str, list[Any]]:
        """Return a row for each candidate. If the request was not routed, return no rows."""
        candidates = self["decision"]["candidates"] if self["decision"] else []
        rows = ({**each, "true": dict.fromkeys(TRUE) | (each["true"] or {})} for each in candidates)
        return columns_of(map(cells, rows), self._types)


@checked
def explain(
    run: str | Path | Result, request: int, *, workers: int | None = None, progress: Progress | bool = True
) -> Explanation:
    """Return the document that `headway explain` prints. If the decisions of the run were not traced, Headway first
    simulates the run again, which gives the same decisions. To find the outcomes of the alternatives, it then repeats
    the run once for every other instance that could serve the request."""
    result = trace_decisions(run if isinstance(run, Result) else Result.load(run), progress is True)
    if not 0 <= request < len(result.requests):
        there = f"there are requests 0 to {len(result.requests) - 1}" if len(result.requests) else "the run has none"
        raise HeadwayError(f"request: {there}, got {request}.")
    assert result.decisions is not None
    facts = {name: result.requests.column(name)[request] for name in result.requests}
    decisions = result.decisions.of(request)
    verdicts = [
        {
            "at_s": verdict.at_ps / PS_PER_SECOND,
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "delay_ms": _ms(verdict.delay_ps),
        }
        for verdict in result.decisions.verdicts
        if verdict.request == request
    ]
    document = Explanation({"request": _request(facts), "admission": verdicts, "decision": None})
    if "shadow" not in result.summary():
        document["request"]["believed_tokens"] = None  # no policy of the run predicts cached tokens
    live = bool(result.scenario.get("live"))
    if live and "shadow" not in result.summary():  # engines report no hits, so the column has the router's estimate
        document["request"] |= {"believed_tokens": facts["cached_tokens"], "cached_tokens": None}
    if not decisions:
        return document
    first, *later = decisions
    tried: list[Counterfactual] = []
    if not live:  # live traffic cannot be repeated
        tried = counterfactuals(result, requests=[request], alternatives=None, workers=workers, progress=progress)
    ids = result.instance_ids()
    document["decision"] = _decision(first, tried, ids)
    if live:
        document["decision"]["live"] = True
    document["taken_again"] = [
        {"at_s": each.at_ps / PS_PER_SECOND, "target": ids[each.target], "reason": each.reason} for each in later
    ]
    # If a later decision moved the request, the column `cached_tokens` describes the last target, not this one.
    if later or document["request"]["cached_tokens"] is None:
        own = next(each for each in document["decision"]["candidates"] if each["id"] == ids[first.judged])
        own["true"]["cached_tokens"] = None
    return document


def trace_decisions(result: Result, progress: bool = False) -> Result:
    """Return the run with its decisions. If its decisions were not traced, simulate the run again."""
    if result.decisions is not None:
        return result
    if result.key() == "":
        why = "the run has no trace of its decisions, and one of its policies was an object of a program"
        raise HeadwayError(f'Headway cannot repeat the run: {why}. Simulate it with trace="decisions".')
    prepared = prepare(Scenario.load(result.scenario))
    with watch(progress, lambda: RunProgress(prepared.scenario.workload.requests)) as report:
        return run_prepared(prepared, "decisions", progress=report)


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


def _decision(decision: Decision, tried: list[Counterfactual], ids: dict[int, str]) -> Json:
    known = [other for other in tried if other.regret_ps is not None]
    best = max(known, key=lambda other: (other.regret_ps or 0, -other.alternative), default=None)
    alternative = None
    if best is not None:
        latencies = _latencies(best.alternative_ttft_ps, best.alternative_e2e_ps)
        gain = {"gain_ms": _ms(best.regret_ps or 0), "objective": best.alternative_value}
        alternative = {"id": ids[best.changed], **latencies, **gain}
    return {
        "at_s": decision.at_ps / PS_PER_SECOND,
        "router": decision.router,
        "target": ids[decision.target],
        "prefill": None if decision.prefill < 0 else ids[decision.prefill],
        "reason": decision.reason,
        "priority": decision.priority,
        "lowest_wins": decision.lowest_wins,
        "candidates": [_candidate(decision, place, tried, ids) for place in range(len(decision.candidates))],
        "estimated_regret_ms": _ms(decision.estimated_regret_ps() or 0),
        "true_regret_ms": None if best is None else _ms(max(0, best.regret_ps or 0)),
        "best_alternative": alternative,
        "objective": tried[0].objective if tried else None,
        "objective_value": tried[0].value if tried else None,
    }


def _candidate(decision: Decision, place: int, tried: list[Counterfactual], ids: dict[int, str]) -> Json:
    index = decision.candidates[place]
    forced = next((other for other in tried if index == other.changed), None)
    true: Json | None = None
    if forced is not None:
        cached = forced.alternative_cached_tokens
        latencies = _latencies(forced.alternative_ttft_ps, forced.alternative_e2e_ps)
        true = {"cached_tokens": None if cached < 0 else cached, **latencies, "objective": forced.alternative_value}
    elif index == decision.judged:
        true = {"cached_tokens": decision.cached_tokens, **_latencies(decision.ttft_ps, decision.e2e_ps)}
    return {
        "id": ids.get(index, str(index)),
        "chosen": index in (decision.target, decision.prefill),
        **{name: values[place] if (values := getattr(decision, name)) else None for name in RECORDED_SINGLE},
        **({"tier_used": decision.tier_used[place]} if decision.tier_used else {}),
        "believed_tokens": decision.believed_tokens[place],
        "estimated_ttft_ms": _ms_or_none(decision.estimated_ttft_ps[place]),
        "scores": {name: row[place] for name, row in decision.scores.items()},
        "total": decision.totals[place] if decision.totals else None,
        "true": true,
    }


def _latencies(ttft_ps: int, e2e_ps: int) -> Json:
    return {"ttft_ms": _ms_or_none(ttft_ps), "e2e_ms": _ms_or_none(e2e_ps)}


def _ms_or_none(ps: int) -> float | None:
    return None if ps < 0 else _ms(ps)


def _ms(ps: int) -> float:
    return ps / PS_PER_MS
