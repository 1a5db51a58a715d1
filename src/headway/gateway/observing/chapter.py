"""A stretch of live traffic while it is gathered, until it is written as a run folder. What is kept of a request is put
down as it is, and many at a time become bytes: to sort it into columns is for the process that writes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from headway.policies.context import LRU_BLOCKS
from headway.policies.prefix_index import PrefixIndex
from headway.results.decision_log import recorded
from headway.results.decisions import Verdict
from headway.types import Delay, Json, Priority, Reject, Request, Route, Scorecard
from headway.views.cluster import ClusterView
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.observing.observed_exchange import Observed
    from headway.policies.context import Context

UNTOLD: Final = -1
AT_A_TIME: Final = 64  # of them become bytes, within some tenths of a millisecond


class Engine(Struct):
    """Who stood at a place."""

    name: str
    pool: str
    model: str
    role: str
    kv_blocks: int
    max_batch_size: int
    max_batch_tokens: int
    peak_kv: int = 0


class Ended(Struct, array_like=True, gc=False):
    """A request and what came of it."""

    id: int
    tenant: str
    slo_class: str
    session: str | None
    kind: str
    model: str
    max_tokens: int | None
    counted_tokens: int  # of its prompt, by the gateway
    keys: tuple[int, ...]  # its prompt's blocks, and where they end
    ends: tuple[int, ...]
    arrival_ps: int
    finished_ps: int
    outcome: str
    why: str
    sent_ps: int = UNTOLD
    first_ps: int = UNTOLD
    place: int = UNTOLD
    usage: bytes = b""  # as the engine tells it
    output_tokens: int = 0
    believed_tokens: int = 0
    retries: int = 0
    priority: float = 0.0


class Taken(Struct, array_like=True, gc=False):
    """A decision, by places."""

    request: int
    at_ps: int
    target: int
    prefill: int
    priority: float
    reason: str
    candidates: int  # the number of their set
    seen: list[list[int]]
    believed: list[int]
    prompt_tokens: int
    card: Scorecard | None


class Heap:
    """Structs that become bytes, some at a time."""

    def __init__(self) -> None:
        self.rows: list[Struct] = []
        self.pieces: list[bytes] = []
        self.size = 0  # of the pieces

    def add(self, row: Struct) -> None:
        self.rows.append(row)
        if len(self.rows) >= AT_A_TIME:
            self.pack()

    def pack(self) -> list[bytes]:
        if self.rows:
            self.pieces.append(msgspec.msgpack.encode(self.rows))
            self.size += len(self.pieces[-1])
            self.rows.clear()
        return self.pieces


class LogDocument(Struct):
    """Decisions as they travel."""

    taken: list[bytes]  # of Taken, some in a piece
    sets: list[tuple[int, ...]]
    signals: list[str]  # in the order of `Taken.seen`
    block_tokens: int
    verdicts: list[Verdict]


class ChapterDocument(Struct):
    """All of a chapter, for the process that writes its folder."""

    folder: str
    first: int
    ended_ps: int
    policies: Json
    block_tokens: int
    prompts: bool
    engines: dict[int, Engine]
    ended: list[bytes]  # of Ended, some in a piece
    metrics: dict[str, float]
    log: LogDocument | None


class LiveJournal:
    """Decisions with what they rested on. Where the policies keep no prefix index it keeps one beside them, so that it
    can say what could have been known."""

    def __init__(self) -> None:
        self.taken = Heap()
        self.sets: dict[tuple[int, ...], int] = {}
        self.verdicts: list[Verdict] = []
        self.instances: Sequence[InstanceView] = ()
        self.candidates: tuple[int, ...] = ()
        self.number = 0
        self.block_tokens = 1
        self.signals: list[str] = []

    def bind(self, context: Context, cluster: ClusterView, reported: Collection[str]) -> None:
        self.cluster, self.views = cluster, context.instances
        self.places: dict[str, int] = {}
        self.own = not context.indexes
        self.index = PrefixIndex(len(self.views), LRU_BLOCKS, context.block_tokens) if self.own else context.indexes[0]
        self.block_tokens, self.signals = self.index.block_tokens, recorded(reported)
        self.getters = [attrgetter(name) for name in self.signals]

    def on_refused(self, now_ps: int, request: Request, verdict: Reject | Delay) -> None:
        if isinstance(verdict, Reject):
            self.verdicts.append(Verdict(now_ps, request.id, "rejected", verdict.reason))
        else:
            self.verdicts.append(Verdict(now_ps, request.id, "delayed", "", verdict.duration_ps))

    def on_stopped(self, instance: int) -> None:
        if self.own:
            self.index.clear(instance)

    def on_routed(self, now_ps: int, request: Request, route: Route, priority: Priority) -> None:
        instances = self.cluster.instances
        target = self._place(route.target)
        prefill = UNTOLD if route.prefill is None else self._place(route.prefill)
        if instances is not self.instances:  # they are the same until one comes or goes
            self.instances, self.candidates = instances, tuple([view.index for view in instances])
            self.number = self.sets.setdefault(self.candidates, len(self.sets))
        found = self.index.matches(request.path)
        self.taken.add(
            Taken(
                request.id,
                now_ps,
                target,
                prefill,
                priority.score if route.priority is None else route.priority,
                route.reason,
                self.number,
                [list(map(getter, instances)) for getter in self.getters],
                [found[place] for place in self.candidates],
                request.prompt_tokens,
                route.scorecard,
            )
        )
        if self.own:
            self.index.touch(target, request.path)
            if prefill >= 0:
                self.index.touch(prefill, request.path)

    def _place(self, name: str) -> int:
        """Engines take and leave places while it is kept."""
        place = self.places.get(name)
        if place is None or self.views[place].id != name:
            self.places = {view.id: view.index for view in self.views if view.id}
            place = self.places[name]
        return place

    def document(self) -> LogDocument:
        return LogDocument(self.taken.pack(), list(self.sets), self.signals, self.block_tokens, self.verdicts)


class Chapter:
    """The requests from number `first` up to `end`, which is known when the next chapter has begun."""

    def __init__(
        self, first: int, engines: dict[int, Engine], policies: Json, decisions: bool, prompts: bool = True
    ) -> None:
        self.first, self.end = first, -1
        self.engines, self.policies = engines, policies
        self.prompts = prompts  # whether they are kept
        self.rows = Heap()
        self.count = 0
        self.open: dict[int, Request] = {}  # decided on, and not ended
        self.journal = LiveJournal() if decisions else None
        self.deadline = 0.0  # by when it is written, whoever has not ended

    @property
    def size(self) -> int:
        """In bytes."""
        return self.rows.size + (0 if self.journal is None else self.journal.taken.size)

    @property
    def over(self) -> bool:
        return 0 <= self.end - self.first <= self.count

    def ended(self, exchange: Observed, now_ps: int, outcome: str, why: str) -> None:
        request, flight, backend, tally = exchange.request, exchange.flight, exchange.backend, exchange.tally
        row = self._row(request, now_ps, outcome, why)
        row.retries = max(0, exchange.attempts - 1)
        if exchange.sent_ps >= 0 and backend is not None:
            row.sent_ps, row.first_ps, row.place = exchange.sent_ps, exchange.first_ps, backend.place
            row.usage, row.output_tokens = tally.usage, tally.tokens
            engine = self.engines.get(row.place)
            if engine is not None and engine.peak_kv < backend.view.kv_used:
                engine.peak_kv = backend.view.kv_used
        if flight is not None:
            row.believed_tokens, row.priority = flight.cached, float(flight.priority)
        self.rows.add(row)
        self.open.pop(request.id, None)

    def _row(self, request: Request, now_ps: int, outcome: str, why: str) -> Ended:
        path = request.path
        self.count += 1
        return Ended(
            request.id,
            request.tenant,
            request.slo_class,
            request.session,
            request.kind,
            request.model,
            request.max_tokens,
            request.prompt_tokens,
            path.keys if self.prompts else (),
            path.ends if self.prompts else (),
            request.arrival_ps,
            now_ps,
            outcome,
            why,
        )

    def document(self, folder: str, now_ps: int, block_tokens: int, metrics: dict[str, float]) -> ChapterDocument:
        """Of those that have not ended it says that they are in flight."""
        for request in self.open.values():
            self.rows.add(self._row(request, UNTOLD, "in_flight", ""))
        return ChapterDocument(
            folder,
            self.first,
            now_ps,
            self.policies,
            block_tokens,
            self.prompts,
            self.engines,
            self.rows.pack(),
            metrics,
            None if self.journal is None else self.journal.document(),
        )
