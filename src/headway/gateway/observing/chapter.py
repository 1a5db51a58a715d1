"""One chapter of live traffic: the requests of one run folder, while the gateway collects them. The gateway encodes
each request as a row, in small groups of rows. The process that writes the run folder turns the rows into columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from headway.gateway.engines.member import BackendSpec
from headway.results.decision_log import DecisionLog
from headway.results.decisions import PriorityRecord, Verdict
from headway.results.recorder import ScaleRecord
from headway.types import Estimate, Json, Request, Scorecard

if TYPE_CHECKING:
    from headway.gateway.exchange import Exchange
    from headway.gateway.observing.observing_settings import RecordSettings

UNKNOWN: Final = -1
AT_A_TIME: Final = 64  # number of rows to encode together; encoding them takes a few tenths of a millisecond


class Engine(Struct):
    """An engine of the fleet: its specification, the number of its KV blocks, and the largest number of them that was
    in use."""

    spec: BackendSpec
    kv_blocks: int
    peak_kv: int = 0

    @property
    def model(self) -> str:
        return self.spec.models[0] if self.spec.models else ""


class EndedRequest(Struct, array_like=True, gc=False):
    """A request and its result."""

    id: int
    tenant: str
    slo_class: str
    session: str | None
    kind: str
    model: str
    max_tokens: int | None
    counted_tokens: int  # number of prompt tokens, as the gateway counts them
    keys: tuple[int, ...]  # block keys of the prompt; `ends` has the index of the token after each block
    ends: tuple[int, ...]
    arrival_ps: int
    finished_ps: int
    outcome: str
    why: str
    sent_ps: int = UNKNOWN
    first_ps: int = UNKNOWN
    place: int = UNKNOWN
    usage: bytes = b""  # bytes of the engine's answer from its usage field on; empty if it has no such field
    output_tokens: int = 0
    believed_tokens: int = 0
    retries: int = 0
    priority: float = 0.0
    expected_tokens: int = 0  # expected output tokens; 0 without an estimator


class DecisionRow(Struct, array_like=True, gc=False):
    """One decision: its scorecard, and the arguments of `DecisionLog.take`, with places of engines instead of
    indexes."""

    request: int
    at_ps: int
    router: int
    target: int
    prefill: int
    priority: float
    reason: str
    candidates: int  # index of the set of candidates in `LogDocument.sets`
    rows: list[list[Any]]
    others: list[list[Any]]
    believed: list[int]
    prompt_tokens: int
    prefix: int
    card: Scorecard | None
    estimate: Estimate | None = None


class RowBuffer:
    """Collects structs, and encodes them in groups."""

    def __init__(self) -> None:
        self.rows: list[Struct] = []
        self.pieces: list[bytes] = []
        self.size = 0  # total size of the encoded groups in `pieces`, in bytes

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
    """The decisions of a chapter, for the process that writes them."""

    rows: list[bytes]  # encoded groups of DecisionRow
    sets: Sequence[tuple[int, ...]]
    signals: list[str]  # names of the signals, in the order of `DecisionLog.watch`
    block_tokens: int
    verdicts: list[Verdict]
    priorities: list[PriorityRecord] = []


class ChapterDocument(Struct):
    """A complete chapter, for the process that writes its folder."""

    folder: str
    first: int
    policies: Json
    block_tokens: int
    belief_block_tokens: int
    prompts: bool
    engines: dict[int, Engine]
    ended: list[bytes]  # encoded groups of EndedRequest
    metrics: dict[str, float]
    log: LogDocument | None
    scaled: list[ScaleRecord] = []


class LiveLog(DecisionLog):
    """Buffers decisions as rows. The process that writes the run folder turns the rows into columns."""

    def __init__(self, prefixes: bool = True) -> None:
        """`prefixes` says whether the keys of the prompts' beginnings are recorded."""
        super().__init__()
        self.known = ("kv_used",)
        self.rows = RowBuffer()
        self.prefixes = prefixes
        self._row: tuple[Any, ...] = ()

    def take(self, *row: Any, **named: Any) -> None:
        self._row = row if self.prefixes else (*row[:-1], 0)

    def score(self, card: Scorecard | None, names: Sequence[str], estimate: Estimate | None = None) -> None:
        self.rows.add(DecisionRow(*(*self._row, card, estimate)))

    def document(self) -> LogDocument:
        signals = list(self.signals)
        return LogDocument(
            self.rows.pack(), self.sets.words, signals, self.block_tokens, self.verdicts, self.priorities
        )


class Chapter:
    """The requests with numbers from `first` to `end` - 1. `end` is -1 until the next chapter begins."""

    def __init__(self, first: int, engines: dict[int, Engine], policies: Json, settings: RecordSettings) -> None:
        self.first, self.end = first, -1
        self.engines, self.policies = engines, policies
        self.prompts = settings.prompts  # whether the block keys of prompts are recorded
        self.rows = RowBuffer()
        self.count = 0
        self.scaled: list[ScaleRecord] = []  # changes of the number of replicas that the scaling policy wants
        self.open: dict[int, Request] = {}  # requests that have a decision but have not ended, by request id
        self.log = LiveLog(settings.prompts) if settings.decisions else None
        self.journal = None if self.log is None else self.log.journal(0)
        self.deadline = 0.0  # time at which the chapter is written even if requests have not ended

    @property
    def size(self) -> int:
        """The size of the encoded rows, in bytes."""
        return self.rows.size + (0 if self.log is None else self.log.rows.size)

    @property
    def over(self) -> bool:
        return 0 <= self.end - self.first <= self.count

    def record_end(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
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
            row.expected_tokens = flight.expected
        self.rows.add(row)
        self.open.pop(request.id, None)

    def _row(self, request: Request, now_ps: int, outcome: str, why: str) -> EndedRequest:
        path = request.path
        self.count += 1
        return EndedRequest(
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

    def document(
        self, folder: str, block_tokens: int, belief_block_tokens: int, metrics: dict[str, float]
    ) -> ChapterDocument:
        """Return the chapter for the writing process. Requests that have not ended get the outcome `in_flight`."""
        for request in self.open.values():
            self.rows.add(self._row(request, UNKNOWN, "in_flight", ""))
        return ChapterDocument(
            folder,
            self.first,
            self.policies,
            block_tokens,
            belief_block_tokens,
            self.prompts,
            self.engines,
            self.rows.pack(),
            metrics,
            None if self.log is None else self.log.document(),
            self.scaled,
        )
