"""The explanation of a request's routing decision, for the terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.wording import join_words
from headway.errors import worded
from headway.policies.scorecards import TOTAL
from headway.report.number_format import GAP, count, number
from headway.report.terminal import facts, table

SHOWN = 16  # maximum number of candidates that the table shows
SCORERS = 4


def explanation(explained: Mapping[str, Any]) -> RenderableType:
    request, decision = explained["request"], explained["decision"]
    rows = facts(_facts(request, explained["admission"]))
    parts: list[RenderableType] = [Text(f"request {request['id']}", style="bold"), rows, ""]
    if decision is None:
        return Group(*parts, Text("It was not routed to any instance."))
    moves, hits = explained["taken_again"], f"; {_hits(request)}"
    parts += [Text(_sentence(request, decision, "" if moves else hits)), "", _candidates(decision)]
    parts += ["", Text(_worth(request, decision))]
    for place, again in enumerate(moves, 1):
        where = hits if place == len(moves) else ""
        parts.append(Text(f"It was dispatched again at {again['at_s']:.3f} s, to {again['target']}{where}."))
    return Group(*parts)


def _facts(request: Mapping[str, Any], verdicts: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    sender = f"{request['tenant']}, class {request['slo_class']}"
    if request["session"]:
        sender += f", session {request['session']}, turn {request['turn']}"
    rows = [
        ("arrived", f"at {request['arrival_s']:.3f} s, from {sender}"),
        ("tokens", f"{count(request['prompt_tokens'])} in the prompt, {count(request['output_tokens'])} out"),
    ]
    for verdict in verdicts:
        reason, delay = verdict["reason"], verdict["delay_ms"]
        why = f": {reason}" if reason else f" by {number(delay)} ms" if delay else ""
        rows.append(("admission", f"{verdict['verdict']} at {verdict['at_s']:.3f} s{why}"))
    times = (("wait", "queue_wait_ms"), ("TTFT", "ttft_ms"), ("E2E", "e2e_ms"))
    text = ", ".join(f"{name} {number(request[key])} ms" for name, key in times if request[key] is not None)
    ended = request["outcome"].replace("_", " ") + (f" ({request['reason']})" if request["reason"] else "")
    rows.append(("ended", ended + (f"; {text}" if text else "")))
    return rows


def _hits(request: Mapping[str, Any]) -> str:
    if request["cached_tokens"] is None:
        return "the engine does not report how many were"
    tier = f", some of them in the {request['loaded_from']} tier" if request["loaded_from"] else ""
    return f"{count(request['cached_tokens'])} of its prompt tokens were cached there{tier}"


def _sentence(request: Mapping[str, Any], decision: Mapping[str, Any], hits: str) -> str:
    where = decision["target"]
    if decision["prefill"] is not None:
        where = f"{decision['prefill']} for prefill and to {where} for decode"
    why = f" ({decision['reason']})" if decision["reason"] else ""
    waited = (decision["at_s"] - request["arrival_s"]) * 1000
    late = f", {number(waited)} ms after its arrival," if waited else ""
    believed = ""
    if request["believed_tokens"] is not None:
        believed = f". The policy believed {count(request['believed_tokens'])} of its prompt tokens cached there"
    return f"At {decision['at_s']:.3f} s{late} it was sent to {where}{why}{believed}{hits}."


def _candidates(decision: Mapping[str, Any]) -> RenderableType:
    candidates = sorted(decision["candidates"], key=lambda candidate: not candidate["chosen"])[:SHOWN]
    heads = ("in\nflight", "\nqueued", "pending\ntokens", "cached\nbelieved", "\ntrue", "TTFT ms\nestimated", "\ntrue")
    keys = ("inflight", "queued", "pending_prefill_tokens", "believed_tokens")
    rows = []
    for candidate in candidates:
        true = candidate["true"] or {}
        counts = [*(candidate[key] for key in keys), true.get("cached_tokens")]
        times = (candidate["estimated_ttft_ms"], true.get("ttft_ms"))
        rows.append([_name(candidate), *map(count, counts), *map(number, times)])
    parts: list[RenderableType] = [table("candidate", *heads, rows=rows, gap=1)]
    if any(candidate["total"] is not None for candidate in candidates):
        parts += ["", _scores(candidates, decision["lowest_wins"])]
    left = len(decision["candidates"]) - len(candidates)
    return (
        Group(*parts, Text(f" and {left:,} more; {worded('use --json to see all', 'to_pandas() has all')}"))
        if left
        else Group(*parts)
    )


def _scores(candidates: Sequence[Mapping[str, Any]], lowest_wins: bool) -> RenderableType:
    """Return a table of the policy's totals, and of its scorers if there are several."""
    scorers = list(dict.fromkeys(name for candidate in candidates for name in candidate["scores"] if name != TOTAL))
    scorers = scorers if 1 < len(scorers) <= SCORERS else []
    rows = []
    for candidate in candidates:
        scores = [candidate["total"], *(candidate["scores"].get(name) for name in scorers)]
        rows.append([_name(candidate), *(number(score, 3) for score in scores)])
    return table(f"score, the {'lowest' if lowest_wins else 'highest'} wins", "total", *scorers, rows=rows, gap=1)


def _name(candidate: Mapping[str, Any]) -> str:
    return ("▸ " if candidate["chosen"] else "  ") + str(candidate["id"])


def _worth(request: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    best, estimated = decision["best_alternative"], decision["estimated_regret_ms"]
    estimate = f"At the decision, the latency model estimated a possible gain of {number(estimated)} ms"
    if decision.get("live"):
        return f"{estimate}; live traffic cannot be simulated again."
    others = [each for each in decision["candidates"] if each["true"] and not each["chosen"]]
    if not others:
        return f"{estimate}; there was no other candidate."
    saved = [other["id"] for other in others if other["true"]["e2e_ms"] is not None]
    if request["outcome"] != "completed" and saved:
        return f"{estimate}; simulated again, the request is completed on {join_words(saved)}."
    if best is None:
        none = "gets no first token there" if request["ttft_ms"] is not None else "gets no first token either"
        return f"{estimate}; simulated again with every other choice, it {none}."
    if best["gain_ms"] <= 0:
        return f"{estimate}; simulated again with every other choice, none gives an earlier first token."
    by, was, would = decision["objective"], decision["objective_value"], best["objective"]
    worth = f" ({by}: {_figure(would)} instead of {_figure(was)})" if by else ""
    return (
        f"{estimate}; simulated again, {best['id']} gives the first token {number(best['gain_ms'])} ms sooner, after "
        f"{number(best['ttft_ms'])} ms{worth}."
    )


def _figure(value: float | None) -> str:
    return GAP if value is None else f"{value:.4f}" if abs(value) < 10 else number(value)
