"""The agent of an engine. It registers the engine in etcd with a lease, and reports its state at every heartbeat.

The agent writes only `nodes/ID`. Cordons have their own keys, so a heartbeat cannot lift a cordon.
"""

import asyncio
import ipaddress
import logging
import math
import socket
import time
import uuid
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.gateway.membership.agent_engine import Engine
from headway.gateway.membership.agent_readings import Meter
from headway.gateway.membership.etcd_client import Etcd, EtcdError, LeaseLost
from headway.gateway.membership.node import Node
from headway.http.address import Address

HEARTBEATS: Final = 3  # duration of a lease, in heartbeats
ENDING: Final = "its agent is stopping"
log = logging.getLogger("headway.agent")


class Agent:
    def __init__(
        self, name: str, node: Node, etcd: Etcd, engine: Engine, meter: Meter | None = None, heartbeat_s: float = 5.0
    ) -> None:
        """If `node` lists no models, the agent asks the engine for its models."""
        self.etcd, self.engine, self.meter, self.heartbeat_s = etcd, engine, meter, heartbeat_s
        self.key = f"{etcd.settings.prefix}/nodes/{name}"
        self.me = uuid.uuid4().hex[:12]
        self.lease = 0
        self.beats = 0
        self.node = node  # the node as of the last heartbeat
        self._asks_models = not node.models
        self._up = False  # whether the engine was ready at the last heartbeat
        self._down = ""  # reason why the agent cannot write to etcd; empty if writing works
        self._rival = ""  # id of another agent that writes the same node; empty if there is none
        self._ending = False

    async def run(self, ended: asyncio.Event, drain_s: float) -> None:
        """Run until `ended` is set. Then report the engine as not ready, and let it drain for up to `drain_s`."""
        sampling: asyncio.Task[None] | None = None
        if self.meter is not None:
            await self.meter.sample()
            sampling = asyncio.create_task(self.meter.run())
        try:
            while not ended.is_set():
                await self.beat()
                with suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), self.heartbeat_s)
            await self.leave(drain_s)
        finally:
            if sampling is not None:
                sampling.cancel()
            await self.engine.close()
            await self.etcd.close()

    async def beat(self) -> None:
        """Send one heartbeat. If etcd is down, the next heartbeat tries again, and the engine continues to serve."""
        node = self.node = await self._look()
        try:
            await self._write(node)
        except EtcdError as error:
            if not self._down:
                log.warning("%s The agent retries every %g s.", error, self.heartbeat_s)
            self._down = str(error)
            return
        if self._down:
            self._down = ""
            log.info("etcd: the agent can write %s again", self.key)
        self.beats += 1

    async def leave(self, drain_s: float) -> None:
        self._ending = True
        until = time.monotonic() + drain_s
        await self.beat()
        while not self._down and time.monotonic() < until and not self._idle():
            await asyncio.sleep(min(self.heartbeat_s, max(0.0, until - time.monotonic())))
            await self.beat()
        if self.lease:
            with suppress(EtcdError):  # if this fails, the lease expires
                await self.etcd.revoke(self.lease)
            self.lease = 0

    def _idle(self) -> bool:
        """Return whether the engine reports no requests."""
        signals = self.node.signals
        return "running" in signals and not signals["running"] and not signals.get("queued")

    async def _look(self) -> Node:
        why, figures = await asyncio.gather(self.engine.unready(), self.engine.figures())
        up = not why
        models = self.node.models
        if self._asks_models and up and (not self._up or not models):
            models = await self.engine.models()
        if up != self._up:
            log.info("the engine is %s", "ready" if up else f"not ready: {why}")
        self._up = up
        if self.meter is not None:
            figures = {**figures, **self.meter.means()}
        return replace(
            self.node,
            models=models,
            ready=up and not self._ending,
            why=ENDING if self._ending else why,
            signals=figures,
            at=time.time(),
            agent=self.me,
        )

    async def _write(self, node: Node) -> None:
        if self.lease:
            try:
                await self.etcd.keep_alive(self.lease)
                await self._put(node)
                return
            except LeaseLost:
                log.warning("etcd: the lease of %s was lost; the agent registers it again", self.key)
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
            log.warning("etcd: another agent writes %s too; give each engine its own --id", self.key)
            self._rival = rival


def advertised_url(engine: str, advertise: str | None, endpoints: tuple[str, ...]) -> str:
    """Return the URL that gateways use for the engine. Raise if the URL works only on this machine."""
    url = advertise or engine
    option = "--advertise" if advertise is not None else "--engine"
    address = Address(url, option)
    ip = _ip(address.host)
    if ip is None or not (ip.is_unspecified or ip.is_loopback):
        return address.url
    hosts = [urlsplit(endpoint).hostname or "" for endpoint in endpoints]
    here = all((endpoint := _ip(host)) is not None and endpoint.is_loopback for host in hosts)
    if ip.is_loopback and (advertise is not None or here):
        return address.url
    mine = own_address(endpoints[0])
    scheme, host = ("https" if address.tls else "http"), f"[{mine}]" if ":" in mine else mine
    raise HeadwayError(
        f"{option}: gateways on other machines cannot reach {address.host}; set --advertise to a URL that they can "
        f"reach, as in {scheme}://{host}:{address.port}."
    )


def own_address(endpoint: str) -> str:
    """Return the local address from which this machine reaches an endpoint. A connected UDP socket knows this address,
    and connecting it sends no packet."""
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
