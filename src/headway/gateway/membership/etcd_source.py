"""etcd as a source of engines, cordons and policies: the gateway applies the keys under the prefix as they change.

    nodes/ID                        an engine, registered by its agent with a lease
    cordon/ID                       while this key exists, the engine gets no new requests
    routing/policy                  the policies, YAML or JSON, as in a scenario or a bundle
    routing/policy-status/GATEWAY   whether that gateway accepted the policies
    store                           a random mark that identifies the store

While etcd is down, the gateway keeps the last known state. When etcd is available again, the gateway reads all keys. If
the mark in `store` has changed, etcd has lost its data. Then the gateway gives engines time to register again, and
restores the cordons.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.gateway.engines.member import BackendSpec, read_member
from headway.gateway.membership.etcd_client import SILENCE_S, Changes, Etcd, EtcdError, Snapshot
from headway.gateway.membership.etcd_fleet import read_policy
from headway.gateway.membership.etcd_settings import EtcdSettings
from headway.gateway.membership.node import Node, check_id
from headway.http.event_loop import cancel

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.gateway.orders import PolicySwitch
    from headway.gateway.signals.polled_signals import EngineSignals

SOURCE: Final = "etcd"
AGENT: Final = "agent"  # name under which the fleet stores the readiness that agents report
OLD_S: Final = 15.0  # signals older than this are ignored until the next heartbeat
GRACE_S: Final = 15.0  # time for engines to register again after etcd lost its data
log = logging.getLogger("headway.gateway")


class EtcdSource:
    def __init__(
        self,
        clock: Clock,
        fleet: Fleet,
        switch: PolicySwitch,
        signals: EngineSignals,
        settings: EtcdSettings,
        port: int,
        silence_s: float = SILENCE_S,
        grace_s: float = GRACE_S,
    ) -> None:
        """`port` is the gateway's port. It is part of the gateway's default name."""
        self.clock, self.fleet, self.switch, self.signals, self.settings = clock, fleet, switch, signals, settings
        self.etcd = Etcd(settings)
        self.silence_s, self.grace_s = silence_s, grace_s
        self.connected: bool | None = None  # whether etcd answers; None: not tried yet
        self.revision = 0
        self.gateway = settings.gateway or f"{socket.gethostname()}:{port}"
        self.nodes: dict[str, Node] = {}  # valid nodes in etcd, by name
        self.offered: dict[str, BackendSpec] = {}  # specifications of the nodes that the fleet has accepted, by name
        self.cordons: dict[str, bytes] = {}  # node -> value of its cordon key in etcd, without cordons of the admin API
        self._revisions: dict[str, int] = {}  # revision of the last change of each node
        self._read: dict[str, tuple[dict[str, Any], BackendSpec]] = {}  # node -> last document, and its specification
        self._news: dict[str, float] = {}  # node -> age of its new signals in seconds
        self._late: dict[str, None] = {}  # names of the nodes that have not registered again since etcd lost its data
        self._refusals: dict[str, str] = {}  # last logged reason for refusing each node
        self._policy = 0  # revision of the policies in etcd that the gateway last tried to apply
        self._mark: bytes | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writes: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Start without waiting for etcd. If etcd is down, the gateway starts with the engines from its other
        sources."""
        self._task = self.clock.create_task(self._run())

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await cancel(self._task, *self._writes)
        await self.etcd.close()

    async def _run(self) -> None:
        prefix = f"{self.settings.prefix}/"
        async for news in self.etcd.follow(prefix, self.silence_s):
            try:
                if isinstance(news, Snapshot):
                    if not self.connected:
                        log.info("etcd: connected at %s", ", ".join(self.settings.endpoints))
                    self.connected = True
                    await self._sync(news)
                elif isinstance(news, Changes):
                    self._apply(news)
                else:
                    if self.connected is not False:
                        log.warning("%s The gateway keeps the last known state and retries.", news)
                    self.connected = False
            except EtcdError as error:  # a write failed; the watch itself detects that etcd is down
                log.warning("%s", error)
            except Exception:  # a bug must not end the watch
                log.exception("etcd: the gateway could not apply the changes of revision %d", self.revision)

    # --- keys --------------------------------------------------------------------------------------------------------

    async def _sync(self, snapshot: Snapshot) -> None:
        lost = await self._is_lost(snapshot)
        self.revision = snapshot.revision
        prefix = self.settings.prefix
        nodes = snapshot.under(f"{prefix}/nodes/")
        cordons = {name: item.value for name, item in snapshot.under(f"{prefix}/cordon/").items()}
        policy = snapshot.items.get(f"{prefix}/routing/policy")
        if lost:
            self._late = dict.fromkeys(name for name in self.nodes if name not in nodes)
            # Restore lost cordons, because only an operator may lift a cordon, by deleting its key.
            for name in [name for name in self.cordons if name not in cordons]:
                await self.etcd.put(f"{prefix}/cordon/{name}", self.cordons[name])
                log.warning("etcd: the cordon of %s was lost; the gateway restored it", _plain(name))
            cordons = {**self.cordons, **cordons}
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.clock.call_later(self.grace_s, self._overdue) if self._late else None
        else:
            self._late = dict.fromkeys(name for name in self._late if name not in nodes)
        for name in [name for name in self.nodes if name not in nodes and name not in self._late]:
            self._drop(name)
        for name, item in nodes.items():
            if self._revisions.get(name) != item.revision or lost:
                self._take(name, item.value, item.revision, live=False)
        for name in [name for name in self.cordons if name not in cordons]:
            self._lift(name)
        for name, value in cordons.items():
            self._cordon(name, value)
        self._carry_out()
        if policy is not None and (policy.revision != self._policy or lost):
            self._swap(policy.value, policy.revision)

    async def _is_lost(self, snapshot: Snapshot) -> bool:
        """Return whether etcd has lost its data since the last read."""
        key = f"{self.settings.prefix}/store"
        item = snapshot.items.get(key)
        before, knew = self._mark, self.revision > 0
        if item is not None:
            self._mark = item.value
        else:
            try:
                self._mark = await self.etcd.create(key, uuid.uuid4().hex.encode())
            except EtcdError as error:
                log.warning("%s Without a mark in etcd, only a lower revision shows that etcd lost data.", error)
        lost = knew and (snapshot.revision < self.revision or (before is not None and before != self._mark))
        if lost:
            log.warning("etcd has lost its data; engines have %g s to register again", self.grace_s)
        return lost

    def _apply(self, news: Changes) -> None:
        self.revision = news.revision
        policy = None
        for change in news.changes:
            kind, _, name = change.item.key.removeprefix(f"{self.settings.prefix}/").partition("/")
            value = change.value
            if kind == "nodes":
                if value is None:
                    self._drop(name)
                else:
                    self._take(name, value, change.item.revision, live=True)
            elif kind == "cordon":
                if value is None:
                    self._lift(name)
                else:
                    self._cordon(name, value)
            elif kind == "routing" and name == "policy":
                policy = change
            elif kind == "store" and value is not None:
                self._mark = value
        self._carry_out()
        if policy is None:
            return
        if policy.value is None:
            log.info("etcd: the policies were deleted; the gateway keeps the policies in force")
        else:
            self._swap(policy.value, policy.item.revision)

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _take(self, name: str, value: bytes, revision: int, *, live: bool) -> None:
        where = f"{self.settings.prefix}/nodes/{name}"
        self._revisions[name] = revision
        self._late.pop(name, None)
        try:
            check_id(name, f"{self.settings.prefix}/nodes")
            node = Node.read(value, where)
        except HeadwayError as error:
            self._refuse(name, str(error))  # the node keeps its last valid state
            return
        self.nodes[name] = node
        # The agent's clock may be wrong, so use the agent's timestamp only if the signals may be old.
        self._news[name] = 0.0 if live or not node.at else max(0.0, time.time() - node.at)

    def _drop(self, name: str) -> None:
        tables: tuple[dict[str, Any], ...] = (self.nodes, self._revisions, self._late, self._read, self._refusals)
        for table in tables:
            table.pop(name, None)

    def _spec(self, name: str, node: Node) -> BackendSpec | None:
        """Return the engine specification that a node registers. If it is invalid, return the last specification that
        the fleet accepted. While the node's models are unknown, return None."""
        if not node.models and not node.ready:
            return None
        document: dict[str, Any] = node.backend()
        if self.settings.engine_key_env is not None:
            document["key_env"] = self.settings.engine_key_env
        known = self._read.get(name)
        if known is not None and known[0] == document:  # most heartbeats do not change the document
            return known[1]
        try:
            spec = read_member(name, document, f"{self.settings.prefix}/nodes/{name}")
        except HeadwayError as error:
            self._refuse(name, str(error))
            return self.offered.get(name)
        self._read[name] = (document, spec)
        return spec

    def _carry_out(self) -> None:
        specs = {name: self._spec(name, node) for name, node in sorted(self.nodes.items())}
        usable = {name: spec for name, spec in specs.items() if spec is not None}
        if usable != self.offered:
            self._offer(usable)
        for name in self.offered:
            node = self.nodes[name]
            self.fleet.ready(name, node.ready, node.why or "its agent gives no reason", AGENT)
            if node.signals and self._news.get(name, OLD_S) < OLD_S:
                self.signals.take_report(name, node.signals)
        self._news.clear()

    def _offer(self, specs: dict[str, BackendSpec]) -> None:
        """Offer all nodes to the fleet together. If the fleet refuses them, offer them one by one, and omit refused
        nodes."""
        fleet = self.fleet
        try:
            fleet.offer(SOURCE, specs)
            self.offered = specs
            return
        except HeadwayError:
            accepted = {name: self.offered[name] for name in specs if name in self.offered}
        try:
            fleet.offer(SOURCE, accepted)
        except HeadwayError as error:
            log.warning("etcd: %s", error)
            return
        for name, spec in specs.items():
            if accepted.get(name) != spec:
                try:
                    fleet.offer(SOURCE, {**accepted, name: spec})
                    accepted[name] = spec
                except HeadwayError as error:
                    self._refuse(name, str(error))
        self.offered = accepted

    def _refuse(self, name: str, why: str) -> None:
        if self._refusals.get(name) != why:
            self._refusals[name] = why
            log.warning("etcd: refused the node %s: %s", _plain(name), why)

    def _overdue(self) -> None:
        """Drop the nodes that have not registered again in the time allowed after etcd lost its data."""
        for name in list(self._late):
            log.warning("etcd: removed %s, which has not registered again", name)
            self._drop(name)
        self._carry_out()

    # --- cordons -----------------------------------------------------------------------------------------------------

    def _cordon(self, name: str, value: bytes) -> None:
        if name not in self.cordons:
            log.info("etcd: %s is cordoned", _plain(name))
            self.fleet.cordon(name)
        self.cordons[name] = value

    def _lift(self, name: str) -> None:
        if self.cordons.pop(name, None) is not None:
            log.info("etcd: the cordon of %s is lifted", _plain(name))
            self.fleet.uncordon(name)

    # --- policies ----------------------------------------------------------------------------------------------------

    def _swap(self, value: bytes, revision: int) -> None:
        self._policy = revision
        try:
            self.switch.swap(read_policy(value, f"{self.settings.prefix}/routing/policy"), SOURCE)
        except HeadwayError as error:
            log.warning("etcd: refused the policies of revision %d; the old policies stay: %s", revision, error)
            self._answer({"revision": revision, "accepted": False, "error": str(error)})
        else:
            log.info("etcd: the policies of revision %d are in force", revision)
            self._answer({"revision": revision, "accepted": True})

    def _answer(self, status: dict[str, Any]) -> None:
        """Write to etcd whether this gateway accepted the policies. Do this in a separate task, because a slow write
        must not delay the watch."""
        task = self.clock.create_task(self._write(f"routing/policy-status/{self.gateway}", status))
        self._writes.add(task)
        task.add_done_callback(self._writes.discard)

    async def _write(self, key: str, document: dict[str, Any]) -> None:
        try:
            await self.etcd.put(f"{self.settings.prefix}/{key}", msgspec.json.encode(document))
        except EtcdError as error:
            log.warning("etcd: the gateway could not report whether it accepted the policies: %s", error)


def _plain(name: str) -> str:
    """Return a key from etcd for the log: shortened, and without control characters."""
    return cut("".join(sign if sign.isprintable() else "?" for sign in name))
