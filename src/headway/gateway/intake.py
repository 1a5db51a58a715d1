"""Makes the `Request` that policies see from the head and body of an HTTP request, and begins its exchange."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from headway.config.units import duration_ps
from headway.errors import HeadwayError
from headway.gateway.prompt_tokens import Tokens
from headway.gateway.request_body import Body
from headway.gateway.request_sessions import SessionSettings
from headway.types import Path, Request

if TYPE_CHECKING:
    from headway.gateway.api_keys import Key
    from headway.gateway.exchange import Exchange
    from headway.gateway.live_clock import Clock
    from headway.gateway.observing.request_spans import Tracing
    from headway.gateway.waiting import Waiting
    from headway.http.wire import Incoming

TENANT, CLASS, DEADLINE = b"x-headway-tenant", b"x-headway-class", b"x-headway-deadline"
LONGEST: Final = 200  # signs of a name
MOST_NAMES: Final = 10_000  # tenants that are distinguished; policies and metrics keep state of each
NOT_YET: Final = Path((), ())  # the path of a long prompt until it has been read
MOST_TOKENS: Final = 1 << 31  # larger requests count as this
log = logging.getLogger("headway.gateway")


class Intake:
    def __init__(
        self,
        clock: Clock,
        waiting: Waiting,
        tokens: Tokens,
        sessions: SessionSettings,
        deadlines: Mapping[str, int],
        tracing: Tracing | None = None,
    ) -> None:
        """`deadlines` are picoseconds by SLO class."""
        self.clock, self.waiting, self.tracing = clock, waiting, tracing
        self.tokens, self.sessions, self.deadlines = tokens, sessions, deadlines
        self.count = 0
        self.tenants: dict[str, None] = {}

    def request(self, kind: str, incoming: Incoming, body: Body, key: Key | None) -> Request:
        """Raises HeadwayError if a field is wrong. A long prompt has no path yet."""
        hasher = self.tokens.of(body.model)
        path, tokens = (NOT_YET, 1) if hasher.long(body) else hasher.path(body)
        fields = incoming.named
        tenant, slo_class = "default", "standard"
        if TENANT in fields:
            tenant = self.tenant(fields[TENANT])
        if CLASS in fields:
            slo_class = fields[CLASS].decode("latin-1")[:LONGEST]
        if key is not None:  # the key decides, not the head
            tenant, slo_class = key.tenant, key.slo_class or slo_class
        deadline_ps = self.deadline(fields.get(DEADLINE), slo_class)
        number, now_ps = self.count, self.clock.now_ps()
        self.count += 1
        return Request(
            number,
            now_ps,
            tokens,
            path,
            model=body.model,
            tenant=tenant,
            slo_class=slo_class,
            session=self.sessions.session(fields.get(self.sessions.header), body.user, body.messages, tenant),
            max_tokens=_most(body.max_completion_tokens or body.max_tokens),
            deadline_ps=None if deadline_ps is None else now_ps + deadline_ps,
            kind=kind,
        )

    def begin(self, exchange: Exchange, body: Body, begin: Callable[[int], None]) -> None:
        """Call `begin` with the time of arrival, at once or when the prompt has been read."""
        if self.tracing is not None:
            self.tracing.begin(exchange)
        if exchange.request.path is NOT_YET:
            self.clock.spawn(self._begin_later(exchange, body, begin))
            return
        begin(exchange.request.arrival_ps)
        self.waiting.follow_alarm()

    async def _begin_later(self, exchange: Exchange, body: Body, begin: Callable[[int], None]) -> None:
        """Read a long prompt in a thread while other requests go on."""
        try:
            path, tokens = await self.tokens.of(body.model).path_later(body)
            if not exchange.over:
                exchange.request = replace(exchange.request, path=path, prompt_tokens=tokens)
                begin(self.clock.now_ps())
                self.waiting.set_alarm()
        except Exception:  # a task's exception would be lost
            log.exception("a request could not be begun")
            exchange.fail()

    def tenant(self, field: bytes) -> str:
        name = field.decode("latin-1")[:LONGEST]
        if name not in self.tenants:
            if len(self.tenants) >= MOST_NAMES:
                return "other"
            self.tenants[name] = None
        return name

    def deadline(self, field: bytes | None, slo_class: str) -> int | None:
        """Return the time left: the client's, or else that of its SLO class."""
        if field is None:
            return self.deadlines.get(slo_class)
        text = field.decode("latin-1").strip()
        left_ps = duration_ps(f"{text}s" if text.replace(".", "", 1).isdigit() else text, "x-headway-deadline")
        if left_ps <= 0:
            raise HeadwayError("x-headway-deadline: must be longer than nothing.")
        return left_ps


def _most(tokens: float | None) -> int | None:
    """Bound the number of tokens that a client asks for."""
    return None if tokens is None else int(max(0, min(tokens, MOST_TOKENS)))
