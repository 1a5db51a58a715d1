"""The gateway: what its parts share, how a request begins, and what is done now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
from msgspec.structs import replace

from headway.control.journal import Journal
from headway.errors import HeadwayError
from headway.gateway.cascade.cascade import Cascade
from headway.gateway.config import Config
from headway.gateway.deciding.failures import Failures
from headway.gateway.engines.checks import Checks
from headway.gateway.engines.fleet import Fleet
from headway.gateway.engines.health import Health
from headway.gateway.exchange import Exchange
from headway.gateway.handover.handover import Handover
from headway.gateway.intake import NOT_YET, Intake
from headway.gateway.keys import UNKNOWN, Key, Refusal
from headway.gateway.live_policies import read_policies
from headway.gateway.local import ROUTED, Local
from headway.gateway.membership.etcd_source import EtcdSource
from headway.gateway.membership.file_source import FileSource
from headway.gateway.observing.decisions import Decisions, Reasons
from headway.gateway.observing.figures import Figures
from headway.gateway.observing.records import Records
from headway.gateway.observing.status import figures_of
from headway.gateway.orders import Orders
from headway.gateway.peers import Peers
from headway.gateway.plane import Decided, Plane, clock
from headway.gateway.prompt import Body, read_body
from headway.gateway.shadow.canary_watch import CanaryWatch
from headway.gateway.shadow.shadows import Shadows
from headway.gateway.signals.event_listener import Listener
from headway.gateway.signals.signals import Signals
from headway.gateway.tape import Tape
from headway.gateway.tokens import Tokens
from headway.http.wire import ClientConnection, Incoming
from headway.types import NEVER

if TYPE_CHECKING:
    from headway.gateway.observing.tracing import Tracing

SWEEP_S: Final = 0.5
EXPIRE_S: Final = 2.0
BACKLOG: Final = 4096  # connections that wait to be accepted
log = logging.getLogger("headway.gateway")


class Component(Protocol):
    """A part that runs beside the requests."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class App:
    exchange_type: type[Exchange] = Exchange

    def __init__(self, loop: asyncio.AbstractEventLoop, config: Config) -> None:
        self.loop, self.config = loop, config
        self.seconds = loop.time  # by a clock that never goes back
        self.limits, self.timeouts, self.retries = config.limits, config.timeouts, config.retries
        self.now_ps = clock()
        self.tape: Tape | None = None
        self.decisions = Decisions(loop, config.explain)
        self.records = None if config.records is None else Records(self, config.records)
        self.journals: list[Journal] = [self.decisions]
        if self.records is not None:
            self.journals.append(self.records)
        self.plane = Plane(
            config.max_backends,
            config.policies,
            patience_ps=config.patience_ps,
            alone=config.disaggregation is None or config.disaggregation.alone,
            block_tokens=config.tokens.block_tokens,
            ttl_ps=config.events.ttl_ps,
            speculative_ps=config.events.speculative_ps,
            most_failures=config.policy_failures,
            journals=self.journals,
        )
        self.plane.on_failure, self.plane.on_change = self._policy_failed, self._policies_changed
        self.failures = Failures()
        self.shadows, self.canary = Shadows(self), CanaryWatch(self)
        self.reasons = Reasons(self.plane)
        if config.journal is not None:
            self.plane.tape = self.tape = Tape(config.journal.file, self.plane.head, config.journal.limit_bytes)
        self.figures = Figures()
        self.health = Health(self, config.health.failures, config.health.eject_s)
        self.fleet = Fleet(self, config.max_backends)
        self.tokens = Tokens(config.tokens)
        self.intake = Intake(self, self.tokens, config.sessions)
        self.keyring = config.keyring
        self.signals = Signals(self, config.signals)
        self.components: list[Component] = [self.tokens, self.signals, Checks(self, config.health), self.canary]
        self.listener = self._listener()
        if self.listener is not None:
            self.components.append(self.listener)
        self.on_end: list[Callable[[Exchange, int, str, str], None]] = []  # hear of each exchange that has ended
        self.clients: dict[ClientConnection, None] = {}
        self.held_bytes = 0  # of their bodies
        self.waiting: dict[int, Exchange] = {}  # exchanges that the plane holds back, by request
        self.tasks: set[asyncio.Task[None]] = set()
        self.draining = self._waking = False
        self._expired = self.seconds()
        self._alarm: Any = None
        self._alarm_ps = NEVER
        self.chains = config.chains
        self.local, self.orders = Local(self), Orders(self)
        self.handover = None if config.disaggregation is None else Handover(self, config.disaggregation)
        if self.handover is not None:
            self.components.append(self.handover)
        self.peers = None if config.peers is None else Peers(self, config.peers)
        if self.peers is not None:
            self.components.append(self.peers)
        self.tracing: Tracing | None = None
        self._observe()
        if config.etcd is not None:
            self.components.append(EtcdSource(self, config.etcd))
        if config.file is not None:
            self.components.append(FileSource(self))
        self.fleet.offer("file", config.backends)
        self.shadows.offer("file", config.shadows)

    def _listener(self) -> Listener | None:
        """Of what engines tell of their caches, where any does."""
        config = self.config
        hasher = next((one for one in (self.tokens.default, *self.tokens.models.values()) if one.exact), None)
        if not config.hears_events and (hasher is None or find_spec("zmq") is None):
            return None
        if hasher is None:
            raise HeadwayError(
                "events: engines tell of tokens, so that the gateway has to know them: give the model's folder as "
                "`tokens: {path: ...}`, or take `events` away."
            )
        return Listener(self, self.plane, config.events, hasher.chain, hasher.root, hasher.block_tokens)

    def _observe(self) -> None:
        """Who hears of requests that have ended; what is not asked for is not loaded."""
        config = self.config
        self.on_end.append(self.figures.ended)
        if self.records is not None:
            self.on_end.append(self.records.ended)
            self.components.append(self.records)
        if config.otel is not None:
            from headway.gateway.observing.tracing import Tracing

            self.tracing = Tracing(self, config.otel)
            self.on_end.append(self.tracing.ended)
            self.components.append(self.tracing)
        if self.peers is not None and self.peers.settings.orders:
            self.peers.snapshot = lambda: figures_of(self)[0]
        if config.admin is not None and not config.worker:  # of several processes the first answers for all
            from headway.gateway.observing.admin import Admin

            self.components.append(Admin(self))

    async def start(self) -> asyncio.Server:
        config = self.config
        await self.run()
        shared = True if config.worker is not None else None
        return await self.loop.create_server(
            lambda: ClientConnection(self), config.host, config.port, backlog=BACKLOG, reuse_port=shared
        )

    async def run(self) -> None:
        """All but the listening."""
        for component in self.components:
            await component.start()
        self.loop.call_later(SWEEP_S, self._sweep)

    async def drain(self, seconds: float) -> None:
        """No request more on any connection; those under way may end."""
        self.draining = True
        until = self.seconds() + seconds
        while any(client.exchange is not None for client in self.clients) and self.seconds() < until:
            await asyncio.sleep(0.05)
        for client in list(self.clients):
            client.transport.abort()
        for backend in self.fleet.members:
            backend.close()
        for component in self.components:
            await component.stop()
        if self.tape is not None:
            self.tape.close()

    def spawn(self, task: Coroutine[Any, Any, None]) -> None:
        made = self.loop.create_task(task)
        self.tasks.add(made)
        made.add_done_callback(self.tasks.discard)

    # --- a request ---------------------------------------------------------------------------------------------------

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        """A request that is routed has an exchange from now on; anything else is answered at once."""
        path = incoming.target
        if (query := path.find(b"?")) >= 0:
            path = path[:query]
        kind = ROUTED.get(path)
        if kind is None or incoming.method != b"POST":
            self.local.answer(client, incoming, path)
            return
        if incoming.version == "1.0":  # whose answers have no chunks
            self.local.say(client, incoming, 505, "this is asked by HTTP/1.1")
            return
        key: Key | None = None
        if self.keyring is not None:
            found = self._owner(incoming)
            if isinstance(found, Refusal):
                self.local.say(client, incoming, found.status, found.why, found.retry_after)
                return
            key = found
        try:
            body = read_body(incoming.body)
            if not (body.messages or body.prompt or body.input):
                raise HeadwayError("the request has no messages, prompt or input")
            if body.steers:
                raise HeadwayError("where KV lies is not for a client to say")
            chain = self.chains.get(body.model)
            if chain is None or kind == "embedding":
                request = self.intake.request(kind, incoming, body, key)
                exchange = self.exchange_type(self, client, incoming, request, body.stream, key)
            else:
                body.model = chain.models[0]
                request = self.intake.request(kind, incoming, body, key)
                exchange = Cascade(self, client, incoming, request, body, key, chain)
        except Exception as error:
            if key is not None:
                key.release()
            if not isinstance(error, msgspec.MsgspecError | HeadwayError):
                raise  # a fault of ours, which the client is told
            self.local.say(client, incoming, 400, f"the request cannot be read: {error}")
            return
        client.exchange = exchange
        if self.tracing is not None:
            self.tracing.begin(exchange)
        if request.path is NOT_YET:
            self.spawn(self.begin_later(exchange, body, exchange.begin))
            return
        exchange.begin(request.arrival_ps)
        if self.plane.next_ps != self._alarm_ps:
            self._set_alarm()

    async def begin_later(self, exchange: Exchange, body: Body, begin: Callable[[int], None]) -> None:
        """Others go on while a long prompt is read."""
        try:
            path, tokens = await self.tokens.of(body.model).path_later(body)
            if not exchange.over:
                exchange.request = replace(exchange.request, path=path, prompt_tokens=tokens)
                begin(self.now_ps())
                self._set_alarm()
        except Exception:  # a task that ends so would tell nobody
            log.exception("a request could not be begun")
            exchange.fail()

    def check_sender(self, named: dict[bytes, bytes]) -> tuple[int, str] | None:
        keyring = self.keyring
        if keyring is None or keyring.owner(named.get(b"authorization", b"")) is not None:
            return None
        return UNKNOWN.status, UNKNOWN.why

    def count_refusal(self, status: int) -> None:
        self.figures.refused(status)

    def _owner(self, incoming: Incoming) -> Key | Refusal:
        assert self.keyring is not None
        owner = self.keyring.owner(incoming.named.get(b"authorization", b""))
        return UNKNOWN if owner is None else owner.take(self.seconds()) or owner

    def split(self, exchange: Exchange) -> None:
        """Two engines are to serve it; one alone does, where nothing hands prompts over."""
        if self.handover is not None:
            self.handover.split(exchange)
            return
        assert exchange.backend is not None
        self.plane.handed(self.now_ps(), exchange.request.id)
        exchange.send_to(exchange.backend)

    def ended(self, exchange: Exchange, now_ps: int, outcome: str, why: str) -> None:
        self.waiting.pop(exchange.request.id, None)
        for hear in self.on_end:
            try:
                hear(exchange, now_ps, outcome, why)
            except Exception:  # the answer is not to wait for who only looks on
                log.exception("the end of a request could not be taken down")
        if self.waiting:
            self.wake_soon()

    # --- policies ----------------------------------------------------------------------------------------------------

    @property
    def policies(self) -> dict[str, Any]:
        return self.plane.policies

    def swap(self, policies: str | dict[str, Any], source: str) -> None:
        """Other policies from now on. Raises where they are wrong, and the old ones stay."""
        wanted = read_policies(policies)
        if wanted == self.plane.policies:
            return
        self.carry_out(self.plane.swap(self.now_ps(), wanted))
        log.info("policies: version %d from %s: routing %s", self.plane.version, source, wanted["routing"])

    def _policy_failed(self, arm: str, error: Exception) -> None:
        """Others have decided on that request."""
        self.failures.add(arm, error)
        self.wake_soon()

    def _policies_changed(self, why: str) -> None:
        if why == "failure":
            self.failures.fell_back(self.plane.version, self.plane.policies["routing"])
        self.canary.follow(why)

    def report(self, name: str, signals: Mapping[str, Any], age_s: float = 0.0) -> None:
        """What an agent brings of an engine."""
        self.signals.told(name, signals, age_s)

    # --- now and then ------------------------------------------------------------------------------------------------

    def wait(self, exchange: Exchange, queued: bool) -> None:
        """The plane decides later."""
        self.waiting[exchange.request.id] = exchange
        if queued:
            self.wake_soon()

    def wake_soon(self) -> None:
        """Once everything that happens at this turn of the loop has."""
        if not self._waking:
            self._waking = True
            self.loop.call_soon(self.wake)

    def wake(self) -> None:
        self._waking = False
        self.carry_out(self.plane.wake(self.now_ps()))

    def carry_out(self, decided: Decided) -> None:
        """What the plane has decided on requests that waited."""
        for request, answer in decided:
            exchange = self.waiting.pop(request.id, None)
            if exchange is None:
                continue
            try:
                exchange.decided(answer)
            except Exception:  # the others have been decided on as well
                log.exception("a request that waited could not be sent")
                exchange.fail()
        self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._alarm_ps = self.plane.next_ps
        if self._alarm_ps != NEVER:
            self._alarm = self.loop.call_later(max(0.0, (self._alarm_ps - self.now_ps()) / 1e12), self.wake)

    def _expire(self) -> None:
        """In slices, so that requests come in between."""
        if self.plane.expire(self.now_ps()):
            self.loop.call_soon(self._expire)

    def _sweep(self) -> None:
        self.loop.call_later(SWEEP_S, self._sweep)  # first, so that no fault of what follows ends it for good
        now = self.seconds()
        for client in list(self.clients):
            client.overdue(now)
        if self.fleet.leaving:
            self.fleet.sweep()
        if now >= self._expired + EXPIRE_S:
            self._expired = now
            self._expire()
        if self.tape is not None:
            self.tape.flush()
