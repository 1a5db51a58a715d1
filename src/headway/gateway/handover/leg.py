"""A request that the gateway itself sends to an engine, over the engine's connections. The answer is collected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headway.http.upstream import Payload, connect, is_framed, take_free

if TYPE_CHECKING:
    from headway.gateway.engines.engine_fleet import Backend
    from headway.gateway.live_clock import Clock
    from headway.http.upstream import Upstream
    from headway.http.wire import Fields

ANSWER_BYTES: Final = 16 * 1024 * 1024


class Leg:
    """Runs from `start` to one call of `done`, unless it is cancelled. `why` says what went wrong, if anything."""

    __slots__ = (
        "_data",
        "_done",
        "_payload",
        "_pieces",
        "_size",
        "_timer",
        "_upstream",
        "backend",
        "clock",
        "complete",
        "connect_s",
        "limit",
        "over",
        "status",
        "until_close",
        "why",
    )

    def __init__(
        self,
        clock: Clock,
        backend: Backend,
        data: list[bytes],
        done: Callable[[Leg], None],
        connect_s: float,
        limit: int = ANSWER_BYTES,
    ) -> None:
        """`data` is the head and the body."""
        self.clock, self.backend, self.connect_s, self.limit = clock, backend, connect_s, limit
        self.status = self._size = 0
        self.over = self.until_close = self.complete = False
        self.why = ""
        self._data, self._done = data, done
        self._payload: Payload | None = None
        self._pieces: list[bytes] = []
        self._upstream: Upstream | None = None
        self._timer: Any = None

    def start(self, seconds: float) -> None:
        """Send it. It has `seconds` from connecting to the end of the answer."""
        self._timer = self.clock.call_later(seconds, self._late)
        upstream = take_free(self.backend)
        if upstream is None:
            self.clock.spawn(self._connect())
        else:
            self._send(upstream)

    async def _connect(self) -> None:
        try:
            upstream = await connect(self.clock.loop, self.backend, self.connect_s)
        except Exception as error:
            self.broken(None, f"no connection ({type(error).__name__})")
            return
        if self.over:
            upstream.close()
        else:
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        upstream.send(self, self._data)

    def cancel(self) -> None:
        """Drop the request. The engine notices by the end of the connection."""
        self._end()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.leave()

    @property
    def ok(self) -> bool:
        return not self.why and self.status == 200

    @property
    def answer(self) -> bytes:
        return b"".join(self._pieces)

    # --- what the connection tells -----------------------------------------------------------------------------------

    def headed(self, upstream: Upstream, status: int, fields: Fields) -> None:
        self.status = status
        self.until_close = not is_framed(fields)
        self._payload = Payload(fields)

    def relayed(self, data: bytes) -> None:
        assert self._payload is not None
        if self.over:
            return
        piece = self._payload.read(data)
        self._size += len(piece)
        if self._size <= self.limit:
            self._pieces.append(piece)
            return
        self._pieces.clear()
        self.cancel()
        self.why = f"an answer of more than {self.limit:,} bytes"
        self._done(self)

    def answered(self) -> None:
        self._upstream = None
        self.complete = True
        self._finish("" if self.status == 200 else f"status {self.status}")

    def broken(self, upstream: Upstream | None, why: str) -> None:
        self._upstream = None
        self._finish(why)

    def _late(self) -> None:
        if not self.over:
            self.cancel()
            self.why = "no answer in time"
            self._done(self)

    def _finish(self, why: str) -> None:
        if not self.over:
            self._end()
            self.why = why
            self._done(self)

    def _end(self) -> None:
        self.over = True
        if self._timer is not None:
            self._timer.cancel()
