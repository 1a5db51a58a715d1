"""Intake: turns an HTTP request into the `Request` that policies see, and begins its exchange."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.config.units import positive_duration_ps
from headway.gateway.prompt_tokens import Hasher, Tokens
from headway.gateway.request_body import Body
from headway.gateway.request_sessions import SessionSettings
from headway.types import Path, Request

if TYPE_CHECKING:
    from headway.gateway.api_keys import Key
    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.request_spans import Tracing
    from headway.gateway.waiting import Waiting
    from headway.http.request_reader import Incoming

TENANT, CLASS, DEADLINE = b"x-headway-tenant", b"x-headway-class", b"x-headway-deadline"
LONGEST: Final = 200  # maximum length of a tenant's or class's name, in characters
MOST_TENANTS: Final = 10_000  # maximum number of tenants, to limit memory; further tenants count as "other"
NOT_YET: Final = Path((), ())  # placeholder for the path of a long prompt until a thread has hashed the prompt
MOST_TOKENS: Final = 1 << 31  # larger values of `max_tokens` are reduced to this number
NO_ADAPTERS: Final[Mapping[str, str]] = MappingProxyType({})
log = logging.getLogger("headway.gateway")


class Intake:
    def __init__(
        self,
        clock: Clock,
        waiting: Waiting,
        tokens: Tokens,
        sessions: SessionSettings,
        deadlines: Mapping[str, int],
        classes: Sequence[str],
        tracing: Tracing | None = None,
        adapters: Mapping[str, str] = NO_ADAPTERS,
    ) -> None:
        """`deadlines` maps SLO classes to time limits in picoseconds. `classes` has the most important class first.
        `adapters` maps the LoRA adapters that engines list now to the models that they extend."""
        self.clock, self.waiting, self.tracing = clock, waiting, tracing
        self.tokens, self.sessions, self.deadlines = tokens, sessions, deadlines
        self.ranks, self.adapters = rank_classes(classes), adapters
        self.count = 0
        self.tenants: dict[str, None] = {}

    def request(self, kind: str, incoming: Incoming, body: Body, key: Key | None) -> Request:
        """Return the request that policies see. If the prompt is long, the path is NOT_YET, because a thread hashes the
        prompt later (`begin`). Raise if a header is invalid."""
        adapter = body.model if body.model in self.adapters else None
        hasher = self.hasher(body.model)
        path, tokens = (NOT_YET, 1) if hasher.long(body) else hasher.path(body)
        fields = incoming.named
        tenant, slo_class = "default", "standard"
        if TENANT in fields:
            tenant = self.tenant(fields[TENANT])
        if CLASS in fields:
            slo_class = fields[CLASS].decode("latin-1")[:LONGEST]
        if key is not None:  # the key sets the tenant and the most important class
            tenant = key.tenant
            slo_class = self.allowed_class(slo_class, key.slo_class) if CLASS in fields else key.slo_class
        deadline_ps = self.deadline(fields.get(DEADLINE), slo_class)
        number, now_ps = self.count, self.clock.now_ps()
        self.count += 1
        most = body.max_completion_tokens or body.max_tokens
        return Request(
            number,
            now_ps,
            tokens,
            path,
            model=body.model,
            tenant=tenant,
            slo_class=slo_class,
            session=self.sessions.session(fields.get(self.sessions.header), body.user, body.opening, tenant, body.hint),
            max_tokens=None if most is None else int(max(0, min(most, MOST_TOKENS))),
            deadline_ps=None if deadline_ps is None else now_ps + deadline_ps,
            adapter=adapter,
            kind=kind,
        )

    def hasher(self, model: str) -> Hasher:
        """Return the hasher of a model. A LoRA adapter has the tokenizer of the model that it extends, unless
        `tokens.models` names the adapter."""
        known = self.tokens.models
        return self.tokens.of(self.adapters[model] if model in self.adapters and model not in known else model)

    def begin(self, exchange: Exchange, body: Body, begin: Callable[[int], None]) -> None:
        """Call `begin` with the arrival time. If the prompt is long, call it after a thread has hashed the prompt."""
        if self.tracing is not None:
            self.tracing.begin(exchange)
        if exchange.request.path is NOT_YET:
            self.clock.spawn(self._begin_later(exchange, body, begin))
            return
        begin(exchange.request.arrival_ps)
        self.waiting.follow_alarm()

    def ask_model(self, exchange: Exchange, prompt: Body, model: str) -> None:
        """Begin a separate request of an exchange to another model."""
        prompt.model = model
        exchange.renew(self.request(exchange.request.kind, exchange.incoming, prompt, exchange.key))
        self.begin(exchange, prompt, exchange.ask)

    async def _begin_later(self, exchange: Exchange, body: Body, begin: Callable[[int], None]) -> None:
        """Hash a long prompt in a thread, while the event loop serves other requests."""
        try:
            path, tokens = await self.hasher(body.model).path_later(body)
            if not exchange.over:
                exchange.request = replace(exchange.request, path=path, prompt_tokens=tokens)
                begin(self.clock.now_ps())
                self.waiting.set_alarm()
        except Exception:  # nothing awaits this task, so its exception would be lost
            log.exception("the gateway failed to begin a request with a long prompt")
            exchange.fail()

    def tenant(self, field: bytes) -> str:
        name = field.decode("latin-1")[:LONGEST]
        if name not in self.tenants:
            if len(self.tenants) >= MOST_TENANTS:
                return "other"
            self.tenants[name] = None
        return name

    def allowed_class(self, asked: str, most: str) -> str:
        """Return the class that a client asks for, if it is less important than `most`; otherwise `most`. If the
        importance of either class is unknown, return `most`."""
        ranks = self.ranks
        return asked if asked in ranks and most in ranks and ranks[asked] > ranks[most] else most

    def deadline(self, field: bytes | None, slo_class: str) -> int | None:
        """Return the time limit from the header. Without a header, return the limit of the SLO class; None if unset."""
        if field is None:
            return self.deadlines.get(slo_class)
        text = field.decode("latin-1").strip()
        return positive_duration_ps(f"{text}s" if text.replace(".", "", 1).isdigit() else text, "x-headway-deadline")


def rank_classes(classes: Sequence[str]) -> dict[str, int]:
    """Return the rank of each SLO class; the most important class has rank 0."""
    return {name: rank for rank, name in enumerate(classes)}
