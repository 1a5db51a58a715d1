"""An engine behind the gateway: where it is, how it fares, and the connections to it that are free."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from headway.http.address import Address
from headway.views.instance import InstanceView

if TYPE_CHECKING:
    from headway.gateway.engines.member import BackendSpec
    from headway.http.upstream import Upstream


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
