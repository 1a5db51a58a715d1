"""The gateway: builds its parts from a configuration, starts them and stops them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from headway.config.dated_defaults import SETS
from headway.control.journal import Journal
from headway.errors import HeadwayError
from headway.gateway.config import Config
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.engines.engine_fleet import Fleet
from headway.gateway.engines.engine_health import Checks, Health
from headway.gateway.engines.model_lists import ModelLists
from headway.gateway.exchange import Exchange
from headway.gateway.handover.live_handover import Handover
from headway.gateway.intake import Intake
from headway.gateway.json_web_tokens import WebTokens
from headway.gateway.live_clock import Clock
from headway.gateway.live_policies import read_policies
from headway.gateway.live_scaling import LiveScaling
from headway.gateway.live_settings import live_settings
from headway.gateway.membership.etcd_source import EtcdSource
from headway.gateway.membership.file_source import FileSource
from headway.gateway.observing.access_log import AccessLog
from headway.gateway.observing.gateway_metrics import GatewayMetrics
from headway.gateway.observing.probes import Probes
from headway.gateway.observing.recent_decisions import Decisions, Reasons
from headway.gateway.observing.status import StatusBoard
from headway.gateway.observing.traffic_records import Records
from headway.gateway.orders import Orders, PolicySwitch
from headway.gateway.peers import Peers
from headway.gateway.plane import Plane
from headway.gateway.prompt_tokens import Tokens
from headway.gateway.reception import Reception
from headway.gateway.services import Services
from headway.gateway.shadow.canary_watch import CanaryWatch
from headway.gateway.shadow.shadows import Shadows
from headway.gateway.signals.event_listener import Listener
from headway.gateway.signals.polled_signals import EngineSignals
from headway.gateway.tape import Tape
from headway.gateway.usage import Ledger, UsageFile
from headway.gateway.waiting import Waiting
from headway.http.open_files import SPARE, fit_connections
from headway.http.tls import LiveContext
from headway.http.wire import ClientConnection
from headway.types import Json

if TYPE_CHECKING:
    from headway.gateway.observing.request_spans import Tracing

SWEEP_S: Final = 0.5
EXPIRE_S: Final = 2.0
DRAIN_POLL_S: Final = 0.05
FLUSH_S: Final = 2.0  # time that clients have to read the last bytes of their answers, at a shutdown
BACKLOG: Final = 4096  # maximum number of connections that wait to be accepted

log = logging.getLogger("headway.gateway")


class Component(Protocol):
    """A part of the gateway that runs in the background."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class App:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        exchange_type: type[Exchange] = Exchange,
        files: int | None = None,
    ) -> None:
        """`files` is the number of files that the process may open; None if that is not limited."""
        self.config, self.shutdown = config, config.shutdown
        self.clock = clock = Clock(loop)
        self.decisions = Decisions(loop, config.explain)
        policies = read_policies(config.policies, config.defaults)
        self.records = None if config.records is None else Records(clock, config.records, policies)
        self.journals: list[Journal] = [self.decisions]
        if self.records is not None:
            self.journals.append(self.records)
        self.plane = plane = self._plane(policies)
        self.tape: Tape | None = None
        if config.journal is not None:
            plane.tape = self.tape = Tape(config.journal.file, plane.settings, config.journal.limit_bytes)
        self.waiting = waiting = Waiting(clock, plane)
        self.metrics = metrics = GatewayMetrics()
        self.tokens = Tokens(config.tokens)
        self.tracing = self._tracing()
        # engines
        self.fleet = fleet = Fleet(clock, plane, waiting, config.max_backends)
        self.health = health = Health(clock, fleet, config.health, config.timeouts)
        self.checks = Checks(clock, fleet, health, config.health)
        self.signals = EngineSignals(clock, plane, fleet, config.signals)
        self.listener = self._listener()
        # requests
        self.services = Services(
            clock, plane, waiting, fleet, health, Reasons(plane), config.timeouts, config.retries, metrics.count_retry
        )
        self.handover = None if config.disaggregation is None else Handover(self.services, config.disaggregation)
        if self.handover is not None:
            self.services.split = self.handover.split
        self.intake = Intake(
            clock,
            waiting,
            self.tokens,
            config.sessions,
            config.deadlines,
            config.classes,
            self.tracing,
            self.fleet.adapters,
        )
        self.open_files, self.files, self._limits = health.open_files, files, config.limits
        limits = fit_connections(config.limits, config.max_backends, files)
        self.ledger = self._ledger()
        if config.keyring is not None:
            config.keyring.use(self.ledger)
        self.reception = Reception(
            limits, self.intake, self.services, metrics, config.keyring, config.chains, exchange_type
        )
        self.reception.aliases, self.reception.fallbacks = config.aliases, config.fallbacks
        self.web_tokens: WebTokens | None = None
        if config.jwt is not None:
            self.web_tokens = self.reception.web_tokens = WebTokens(clock, config.jwt, self.ledger)
        self.reception.routes = config.routes
        # policies and operators
        self.shadows = Shadows(clock, plane, self.journals)
        self.switch = PolicySwitch(clock, plane, waiting, config.defaults)
        self.orders = Orders(clock, plane, fleet, self.shadows, self.switch)
        self.canary = CanaryWatch(clock, plane, self.services.on_end, partial(self.orders.give, "halt"))
        self.switch.on_change.append(self.canary.follow)
        self.peers: Peers | None = None
        if config.peers is not None:
            self.peers = Peers(clock, plane, fleet, waiting, self.orders, config.peers, self.ledger)
            self.orders.pass_on = self.peers.order
        self.scaling = None if config.scaling is None else LiveScaling(clock, plane, config.scaling)
        optional = (self.scaling, self.web_tokens, self.listener, self.handover, self.peers, self.records, self.tracing)
        # The components start in this order.
        self.components: list[Component] = [
            self.tokens,
            self.signals,
            self.checks,
            ModelLists(clock, fleet),
            self.canary,
        ]
        self.components += [part for part in optional if part is not None]
        self.etcd_source: EtcdSource | None = None
        admin = config.admin
        self.admin_tls = None if admin is None or admin.tls is None else LiveContext(admin.tls)
        self.tls = None if config.tls is None else LiveContext(config.tls)
        if config.etcd is not None:
            self.etcd_source = EtcdSource(clock, fleet, self.switch, self.signals, config.etcd, config.port)
        self._observe()
        if self.etcd_source is not None:
            self.components.append(self.etcd_source)
        self.file_source: FileSource | None = None
        if config.file is not None:
            setters = live_settings(
                self.services, self.checks, self.intake, self.reception, self.access_log, self.ledger
            )
            setters = {
                **setters,
                "shutdown": self._set_shutdown,
                "limits": self._set_limits,
                "tls": self._set_secrets,
            }
            self.file_source = FileSource(clock, fleet, self.switch, self.shadows, setters, config)
            self.components.append(self.file_source)
        self._expired = clock.seconds()
        self.server: asyncio.Server | None = None
        self._hurried = 0  # number of calls of `hurry`
        fleet.offer("file", config.backends)
        self.shadows.offer("file", config.shadows)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _plane(self, policies: Json) -> Plane:
        config = self.config
        settings = PlaneSettings(
            config.max_backends,
            policies,
            patience_ps=config.patience_ps,
            alone=config.disaggregation is None or config.disaggregation.alone,
            block_tokens=config.tokens.block_tokens,
            ttl_ps=config.events.ttl_ps,
            speculative_ps=config.events.speculative_ps,
            most_failures=config.policy_failures,
            effective_load=config.signals.effective_load or SETS[config.defaults].effective_load,
            auto=SETS[config.defaults].auto,
            belief=config.events.belief,
        )
        return Plane(settings, journals=self.journals)

    def _ledger(self) -> Ledger:
        """Return the accounts of keys. Worker processes share a file in the folder of their sockets."""
        worker, peers = self.config.worker, self.config.peers
        if worker is None or peers is None:
            return Ledger(peers=peers is not None)
        file = Path(peers.listen.removeprefix("unix:")).with_name("usage")
        return Ledger(UsageFile(file, worker, len(peers.to) + 1))

    def _tracing(self) -> Tracing | None:
        if self.config.otel is None:
            return None
        from headway.gateway.observing.request_spans import Tracing  # imported here, because it needs OpenTelemetry

        return Tracing(self.clock, self.plane, self.decisions, self.config.otel)

    def _listener(self) -> Listener | None:
        """Return the listener for KV events. A gateway with a tokenizer and ZMQ always has a listener, because engines
        with KV events may join later. If the tokenizer or ZMQ is missing, and the file configures no KV events, return
        None."""
        config = self.config
        hasher = next((hasher for hasher in (self.tokens.default, *self.tokens.models.values()) if hasher.exact), None)
        publishes = config.events.bind is not None or any(spec.events is not None for spec in config.backends.values())
        if not publishes and (hasher is None or find_spec("zmq") is None):
            return None
        if hasher is None:
            raise HeadwayError(
                "events: KV events name tokens, so the gateway needs the model's tokenizer. "
                "Set `tokens: {path: FOLDER}`, or remove `events`."
            )
        return Listener(self.clock, self.fleet, self.plane, config.events, hasher)

    def _observe(self) -> None:
        """Connect metrics, records, spans, the status page and the admin API."""
        config, on_end = self.config, self.services.on_end
        on_end.append(self.metrics.count_end)
        self.access_log = AccessLog(on_end)
        self.access_log.set_share(config.log.access)
        self.reception.on_refusal = self.access_log.record_refusal
        if self.records is not None:
            self.records.attach(self.plane, self.fleet, self.intake, self.reception)
            on_end.append(self.records.record_end)
            if self.scaling is not None:
                self.scaling.on_scaled.append(self.records.record_scaling)
        if self.scaling is not None:
            on_end.append(self.scaling.record_end)
        if self.tracing is not None:
            on_end.append(self.tracing.record_end)
        contexts = {"clients": self.tls, "admin": self.admin_tls}
        self.board = StatusBoard(
            clock=self.clock,
            plane=self.plane,
            fleet=self.fleet,
            waiting=self.waiting,
            reception=self.reception,
            metrics=self.metrics,
            decisions=self.decisions,
            failures=self.switch.failures,
            shadows=self.shadows,
            canary=self.canary,
            signals=self.signals,
            tokens=self.tokens,
            listener=self.listener,
            handover=self.handover,
            records=self.records,
            scaling=self.scaling,
            peers=self.peers,
            etcd=self.etcd_source,
            certificates={listener: context for listener, context in contexts.items() if context is not None},
        )
        if self.peers is not None and self.peers.settings.orders:
            self.peers.snapshot = lambda: self.board.figures()[0]
        if config.admin is not None and not config.worker:  # only the first of several processes serves the admin API
            from headway.gateway.observing.admin import Admin

            self.components.append(Admin(self.board, self.orders, config.admin, self.admin_tls))
        if config.probes is not None:
            shared = config.worker is not None
            self.components.append(Probes(self.clock, self.fleet, config.probes, self._why_not_ready, shared))

    def _why_not_ready(self) -> str:
        """Return why this process accepts no requests; "" if it does."""
        if self.reception.draining:
            return "the gateway is shutting down"
        return "" if self.server is not None else "the gateway starts"

    def _set_secrets(self, config: Config) -> None:
        """Use other certificates for new connections, other operators, and other keys of the provider of tokens."""
        before, after = self.config.admin, config.admin
        admin_tls = None if after is None else after.tls
        for context, tls, where in ((self.tls, config.tls, "tls"), (self.admin_tls, admin_tls, "admin.tls")):
            if (context is None) != (tls is None):
                log.warning("%s: TLS begins or ends at the next start", where)
            elif context is not None and tls is not None:
                context.use(tls)
        if before is not None and before.operators is not None and after is not None and after.operators is not None:
            before.operators.renew(after.operators)
        if self.web_tokens is not None:
            self.web_tokens.provider.refresh()

    def _set_shutdown(self, config: Config) -> None:
        self.shutdown = config.shutdown

    def _set_limits(self, config: Config) -> None:
        if config.limits != self._limits:
            self._limits = config.limits
            self.reception.limits = fit_connections(config.limits, self.config.max_backends, self.files)

    # --- running -----------------------------------------------------------------------------------------------------

    async def start(self) -> asyncio.Server:
        await self.run()
        return await self.listen()

    async def listen(self) -> asyncio.Server:
        """Open the listening socket. Every other part has started."""
        config = self.config
        shared = True if config.worker is not None else None
        more: dict[str, Any] = (
            {} if self.tls is None else {"ssl": self.tls, "ssl_handshake_timeout": config.limits.head_s}
        )
        factory = partial(ClientConnection, self.reception)
        self.server = await self.clock.loop.create_server(
            factory, config.host, config.port, backlog=BACKLOG, reuse_port=shared, **more
        )
        return self.server

    async def run(self) -> None:
        """Start everything except the listening socket."""
        for component in self.components:
            await component.start()
        self.clock.call_later(SWEEP_S, self._sweep)

    def reload(self) -> None:
        """Apply the gateway's file now."""
        if self.file_source is not None:
            self.file_source.reload()

    async def drain(self, limit_s: float, lame_duck_s: float = 0.0) -> None:
        """Shut down. Readiness fails at once, so that load balancers send their requests elsewhere. The listening
        socket stays open for `lame_duck_s`. Then requests in flight have `limit_s` to end. Then stop all parts."""
        reception = self.reception
        reception.draining = True
        if lame_duck_s:
            log.info("shutdown: the gateway accepts connections for another %g s", lame_duck_s)
            await self._wait(lame_duck_s, lambda: self._hurried > 0)
        if self.server is not None:
            self.server.close()
        if reception.busy:
            log.info("shutdown: %d requests are in flight and have %g s to end", reception.busy, limit_s)
        await self._wait(limit_s, lambda: not reception.busy or self._hurried > 1)
        if reception.busy:
            log.warning("shutdown: %d requests have not ended in time; the gateway ends them", reception.busy)
            reception.shut_down()
        await self._wait(FLUSH_S if limit_s else 0.0, lambda: not reception.clients)
        reception.close()
        for backend in self.fleet.members:
            backend.close()
        for component in self.components:
            await component.stop()
        if self.tape is not None:
            self.tape.close()

    async def _wait(self, seconds: float, done: Callable[[], bool]) -> None:
        """Wait until `done` returns True, at most for `seconds`. Once the listening socket is closed, close each
        connection as soon as it is idle."""
        until = self.clock.seconds() + seconds
        while True:
            if self.server is not None and not self.server.is_serving():
                self.reception.close_idle()
            if done() or self.clock.seconds() >= until:
                return
            await asyncio.sleep(DRAIN_POLL_S)

    def hurry(self) -> None:
        """Shorten the shutdown: the first call ends the lame-duck time, the second call ends the requests."""
        self._hurried += 1

    def _sweep(self) -> None:
        self.clock.call_later(SWEEP_S, self._sweep)  # schedule the next sweep first, because the code below may raise
        now = self.clock.seconds()
        self.reception.sweep(now)
        self.health.sweep(now)
        self.open_files.are_short(spare=SPARE)
        if self.fleet.leaving:
            self.fleet.sweep()
        if now >= self._expired + EXPIRE_S:
            self._expired = now
            self._expire()
        if self.tape is not None:
            self.tape.flush()

    def _expire(self) -> None:
        """Drop expired beliefs about engines' caches, a limited number per call. If some remain, continue in the next
        iteration of the event loop, so that the gateway can serve requests in between."""
        if self.plane.expire(self.clock.now_ps()):
            self.clock.call_soon(self._expire)
