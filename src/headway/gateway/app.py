"""The gateway: what its parts share, how a request begins, and what is done now and then."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

import msgspec
import xxhash

from headway.flight import QUEUED
from headway.gateway.answers import error_body, head_of
from headway.gateway.backend import Backend
from headway.gateway.config import Config, build_policies
from headway.gateway.exchange import Exchange
from headway.gateway.health import Health
from headway.gateway.plane import Plane, clock
from headway.gateway.prompt import Body, path_of, read_body
from headway.gateway.wire import Client, Incoming
from headway.hashing import stable
from headway.policies.flow import NEVER
from headway.types import InstanceView, Request

ROUTED: Final = {b"/v1/chat/completions": "chat", b"/v1/completions": "completion", b"/v1/embeddings": "embedding"}
SWEEP_S: Final = 1.0
BACKLOG: Final = 4096  # connections that wait to be accepted
BLOCK_TOKENS: Final = 16
BYTES_PER_TOKEN: Final = 4  # of prompts that no tokenizer reads
SESSION, TENANT, CLASS = b"x-headway-session", b"x-headway-tenant", b"x-headway-class"
READ: Final = frozenset((SESSION, TENANT, CLASS))


class StepTimes:
    """Of an engine that nobody has measured: a prefill token takes 20 us, a step 7 ms. For policies that predict."""

    def step_seconds(self, view: InstanceView, prefill_tokens: int, decodes: int, context: int) -> float:
        return 0.007 + 2e-5 * prefill_tokens + 4e-8 * context if prefill_tokens or decodes else 0.0


class Counts:
    """Stands where metrics will be."""

    def __init__(self) -> None:
        self.retries = 0
        self.refusals: dict[int, int] = {}

    def retried(self, why: str) -> None:
        self.retries += 1

    def refused(self, status: int) -> None:
        self.refusals[status] = self.refusals.get(status, 0) + 1


class App:
    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        self.loop, self.config = loop, config
        self.limits, self.timeouts, self.retries = config.limits, config.timeouts, config.retries
        views = [
            InstanceView(
                index,
                one.name,
                model=one.models[0] if one.models else "",
                serves=one.models,
                kv_blocks=one.kv_blocks,
                max_batch_size=one.max_batch_size,
                max_batch_tokens=one.max_batch_tokens,
                max_queue=one.max_queue,
                capacity=one.capacity,
            )
            for index, one in enumerate(config.backends)
        ]
        self.now_ps = clock()
        self.plane = Plane(views, lambda: build_policies(config.policies), StepTimes(), BLOCK_TOKENS)
        self.backends = [Backend(one.address, view, one.key) for one, view in zip(config.backends, views, strict=True)]
        self.salts = {model: stable("model", model) for one in config.backends for model in one.models}
        self.health = Health(self, config.failures, config.eject_s)
        self.metrics = Counts()
        self.clients: dict[Client, None] = {}
        self.waiting: dict[int, Exchange] = {}  # exchanges that the plane holds back, by request
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        self.requests = 0
        self._alarm: Any = None
        self._alarm_ps = NEVER

    def seconds(self) -> float:
        return time.monotonic()

    async def start(self) -> asyncio.Server:
        config = self.config
        server = await self.loop.create_server(lambda: Client(self), config.host, config.port, backlog=BACKLOG)
        self.loop.call_later(SWEEP_S, self._sweep)
        return server

    async def drain(self, seconds: float) -> None:
        """No request more on any connection; those under way may end."""
        self.draining = True
        until = self.seconds() + seconds
        while any(client.exchange is not None for client in self.clients) and self.seconds() < until:
            await asyncio.sleep(0.05)
        for client in list(self.clients):
            client.transport.abort()
        for backend in self.backends:
            for upstream in list(backend.free):
                upstream.close()

    # --- a request ---------------------------------------------------------------------------------------------------

    def begin(self, client: Client, incoming: Incoming) -> Exchange | None:
        """The exchange of a request that is routed; anything else is answered at once."""
        path = incoming.target.partition(b"?")[0]
        kind = ROUTED.get(path)
        if kind is None or incoming.method != b"POST":
            self._local(client, incoming, path)
            return None
        try:
            body = read_body(incoming.body)
        except msgspec.MsgspecError as error:
            self._say(client, incoming, 400, f"the body cannot be read: {error}")
            return None
        if not body.text:
            self._say(client, incoming, 400, "the request has no messages, prompt or input")
            return None
        request = self._request(kind, incoming, body)
        exchange = client.exchange = Exchange(self, client, incoming, request, body.stream)
        answer = self.plane.arrive(request.arrival_ps, request)
        if answer is None or answer is QUEUED:
            self.waiting[request.id] = exchange
            if answer is QUEUED:
                self.wake()
        exchange.decided(answer)
        if self.plane.next_ps != self._alarm_ps:
            self._set_alarm()
        return client.exchange

    def _request(self, kind: str, incoming: Incoming, body: Body) -> Request:
        text, number = body.text, self.requests
        self.requests += 1
        fields = {name: value for name, value in incoming.fields if name in READ}
        session = fields.get(SESSION)
        return Request(
            number,
            self.now_ps(),
            max(1, len(text) // BYTES_PER_TOKEN),
            path_of(text, self.salts.get(body.model, 0), xxhash.xxh3_64_intdigest, BYTES_PER_TOKEN),
            model=body.model,
            tenant=fields[TENANT].decode("latin-1") if TENANT in fields else "default",
            slo_class=fields[CLASS].decode("latin-1") if CLASS in fields else "standard",
            session=session.decode("latin-1") if session else body.user,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            kind=kind,
        )

    def _local(self, client: Client, incoming: Incoming, path: bytes) -> None:
        if path == b"/v1/models" and incoming.method == b"GET":
            self._answer(client, incoming, 200, msgspec.json.encode({"object": "list", "data": self.models()}))
        elif path == b"/health":
            self._answer(client, incoming, 200, b"{}")
        elif path in ROUTED:
            self._say(client, incoming, 405, "this is asked by POST")
        else:
            self._say(client, incoming, 404, f"there is nothing at {path.decode('latin-1')}")

    def _say(self, client: Client, incoming: Incoming, status: int, why: str) -> None:
        self.metrics.refused(status)
        self._answer(client, incoming, status, error_body(status, why))

    def models(self) -> list[dict[str, Any]]:
        """Those that some engine serves."""
        return [{"id": name, "object": "model", "created": 0, "owned_by": "headway"} for name in self.salts]

    def _answer(self, client: Client, incoming: Incoming, status: int, body: bytes) -> None:
        client.transport.writelines([head_of(status, len(body), close=not incoming.keep_alive), body])
        self.loop.call_soon(client.done, incoming.keep_alive)

    def ended(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        self.waiting.pop(exchange.request.id, None)
        if self.waiting:
            self.loop.call_soon(self.wake)

    # --- now and then ------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        for request, answer in self.plane.wake(self.now_ps()):
            exchange = self.waiting.pop(request.id, None)
            if exchange is not None:
                if answer is None:
                    self.waiting[request.id] = exchange
                exchange.decided(answer)
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ps = self.plane.next_ps
        if self._alarm_ps != NEVER:
            self._alarm = self.loop.call_later(max(0.0, (self._alarm_ps - self.now_ps()) / 1e12), self.wake)

    def _sweep(self) -> None:
        now = self.seconds()
        for client in list(self.clients):
            client.overdue(now)
        self.loop.call_later(SWEEP_S, self._sweep)
