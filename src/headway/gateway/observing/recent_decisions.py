"""The last decisions, with the signals and scores behind them. Scorecards take time to compute, so policies write only
a limited number of scorecards per second. The limit does not change any decision."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta, Struct, to_builtins

from headway.results.decisions import RECORDED_BY_KIND
from headway.results.router_past import RouterState, TenantState
from headway.types import PS_PER_SECOND, Delay, Json, Priority, Reject, Request, Route
from headway.views.cluster import ClusterView
from headway.views.instance import SIGNALS, InstanceView
from headway.views.signals import NOT_AVAILABLE

if TYPE_CHECKING:
    from headway.gateway.plane import Plane
    from headway.policies.context import Context

# Names of the signals that are shown for each candidate. Those in RECENT are available only if a policy declares them.
LIVE: Final = [name for name in RECORDED_BY_KIND if SIGNALS[name].live != NOT_AVAILABLE]
RECENT: Final = [name for name in LIVE if SIGNALS[name].reads == ("recent",)]
SHOWN: Final = [*[name for name in LIVE if name != "kv_used" and name not in RECENT], "kv_utilization"]
TOTALS: Final = RouterState.__struct_fields__
TENANT: Final = [name for name in TenantState.__struct_fields__ if name not in ("name", "slo_class")]
KEPT: Final = 512  # number of last decisions, and number of last explained decisions, to keep
PER_SECOND: Final = 20.0
MOST_REASONS: Final = 1000
LONGEST_REASON: Final = 200


class ExplainSettings(Struct, frozen=True):
    """The section `explain:` of a gateway's file: a mapping, a number or `all`."""

    per_second: Annotated[float, Meta(ge=0, le=10**6), "most decisions per second that policies explain"] = PER_SECOND
    all: Annotated[bool, "whether policies explain every decision"] = False
    short_form: ClassVar[Any] = Annotated[float, Meta(ge=0, le=10**6)] | Literal["all"]

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        if data == "all":
            return {"all": True}
        return {"per_second": data} if isinstance(data, int | float) else data


Kind = Literal["routed", "rejected", "delayed"]


class Entry(Struct, frozen=True, gc=False):
    """One decision. `candidates` holds the signals of each candidate before the decision, and `state` holds the state
    of the gateway and of the tenant. If the decision is not explained, both are None."""

    at_ps: int
    kind: Kind
    request: Request
    answer: Any
    priority: float
    candidates: list[Json] | None
    state: Json | None = None


class Decisions:
    """A journal of the control plane that keeps the last decisions."""

    def __init__(self, loop: asyncio.AbstractEventLoop, settings: ExplainSettings) -> None:
        self.loop, self.settings = loop, settings
        self.every: deque[Entry] = deque(maxlen=KEPT)
        self.explained: deque[Entry] = deque(maxlen=KEPT)
        self.cluster = ClusterView(())
        self.instances: Sequence[InstanceView] = ()
        # `left` is the number of decisions that may still be explained before `_ask` resets it to `most`.
        self.left = self.most = max(1, int(settings.per_second))
        self._asking = settings.all or settings.per_second > 0

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        """Use the cluster view of new policies. Called at the start, and whenever the policies are replaced."""
        self.cluster, self.instances = cluster, context.instances
        cluster.explain = self._asking

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        kind: Kind = "rejected" if isinstance(verdict, Reject) else "delayed"
        entry = Entry(now_ps, kind, request, verdict, 0.0, None)
        self.every.append(entry)
        self.explained.append(entry)  # a refusal counts as explained, because it needs no scorecard

    def on_prioritised(self, now_ps: int, request: Request, priority: Priority) -> None:
        pass

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        cluster = self.cluster
        if not cluster.explain:
            self.every.append(Entry(now_ps, "routed", request, route, priority.score, None))
            return
        candidates = [{"id": view.id, **_signals(view)} for view in cluster.instances]
        state = _state(self.instances, cluster, request)
        entry = Entry(now_ps, "routed", request, route, priority.score, candidates, state)
        self.every.append(entry)
        self.explained.append(entry)
        if self.settings.all:
            return
        if self.left == self.most:
            self.loop.call_later(self.most / self.settings.per_second, self._ask)
        self.left -= 1
        if not self.left:
            self._asking = cluster.explain = False

    def on_stopped(self, instance: int) -> None:
        pass

    def _ask(self) -> None:
        self.left = self.most
        self._asking = self.cluster.explain = True

    def last(self, count: int, every: bool = False) -> list[Json]:
        """Return the last `count` decisions, newest first. Without `every`, return explained decisions only."""
        entries = self.every if every else self.explained
        return [_document(entry) for entry in islice(reversed(entries), count)]


def _signals(view: InstanceView) -> Json:
    names = SHOWN if view._recent is None else (*SHOWN, *RECENT)
    return {name: getattr(view, name) for name in names}


def _state(instances: Sequence[InstanceView], cluster: ClusterView, request: Request) -> Json:
    """Return the totals of the gateway and the state of the request's tenant. Without a policy that declares `totals`
    or `tenants`, only the number of requests in flight is known."""
    totals, tenants = cluster._totals, cluster._tenants
    state: Json = {"router_state": {"inflight": sum([view.inflight for view in instances])}, "tenant_state": None}
    if totals is not None:
        state["router_state"] = {name: getattr(totals, name) for name in TOTALS}
    if tenants is not None:
        state["tenant_state"] = {name: getattr(tenants[request.tenant], name) for name in TENANT}
    return state


def _document(entry: Entry) -> Json:
    request, answer = entry.request, entry.answer
    common: Json = {
        "request": request.id,
        "at_s": entry.at_ps / PS_PER_SECOND,
        "decision": entry.kind,
        "model": request.model,
        "tenant": request.tenant,
        "slo_class": request.slo_class,
        "session": request.session,
        "prompt_tokens": request.prompt_tokens,
    }
    if isinstance(answer, Reject):
        return {**common, "reason": answer.reason}
    if isinstance(answer, Delay):
        return {**common, "delay_s": answer.duration_ps / PS_PER_SECOND}
    return {
        **common,
        "target": answer.target,
        "prefill": answer.prefill,
        "reason": answer.reason,
        "believed_tokens": answer.cached_tokens,
        "priority": entry.priority if answer.priority is None else answer.priority,
        **(entry.state or {}),
        "candidates": entry.candidates,
        "scorecard": None if answer.scorecard is None else to_builtins(answer.scorecard),
    }


class Reasons:
    """Header lines with the reason why the policy chose an engine."""

    def __init__(self, plane: Plane) -> None:
        self.plane = plane
        self.version = -1
        self.lines: dict[str, bytes] = {}

    def line(self, reason: str) -> bytes:
        """Return the header line for a policy's reason. If the reason is empty, use the policy's name."""
        if self.version != self.plane.version:
            self.version = self.plane.version
            self.lines.clear()
        line = self.lines.get(reason)
        if line is None:
            text = (reason or policy_name(self.plane.policies["routing"]))[:LONGEST_REASON]
            safe = "".join(sign if sign.isprintable() else " " for sign in text)  # a newline would begin another header
            line = b"x-headway-reason: " + safe.encode("ascii", "replace")
            if len(self.lines) < MOST_REASONS:
                self.lines[reason] = line
        return line


def policy_name(spec: Any) -> str:
    return str(spec.get("name", "")) if isinstance(spec, dict) else str(spec)
