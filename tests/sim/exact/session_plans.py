"""Session traffic from plain data, made afresh for every run: a plan is a list of sources, each a dictionary."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from draw_sources import Draws, pick
from headway import hashing
from headway.types import NEVER, Path
from headway.workload.sessions import Chain, Graph, Session, Turn
from headway.workload.traffic import Retry, Sessions, SessionStart, Source

Json = dict[str, Any]
ROOM = 1000  # turns, more than any source has


def plan(draws: Draws, unit_ps: int, longest: int) -> list[Json]:
    """One to three sources of chains and graphs whose delays are multiples of a unit, often none at all; no prompt and
    its output are longer than so many tokens."""
    return [source(draws, number, unit_ps, longest) for number in range(draws.between(1, 3))]


def source(draws: Draws, tenant: int, unit_ps: int, longest: int) -> Json:
    sessions, at = [], 0
    branching = pick(draws, False, False, True)
    for _ in range(draws.between(1, 6)):
        at += unit_ps * pick(draws, 0, 0, 1, 3, 20)
        count = draws.between(1, 6)
        waits = [_earlier(draws, one) for one in range(count)] if branching else None
        turns = [
            {
                "new": draws.between(1, longest // 4),
                "output": draws.between(1, max(1, longest // 6)),
                "delay_ps": unit_ps * pick(draws, 0, 0, 0, 1, 2, 10),
            }
            for _ in range(count)
        ]
        sessions.append({"start_ps": at, "turns": turns, "after": waits})
    return {
        "tenant": f"t{tenant}",
        "sessions": sessions,
        "longest": longest,
        "retry": pick(draws, (0, 0), (2, 0), (1, unit_ps), (2, 3 * unit_ps)),
        "users": pick(draws, None, None, 1, 2, 3),
        "pause_ps": unit_ps * pick(draws, 0, 0, 1, 5),
        "stop_ps": pick(draws, NEVER, NEVER, NEVER, 40 * unit_ps),
    }


def _earlier(draws: Draws, number: int) -> list[int]:
    """What a turn of a graph waits for."""
    return sorted({draws.between(0, number - 1) for _ in range(draws.between(0, 2))}) if number else []


def traffic(plan: list[Json]) -> Sessions:
    return Sessions([_source(number, one) for number, one in enumerate(plan)])


def _source(number: int, given: Json) -> Source:
    sessions: list[SessionStart] = []
    first = number * ROOM
    for one in given["sessions"]:
        turns = _turns(one, first, given["longest"])
        name = f"{given['tenant']}-{len(sessions)}"
        make: Callable[[], Session] = partial(Chain, name, given["tenant"], "standard", iter(turns), len(turns))
        if one["after"] is not None:
            make = partial(Graph, name, given["tenant"], "standard", turns, one["after"])
        sessions.append((one["start_ps"], make))
        first += len(turns)
    options = {key: given[key] for key in ("users", "pause_ps", "stop_ps")}
    return Source(iter(sessions), retry=Retry(*given["retry"]), **options)


def _turns(session: Json, first: int, longest: int) -> list[Turn]:
    """Each goes on with what the last turn that it waits for was asked and said, as far as there is room."""
    turns: list[Turn] = []
    for number, given in enumerate(session["turns"]):
        after = session["after"][number] if session["after"] is not None else [number - 1] if number else []
        path = Path((), ())
        if after:
            before = turns[after[-1]]
            if before.prompt_tokens + before.output_tokens + given["new"] + given["output"] <= longest:
                path = _extended(before.path, before.output_key, before.output_tokens)
        path = _extended(path, hashing.key(hashing.PROMPT, first + number), given["new"])
        said = hashing.key(hashing.OUTPUT, first + number)
        turns.append(Turn(path.tokens, given["output"], path, said, given["delay_ps"], kind="chat"))
    return turns


def _extended(path: Path, key: int, tokens: int) -> Path:
    return Path((*path.keys, key), (*path.ends, path.tokens + tokens))
