"""RDMA is refused, and it is said why: a transport for it comes from outside, through `transports.register`."""

from __future__ import annotations

from ctypes.util import find_library

from headway.errors import HeadwayError
from headway.gateway.kvd.channel import Transport


def transport() -> Transport:
    if find_library("ibverbs") is None:
        raise HeadwayError("rdma: libibverbs is not on this machine; use a quic:// address, or install rdma-core.")
    raise HeadwayError(
        "rdma: Headway brings no RDMA transport of its own; use a quic:// address, "
        "or give one to headway.gateway.kvd.transports.register."
    )
