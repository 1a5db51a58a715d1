"""Limits on clients and their requests, and the address that counts as one client."""

from __future__ import annotations

import socket
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.keys import INTERNAL, Doc, Positive, PositiveSeconds

LEAST_PER_ADDRESS: Final = 256  # lowest default of `address_connections`
IPV4_MAPPED: Final = bytes(10) + b"\xff\xff"  # prefix of IPv4 addresses in IPv6 sockets


class Limits(Struct, frozen=True):
    """Limits on clients and their requests."""

    head_bytes: Annotated[int, Meta(ge=256, le=2**20), "size of the head of a request"] = 32 * 1024
    fields: Annotated[int, INTERNAL] = 100
    body_bytes: Annotated[Positive, "size of the body of a request"] = 32 * 1024 * 1024
    head_s: Annotated[PositiveSeconds, "time to send a head, from its first byte or the start of the connection"] = 10.0
    body_s: Annotated[PositiveSeconds, "time to send a body"] = 60.0
    idle_s: Annotated[PositiveSeconds, "idle time between requests on a connection"] = 75.0
    unsent_bytes: Annotated[int, INTERNAL] = 256 * 1024  # an answer pauses when it has this many unsent bytes
    unread_s: Annotated[PositiveSeconds, "time for which a client may read nothing of its answer"] = 60.0
    connections: Annotated[Positive, "open connections of all clients together"] = 16_384
    address_connections: Annotated[
        Positive | None,
        Doc(
            "open connections from one client address; the addresses of an IPv6 network (64 bits) count as one",
            default="a quarter of `connections`, but at least 256",
        ),
    ] = None
    held_bytes: Annotated[Positive, "size of all bodies in memory: those that arrive, and those in flight"] = 1 << 30

    @property
    def per_address(self) -> int:
        quarter = max(LEAST_PER_ADDRESS, self.connections // 4)
        return quarter if self.address_connections is None else self.address_connections


def network_of(peer: Any) -> str:
    """Return the client address that counts towards the limit of connections: the IPv4 address, or the first 64 bits
    of the IPv6 address, because one client may own all addresses of such a network."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    if packed.startswith(IPV4_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return packed[:8].hex()
