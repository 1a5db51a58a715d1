"""An engine behind the gateway: where it is, how it fares, and the connections to it that are free."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headway.types import HeadwayError, InstanceView

if TYPE_CHECKING:
    from headway.gateway.upstream import Upstream


class Address:
    """Of a URL such as http://10.0.0.7:8000; requests go to its path and what the client asked for."""

    __slots__ = ("base", "host", "port", "tls", "url")

    def __init__(self, url: str, where: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise HeadwayError(f"{where}: expected a URL such as http://10.0.0.7:8000, got {url!r}.")
        self.url = url
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        self.base = parts.path.rstrip("/").encode()


class Backend:
    """The view is what policies see of it, and belongs to the plane."""

    __slots__ = (
        "address",
        "connecting",
        "failures",
        "free",
        "key",
        "open_until",
        "opened",
        "view",
    )

    def __init__(self, address: Address, view: InstanceView, key: bytes | None = None) -> None:
        self.address = address
        self.view = view
        self.key = key  # what the engine wants as its bearer, where that is not the client's
        self.free: deque[Upstream] = deque()
        self.opened = 0  # connections, free or not
        self.connecting = 0
        self.failures = 0  # in a row
        self.open_until = 0.0  # of its circuit breaker
