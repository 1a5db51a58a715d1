"""QUIC between nodes: one connection for each pair of nodes, with mutual TLS.

If the network carries datagrams above 1,200 bytes, an address may set the datagram size: quic://host:port?datagram=8900
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any, Final

from aioquic._buffer import Buffer as Packet
from aioquic.asyncio.server import QuicServer
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import pull_quic_header

from headway.errors import HeadwayError
from headway.gateway.kvd import mutual_tls, quic_windows
from headway.gateway.kvd.channel import UNREACHABLE, Channel, Closed, Dialler, KvdError, Listener, TlsFiles
from headway.gateway.kvd.quic_link import Link
from headway.gateway.kvd.transports import host_and_port

DATAGRAMS: Final = range(1200, 16_001)  # sizes in bytes: every network carries 1,200; aioquic allows at most 16,000
SOCKET_BUFFER: Final = 4 << 20


class Server(QuicServer):
    def __init__(self, configuration: Any, accept: Callable[[Channel], None], most: int) -> None:
        super().__init__(configuration=configuration, create_protocol=self._link, retry=True)
        self.open = True
        self.links: dict[Link, None] = {}
        self._accept = accept
        self._most = most
        self._count = 0

    def _link(self, quic: Any, stream_handler: Any = None) -> Link:
        self._count += 1
        link = Link(quic, f"quic:{self._count}", self._take, lambda link: self.links.pop(link, None))
        self.links[link] = None
        return link

    def _take(self, channel: Channel) -> None:
        if self.open:
            self._accept(channel)
        else:
            channel.abort()

    def datagram_received(self, data: Any, addr: Any) -> None:
        if (len(self.links) >= self._most or not self.open) and not self._is_known(data):
            return
        super().datagram_received(data, addr)

    def _is_known(self, data: bytes) -> bool:
        try:
            header = pull_quic_header(Packet(data=data), host_cid_length=self._configuration.connection_id_length)
        except ValueError:
            return False
        return header.destination_cid in self._protocols


class QuicListener:
    def __init__(self, server: Server, address: str) -> None:
        self.address = address
        self._server = server

    async def close(self) -> None:
        self._server.open = False

    async def close_connections(self) -> None:
        self._server.close()


class QuicDialler:
    """Opens channels on one connection. If the connection has ended, `open` connects again."""

    def __init__(self, address: str, tls: TlsFiles | None) -> None:
        self._address = address
        self._host, self._port = host_and_port(address.partition("?")[0], address)
        self._configuration = _configuration(tls, address, self._host)
        self._link: Link | None = None
        self._connecting = asyncio.Lock()

    async def open(self) -> Channel:
        async with self._connecting:
            if self._link is None or self._link.ended is not None:
                await self._connect()
            assert self._link is not None
            return self._link.open()

    def why(self) -> str | None:
        return self._link.ended if self._link is not None else None

    async def close(self) -> None:
        if self._link is not None:
            self._link.close()
            await self._link.wait_closed()
            self._link = None

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
            family, _, _, _, address = addresses[0]
            quic = QuicConnection(configuration=self._configuration)
            _, link = await loop.create_datagram_endpoint(
                lambda: Link(quic, self._address, on_end=Link.hang_up), sock=_socket(family)
            )
        except OSError as error:
            raise KvdError(UNREACHABLE, f"{self._address}: cannot be reached ({error.strerror or error}).") from None
        link.connect(address)
        try:
            await link.connected
        except Closed as error:
            raise KvdError(UNREACHABLE, f"{self._address}: cannot be reached ({error}).") from None
        except asyncio.CancelledError:
            link.close()
            raise
        self._link = link


class QuicTransport:
    async def listen(
        self, address: str, tls: TlsFiles | None, accept: Callable[[Channel], None], most: int
    ) -> Listener:
        host, port = host_and_port(address.partition("?")[0], address)
        configuration = _configuration(tls, address, None)
        loop = asyncio.get_running_loop()
        try:
            addresses = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE)
            opened = _socket(addresses[0][0], addresses[0][4])
        except OSError as error:
            raise HeadwayError(f"{address}: cannot listen on this address ({error.strerror or error}).") from None
        name = opened.getsockname()
        _, server = await loop.create_datagram_endpoint(lambda: Server(configuration, accept, most), sock=opened)
        host = f"[{name[0]}]" if ":" in name[0] else name[0]
        return QuicListener(server, f"quic://{host}:{name[1]}")

    def dialler(self, address: str, tls: TlsFiles | None) -> Dialler:
        return QuicDialler(address, tls)


def _socket(family: int, address: Any = None) -> socket.socket:
    opened = socket.socket(family, socket.SOCK_DGRAM)
    try:
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            opened.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER)
        opened.bind(address or ("::" if family == socket.AF_INET6 else "0.0.0.0", 0))
        opened.setblocking(False)
    except OSError:
        opened.close()
        raise
    return opened


def _configuration(tls: TlsFiles | None, address: str, server_name: str | None) -> QuicConfiguration:
    configuration = mutual_tls.configuration(tls, address, server_name)
    configuration.max_datagram_size = _datagram(address)
    configuration.max_stream_data, configuration.max_data = quic_windows.STREAM_WINDOW, quic_windows.WINDOW
    return configuration


def _datagram(address: str) -> int:
    query = address.partition("?")[2]
    if not query:
        return DATAGRAMS[0]
    name, _, value = query.partition("=")
    if name != "datagram" or not value.isdecimal() or int(value) not in DATAGRAMS:
        raise HeadwayError(f"{address}: expected ?datagram=SIZE, with {DATAGRAMS[0]:,} to {DATAGRAMS[-1]:,} bytes.")
    return int(value)
