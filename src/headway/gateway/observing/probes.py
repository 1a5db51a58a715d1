"""Liveness and readiness on a port of their own, without a key, as Kubernetes and load balancers ask for them.

With several worker processes, every process listens on this port, and the kernel chooses the one that answers. All of
them know the engines, so each answers for the gateway, and the probes survive the death of a process.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import msgspec
from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.settings import Listen
from headway.http.address import why_not_listening
from headway.http.client_limits import Limits
from headway.http.replies import error_body
from headway.http.wire import ClientConnection

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Fleet
    from headway.gateway.live_clock import Clock
    from headway.http.request_reader import Incoming

LIVE, READY = b"/livez", b"/readyz"
LIMITS: Final = Limits(head_bytes=4096, body_bytes=1024, head_s=5.0, body_s=5.0, idle_s=30.0, connections=256)
SWEEP_S: Final = 1.0


class ProbeSettings(Struct, frozen=True):
    """The section `probes:` of a gateway's file."""

    listen: Annotated[Listen, "address and port of /livez and /readyz; the section may be this value alone"]
    short_form: ClassVar[Any] = Listen

    @classmethod
    def expand(cls, data: Any, where: str) -> Any:
        return data if isinstance(data, dict) else {"listen": data}


class Probes:
    """Answers GET /livez and GET /readyz. The answer to /readyz says why the gateway is not ready."""

    check_sender = staticmethod(lambda named: None)
    half_closed = True
    draining = True  # every answer closes its connection

    def __init__(
        self, clock: Clock, fleet: Fleet, settings: ProbeSettings, why_not: Callable[[], str], shared: bool
    ) -> None:
        """`why_not` returns why the gateway itself is not ready; "" if it is. `shared`: other processes listen too."""
        self.clock, self.fleet, self.settings, self.why_not, self.shared = clock, fleet, settings, why_not, shared
        self.limits, self.seconds, self.held_bytes = LIMITS, clock.seconds, 0
        self.clients: dict[ClientConnection, None] = {}
        self.addresses: Counter[str] = Counter()
        self.port = settings.listen[1]
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        host, port = self.settings.listen
        try:
            self._server = await self.clock.loop.create_server(
                partial(ClientConnection, self), host, port, reuse_port=True if self.shared else None
            )
        except OSError as error:
            raise HeadwayError(f"probes.listen: cannot listen on {host}:{port}: {why_not_listening(error)}.") from None
        self.port = self._server.sockets[0].getsockname()[1]
        self.clock.call_later(SWEEP_S, self._sweep)

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for client in list(self.clients):
            client.transport.abort()

    def _sweep(self) -> None:
        if self._server is not None:
            self.clock.call_later(SWEEP_S, self._sweep)
        for client in list(self.clients):
            client.overdue(self.seconds())

    def begin(self, client: ClientConnection, incoming: Incoming) -> None:
        path = incoming.target.partition(b"?")[0]
        if path not in (LIVE, READY):
            client.answer(incoming, 404, error_body(404, "the paths of this port are /livez and /readyz"))
        elif incoming.method not in (b"GET", b"HEAD"):
            text = error_body(405, "this path needs the method GET")
            client.answer(incoming, 405, text, (("allow", "GET, HEAD"),))
        elif path == LIVE:
            client.answer(incoming, 200, b'{"live":true}')
        else:
            why = self.why_not() or ("" if self.fleet.serving else "no engine can take requests")
            document = {"ready": not why, "why": why} if why else {"ready": True}
            client.answer(incoming, 503 if why else 200, msgspec.json.encode(document))

    def count_refusal(self, status: int) -> None:
        """Count nothing: the metrics of the gateway are about requests for engines."""

    def report_turned_away(self, address: str, why: str) -> None:
        """Log nothing: probes come every few seconds, and again after a refusal."""
