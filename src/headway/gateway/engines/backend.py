"""An engine behind the gateway: where it is, how it fares, and the connections to it that are free."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from headway.errors import HeadwayError
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.engines.member import BackendSpec
    from headway.gateway.upstream import Upstream


class Address:
    """Of a URL such as http://10.0.0.7:8000; requests go to its path and what the client asked for."""

    __slots__ = ("base", "host", "host_line", "port", "tls", "url")

    def __init__(self, url: str, where: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise HeadwayError(f"{where}: expected a URL such as http://10.0.0.7:8000, got {url!r}.") from None
        plain = url.isascii() and url.isprintable() and " " not in url
        if parts.scheme not in ("http", "https") or not parts.hostname or not plain or parts.username is not None:
            raise HeadwayError(f"{where}: expected a URL such as http://10.0.0.7:8000, got {url!r}.")
        self.url = url.rstrip("/")
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if self.tls else 80)
        self.base = parts.path.rstrip("/").encode()
        shown = f"[{self.host}]" if ":" in self.host else self.host
        self.host_line = f"host: {shown}:{self.port}".encode()


class Backend:
    """The view is what policies see of it, and belongs to the plane."""

    __slots__ = (
        "address",
        "ejected",
        "failures",
        "free",
        "key",
        "opened",
        "place",
        "spec",
        "target_line",
        "unready",
        "view",
    )

    def __init__(self, spec: BackendSpec, view: InstanceView) -> None:
        self.spec = spec
        self.view = view
        self.place = view.index
        self.target_line = b"x-headway-target: " + spec.name.encode()  # of answers that come from it
        self.address = Address(spec.url, f"backends.{spec.name}.url")
        self.key = spec.key  # what the engine wants as its bearer, where that is not the client's
        self.free: deque[Upstream] = deque()
        self.opened = 0  # connections, free or not
        self.failures = 0  # in a row
        self.ejected = False  # for failures
        self.unready: dict[str, str] = {}  # who says that it is not ready, and why

    @property
    def name(self) -> str:
        return self.spec.name

    def close(self) -> None:
        for upstream in list(self.free):
            upstream.close()
