"""Why a request went where it went, for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headway.config.wording import listed
from headway.report.terminal import GAP, facts, number, table

SHOWN = 16  # candidates that a terminal shows
SCORERS = 4


def explanation(found: Mapping[str, Any]) -> RenderableType:
    request, decision = found["request"], found["decision"]
    parts: list[RenderableType] = [Text(f"request {request['id']}", style="bold"), facts(_facts(request, found))]
    if decision is None:
        return Group(*parts, "", Text("No instance was chosen for it."))
    moves = found["taken_again"]
    parts += [
        "",
        Text(_sentence(request, decision, "" if moves else f"; {_found(request)}")),
        "",
        _candidates(decision),
    ]
    parts += ["", Text(_worth(request, decision))]
    for place, again in enumerate(moves, 1):
        where = f"; {_found(request)}" if place == len(moves) else ""
        parts.append(Text(f"It was sent again at {again['at_s']:.3f} s, to {again['target']}{where}."))
    return Group(*parts)


def _facts(request: Mapping[str, Any], found: Mapping[str, Any]) -> list[tuple[str, str]]:
    whose = f"{request['tenant']}, class {request['slo_class']}"
    if request["session"]:
        whose += f", session {request['session']}, turn {request['turn']}"
    rows = [
        ("arrived", f"at {request['arrival_s']:.3f} s, of {whose}"),
        ("tokens", f"{number(request['prompt_tokens'], 0)} in the prompt, {number(request['output_tokens'], 0)} out"),
    ]
    for one in found["admission"]:
        why = f": {one['reason']}" if one["reason"] else f" by {number(one['delay_ms'])} ms" if one["delay_ms"] else ""
        rows.append(("admission", f"{one['verdict']} at {one['at_s']:.3f} s{why}"))
    times = (("wait", "queue_wait_ms"), ("TTFT", "ttft_ms"), ("E2E", "e2e_ms"))
    told = ", ".join(f"{name} {number(request[key])} ms" for name, key in times if request[key] is not None)
    ended = request["outcome"].replace("_", " ") + (f" ({request['reason']})" if request["reason"] else "")
    rows.append(("ended", ended + (f"; {told}" if told else "")))
    return rows


def _found(request: Mapping[str, Any]) -> str:
    if request["cached_tokens"] is None:
        return "how many were, its engine does not tell"
    found = f"{number(request['cached_tokens'], 0)} of its prompt tokens were found cached there"
    return found + (f", some of them in the {request['loaded_from']} tier" if request["loaded_from"] else "")


def _sentence(request: Mapping[str, Any], decision: Mapping[str, Any], found: str) -> str:
    where = decision["target"]
    if decision["prefill"] is not None:
        where = f"{decision['prefill']}, which computed its prompt for {where}"
    why = f" ({decision['reason']})" if decision["reason"] else ""
    waited = (decision["at_s"] - request["arrival_s"]) * 1000
    late = f", {number(waited)} ms after it had come," if waited else ""
    said = f"At {decision['at_s']:.3f} s{late} it was sent to {where}{why}"
    if request["believed_tokens"] is None:
        return f"{said}{found}."
    believed = f"The policy believed {number(request['believed_tokens'], 0)} of its prompt tokens cached there"
    return f"{said}. {believed}{found}."


def _candidates(decision: Mapping[str, Any]) -> RenderableType:
    rows = sorted(decision["candidates"], key=lambda one: not one["chosen"])[:SHOWN]
    seen = ("in\nflight", "\nqueued", "pending\ntokens", "cached\nbelieved", "\ntrue", "TTFT ms\nestimated", "\ntrue")
    made = table("candidate", *seen, gap=1)
    for one in rows:
        true = one["true"] or {}
        figures = (one["inflight"], one["queued"], one["pending_prefill_tokens"], one["believed_tokens"])
        times = (one["estimated_ttft_ms"], true.get("ttft_ms"))
        counts = [number(figure, 0) for figure in (*figures, true.get("cached_tokens"))]
        made.add_row(_name(one), *counts, *map(number, times))
    parts: list[RenderableType] = [made]
    if any(one["total"] is not None for one in rows):
        parts += ["", _scores(rows, decision["lowest_wins"])]
    left = len(decision["candidates"]) - len(rows)
    return Group(*parts, Text(f" and {left:,} more, with --json")) if left else Group(*parts)


def _scores(rows: Sequence[Mapping[str, Any]], lowest_wins: bool) -> RenderableType:
    """What the policy chose by: the total, and the scorers that it is made of where there are several."""
    scorers = list(dict.fromkeys(name for one in rows for name in one["scores"]))
    named = scorers if 1 < len(scorers) <= SCORERS else []
    made = table(f"score, the {'lowest' if lowest_wins else 'highest'} wins", "total", *named, gap=1)
    for one in rows:
        scores = [one["total"], *(one["scores"].get(name) for name in named)]
        made.add_row(_name(one), *(number(score, 3) for score in scores))
    return made


def _name(one: Mapping[str, Any]) -> Text:
    return Text(("▸ " if one["chosen"] else "  ") + one["id"])


def _worth(request: Mapping[str, Any], decision: Mapping[str, Any]) -> str:
    best, estimated = decision["best_alternative"], decision["estimated_regret_ms"]
    said = f"The latency model told of {number(estimated)} ms to be gained when it was decided"
    if decision.get("live"):
        return f"{said}; it was live, and cannot be simulated again."
    others = [one for one in decision["candidates"] if one["true"] and not one["chosen"]]
    if not others:
        return f"{said}; there was no other place to try."
    saved = [one["id"] for one in others if one["true"]["e2e_ms"] is not None]
    if request["outcome"] != "completed" and saved:
        return f"{said}; simulated again, the request is completed on {listed(saved)}."
    if best is None:
        none = "gets no first token there" if request["ttft_ms"] is not None else "gets no first token either"
        return f"{said}; simulated again with every other choice, it {none}."
    if best["gain_ms"] <= 0:
        return f"{said}; simulated again with every other choice, none gives an earlier first token."
    by, was, would = decision["objective"], decision["objective_value"], best["objective"]
    worth = f" ({by}: {_figure(was)} as it was, {_figure(would)} then)" if by else ""
    return (
        f"{said}; simulated again, {best['id']} gives its first token {number(best['gain_ms'])} ms sooner, after "
        f"{number(best['ttft_ms'])} ms{worth}."
    )


def _figure(value: float | None) -> str:
    return GAP if value is None else f"{value:.4f}" if abs(value) < 10 else number(value)
