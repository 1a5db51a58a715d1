"""A request that the gateway itself sends to an engine, such as a prompt to compute, and its answer."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final

from headway.http.upstream import Payload, connect, is_framed, take_free

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.engines.engine_pace import Pace
    from headway.gateway.live_clock import Clock
    from headway.http.known_heads import Fields
    from headway.http.upstream import Upstream

ANSWER_BYTES: Final = 16 * 1024 * 1024


class Leg:
    """A request that the gateway itself sends to an engine. It calls `on_end` when the answer has ended or the request
    has failed, but not after `cancel`. After an error, `why` is the message; otherwise it is empty."""

    def __init__(
        self, clock: Clock, backend: Backend, data: list[bytes], on_end: Callable[[Leg], None], connect_s: float
    ) -> None:
        """`data` holds the head and the body of the request."""
        self.clock, self.backend, self.connect_s = clock, backend, connect_s
        self.status = self._size = 0
        self.over = self.until_close = self.complete = False
        self.why = ""
        self.error: Exception | None = None  # the reason why no connection could be opened
        self.sent, self.since = False, 0.0  # part of `Owed`: the client never receives this answer
        self._data, self._on_end = data, on_end
        self._payload: Payload | None = None
        self._pieces: list[bytes] = []
        self._upstream: Upstream | None = None
        self._timer: Any = None

    def start(self, seconds: float) -> None:
        """Send the request. `seconds` is the time limit from connecting to the end of the answer."""
        self._timer = self.clock.call_later(seconds, self._finish, "no answer in time")
        upstream = take_free(self.backend)
        if upstream is None:
            self.clock.spawn(self._connect())
        else:
            self._send(upstream)

    async def _connect(self) -> None:
        try:
            upstream = await connect(self.clock.loop, self.backend, self.connect_s)
        except Exception as error:
            self.error = error
            self.on_broken(None, f"no connection ({type(error).__name__})")
            return
        if self.over:
            upstream.close()
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self._upstream, self.since = upstream, self.clock.seconds()
        upstream.send(self, self._data)

    def cancel(self) -> None:
        """Cancel the request. Close its connection, so that the engine stops too."""
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.leave()

    # --- a silent engine ---------------------------------------------------------------------------------------------

    def overdue(self) -> None:
        """Say that the engine owes an answer. Called periodically."""
        if self._upstream is not None and not self.status:
            self.backend.pace.owing.append(self)

    def expected_s(self, pace: Pace) -> float:
        return inf  # `start` has a time limit

    def give_up(self, why: str, elsewhere: bool) -> None:
        self._finish(why)

    @property
    def ok(self) -> bool:
        return not self.why and self.status == 200

    @property
    def answer(self) -> bytes:
        return b"".join(self._pieces)

    # --- events of the connection ------------------------------------------------------------------------------------

    def on_head(self, upstream: Upstream, status: int, fields: Fields) -> None:
        self.status = status
        self.backend.pace.moved = True
        self.until_close = not is_framed(fields)
        self._payload = Payload(fields)

    def on_data(self, data: bytes) -> None:
        assert self._payload is not None
        if self.over:
            return
        piece = self._payload.read(data)
        self._size += len(piece)
        if self._size <= ANSWER_BYTES:
            self._pieces.append(piece)
        else:
            self._pieces.clear()
            self._finish(f"the answer has more than {ANSWER_BYTES:,} bytes")

    def on_complete(self) -> None:
        self._upstream, self.complete = None, True
        self._finish("" if self.status == 200 else f"status {self.status}")

    def on_broken(self, upstream: Upstream | None, why: str) -> None:
        self._upstream = None
        self._finish(why)

    def _finish(self, why: str) -> None:
        if not self.over:
            self.cancel()
            self.why = why
            self._on_end(self)
