"""The agent beside an engine: registers it in etcd with a lease, and reports its state every few seconds.

It writes `nodes/ID` alone. Cordons stand under keys of their own, so no heartbeat can lift one.
"""

import asyncio
import ipaddress
import logging
import math
import socket
import time
import uuid
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.membership.agent_engine import Engine
from headway.gateway.membership.agent_readings import Meter
from headway.gateway.membership.etcd_client import Etcd, EtcdError, LeaseLost
from headway.gateway.membership.node import Node
from headway.http.address import Address

HEARTBEATS: Final = 3  # a lease lasts for so many
ENDING: Final = "its agent ends"
log = logging.getLogger("headway.agent")


class Registration(Struct, frozen=True):
    """The part of a node that does not change."""

    id: str
    url: str
    models: tuple[str, ...] = ()  # if empty, the agent asks the engine
    more: dict[str, Any] = {}  # keys of a node such as role and pool
    version: str = ""


class Agent:
    def __init__(
        self,
        registration: Registration,
        etcd: Etcd,
        engine: Engine,
        meter: Meter | None = None,
        heartbeat_s: float = 5.0,
    ) -> None:
        self.registration, self.etcd, self.engine, self.meter = registration, etcd, engine, meter
        self.heartbeat_s = heartbeat_s
        self.key = f"{etcd.settings.prefix}/nodes/{registration.id}"
        self.me = uuid.uuid4().hex[:12]
        self.lease = 0
        self.beats = 0
        self.node: Node | None = None  # as last written
        self._models: list[str] = list(registration.models)
        self._up = False  # the engine, at the last look
        self._down = ""  # why etcd cannot be written to
        self._rival = ""
        self._ending = False

    async def run(self, ended: asyncio.Event, drain_s: float) -> None:
        """Run until `ended` is set; then the engine gets no more requests and has time to end those it has."""
        if self.meter is not None:
            await self.meter.start()
        try:
            while not ended.is_set():
                await self.beat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self.heartbeat_s)
            await self.leave(drain_s)
        finally:
            if self.meter is not None:
                await self.meter.stop()
            await self.engine.close()
            await self.etcd.close()

    async def beat(self) -> None:
        """Send one heartbeat. While etcd is down the agent goes on trying, and the engine goes on serving."""
        node = self.node = await self._look()
        try:
            await self._write(node)
        except EtcdError as error:
            if not self._down:
                log.warning("%s This is tried again every %g s.", error, self.heartbeat_s)
            self._down = str(error)
            return
        if self._down:
            self._down = ""
            log.info("etcd: %s is written again", self.key)
        self.beats += 1

    async def leave(self, drain_s: float) -> None:
        self._ending = True
        until = time.monotonic() + drain_s
        await self.beat()
        while not self._down and time.monotonic() < until and not self._idle():
            await asyncio.sleep(min(self.heartbeat_s, max(0.0, until - time.monotonic())))
            await self.beat()
        if self.lease:
            with suppress(EtcdError):  # else it expires
                await self.etcd.revoke(self.lease)
            self.lease = 0

    def _idle(self) -> bool:
        """Return whether the engine reports that it has nothing to do."""
        signals = self.node.signals if self.node is not None else {}
        return "running" in signals and not signals["running"] and not signals.get("queued")

    async def _look(self) -> Node:
        why, figures = await asyncio.gather(self.engine.unready(), self.engine.figures())
        up = not why
        if not self.registration.models and up and (not self._up or not self._models):
            self._models = await self.engine.models()
        if up != self._up:
            log.info("the engine is %s", "ready" if up else f"not ready: {why}")
        self._up = up
        if self.meter is not None:
            figures = {**figures, **self.meter.means()}
        return Node(
            self.registration.url,
            self._models,
            **self.registration.more,
            ready=up and not self._ending,
            why=ENDING if self._ending else why,
            signals=figures,
            at=time.time(),
            agent=self.me,
            version=self.registration.version,
        )

    async def _write(self, node: Node) -> None:
        if self.lease:
            try:
                await self.etcd.keep_alive(self.lease)
                await self._put(node)
                return
            except LeaseLost:
                log.warning("etcd: the lease of %s was lost; it registers again", self.key)
                self.lease = 0
        self.lease = await self.etcd.grant(max(2, math.ceil(HEARTBEATS * self.heartbeat_s)))
        await self._put(node)
        log.info("etcd: %s is registered", self.key)

    async def _put(self, node: Node) -> None:
        _, before = await self.etcd.put(self.key, node.document(), self.lease)
        rival = ""
        if before is not None and self.beats:
            with suppress(HeadwayError):
                rival = Node.read(before, self.key).agent
        if rival and rival not in (self.me, self._rival):
            log.warning("etcd: another agent writes %s too; give each engine an --id of its own", self.key)
            self._rival = rival


def advertised_url(engine: str, advertise: str | None, endpoints: tuple[str, ...]) -> str:
    """Return the URL by which gateways reach the engine; refuse one that only this machine understands."""
    url = advertise or engine
    option = "--advertise" if advertise is not None else "--engine"
    address = Address(url, option)
    ip = _ip(address.host)
    near = ip is not None and (ip.is_unspecified or ip.is_loopback)
    if not near or ip is None:
        return address.url
    hosts = [urlsplit(endpoint).hostname or "" for endpoint in endpoints]
    here = all((endpoint := _ip(host)) is not None and endpoint.is_loopback for host in hosts)
    if ip.is_loopback and (advertise is not None or here):
        return address.url
    what = "every address of a machine and none that could be called" if ip.is_unspecified else "this machine alone"
    mine = own_address(endpoints[0])
    scheme, host = ("https" if address.tls else "http"), f"[{mine}]" if ":" in mine else mine
    raise HeadwayError(
        f"{option}: {address.host} means {what}; say by --advertise what gateways reach the engine by, as in "
        f"{scheme}://{host}:{address.port}."
    )


def own_address(endpoint: str) -> str:
    """Return the address of this machine as an endpoint sees it. Nothing is sent."""
    parts = urlsplit(endpoint)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            parts.hostname, parts.port or 2379, type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except OSError:
        return socket.gethostname()


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return ipaddress.ip_address("127.0.0.1") if host == "localhost" or host.endswith(".localhost") else None
