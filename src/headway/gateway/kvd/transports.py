"""The transports, by the scheme of an address such as `unix:/run/kvd.sock` or `quic://10.0.0.8:7072`."""

from collections.abc import Callable
from pkgutil import resolve_name
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError, missing_extra
from headway.gateway.kvd.channel import Transport

_OWN: Final = {"unix": "headway.gateway.kvd.unix:UnixTransport", "quic": "headway.gateway.kvd.quic:QuicTransport"}
_REGISTERED: Final[dict[str, Callable[[], Transport]]] = {}


def register(scheme: str, make: Callable[[], Transport]) -> None:
    """Register a transport for a scheme. If the scheme has a built-in transport, replace it."""
    _REGISTERED[scheme] = make


def transport(address: str, where: str) -> Transport:
    scheme = address.partition(":")[0]
    if scheme in _REGISTERED:
        return _REGISTERED[scheme]()
    if scheme == "rdma":
        raise HeadwayError(
            "rdma: Headway has no built-in RDMA transport; use a quic:// address, or register a transport with "
            "headway.gateway.kvd.transports.register."
        )
    if scheme not in _OWN:
        raise HeadwayError(
            f"{where}: expected an address such as unix:/run/kvd.sock or quic://10.0.0.8:7072, got {shown(address)}."
        )
    try:
        make: Callable[[], Transport] = resolve_name(_OWN[scheme])
    except ImportError as error:
        raise missing_extra(where, error.name or scheme, "kvd") from None
    return make()


def host_and_port(address: str, where: str) -> tuple[str, int]:
    """Return the host and port of an address such as quic://10.0.0.8:7072 or quic://[::1]:7072."""
    host, _, port = address.partition("://")[2].rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or int(port) > 65535 or "/" in host:
        raise HeadwayError(f"{where}: expected an address such as quic://10.0.0.8:7072, got {shown(address)}.")
    return host.strip("[]"), int(port)
