"""The transports by the scheme of an address: `unix:/run/kvd.sock`, `quic://10.0.0.8:7072`, and what others add."""

from __future__ import annotations

from collections.abc import Callable
from ctypes.util import find_library
from importlib import import_module
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.kvd.channel import Transport

_OWN: Final = {
    "unix": "headway.gateway.kvd.unix",
    "quic": "headway.gateway.kvd.quic",
}
_MADE: Final[dict[str, Callable[[], Transport]]] = {}


def register(scheme: str, make: Callable[[], Transport]) -> None:
    """Another transport, or another in place of one of ours."""
    _MADE[scheme] = make


def transport(address: str, where: str) -> Transport:
    scheme = address.partition(":")[0]
    if scheme in _MADE:
        return _MADE[scheme]()
    if scheme == "rdma":
        raise _without_rdma()
    if scheme not in _OWN:
        raise HeadwayError(
            f"{where}: expected an address such as unix:/run/kvd.sock or quic://10.0.0.8:7072, got {shown(address)}."
        )
    try:
        module = import_module(_OWN[scheme])
    except ImportError as error:
        raise HeadwayError(
            f"{where}: {error.name} is not installed; install headway[kvd] for {scheme} addresses."
        ) from None
    made: Transport = module.transport()
    return made


def _without_rdma() -> HeadwayError:
    """Say why RDMA is refused: a transport for it comes from outside, through `register`."""
    if find_library("ibverbs") is None:
        return HeadwayError("rdma: libibverbs is not on this machine; use a quic:// address, or install rdma-core.")
    return HeadwayError(
        "rdma: Headway brings no RDMA transport of its own; use a quic:// address, "
        "or give one to headway.gateway.kvd.transports.register."
    )


def host_and_port(address: str, where: str) -> tuple[str, int]:
    """Of an address such as quic://10.0.0.8:7072 or quic://[::1]:7072."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise HeadwayError(f"{where}: expected an address such as quic://10.0.0.8:7072, got {shown(address)}.")
    return host.strip("[]"), int(port)
