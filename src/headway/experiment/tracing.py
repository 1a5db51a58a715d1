"""What a run writes down beside its requests, and who else hears of its decisions.

minimal     nothing more
decisions   every decision with what it rested on, and how full the GPUs were over time
full        also how each batch changes, and what moves between the stores of KV blocks
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from headway.config.wording import shown, suggest
from headway.control.journal import Journal
from headway.errors import HeadwayError
from headway.policies.context import Context
from headway.results import store
from headway.results.decision_log import DecisionLog
from headway.results.result import Result
from headway.results.store import TRACES
from headway.types import Delay, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView

Explain = Callable[[Request, Route], None]  # is told every routing decision, with its scorecard


class Told:
    """A journal that passes routing decisions on."""

    def __init__(self, explain: Explain) -> None:
        self.explain = explain

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        pass

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        self.explain(request, route)

    def on_stopped(self, instance: int) -> None:
        pass


def check_trace(trace: str) -> None:
    if trace not in TRACES:
        raise HeadwayError(f"trace: there is no level {shown(trace)}.{suggest(str(trace), TRACES)}")


def kept(folder: Path, key: str, trace: str) -> Result | None:
    """A run that this version has written there, whole and with as much of it as is asked for; None without one."""
    try:
        return Result.load(folder) if store.has(folder, key, trace) else None
    except HeadwayError:  # somebody has been at it
        return None


def journals(log: DecisionLog | None, explain: Explain | None, routers: int) -> list[list[Journal]]:
    """Who hears of the decisions of each router."""
    found: list[list[Journal]] = []
    for router in range(routers):
        told: list[Journal] = [] if log is None else [log.journal(router)]
        found.append(told if explain is None else [*told, Told(explain)])
    return found
