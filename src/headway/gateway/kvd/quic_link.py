"""A QUIC connection between two nodes. Each channel is one stream of the connection."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.quic import events

from headway.gateway.kvd import mutual_tls, quic_windows
from headway.gateway.kvd.channel import Buffer, Channel, Closed

MOST_CUT: Final = 1000  # maximum number of streams closed on one connection; beyond it, the connection is closed
HANDSHAKE_S: Final = 5.0
PIECE: Final = 128 * 1024
UNSENT: Final = 1 << 20  # maximum number of unacknowledged bytes per channel; beyond it, `write` waits
ENDED: Final = 1  # the error code of reset streams and closed connections


class QuicChannel:
    def __init__(self, link: Link, stream_id: int) -> None:
        self.peer = link.peer
        self.closed = False
        self._link = link
        self._stream = stream_id
        self._chunks: deque[bytes] = deque()
        self._ready = 0  # total number of bytes in `_chunks`
        self._least = 0  # minimum number of bytes in `_chunks` at which the waiting reader wakes up
        self._reading: asyncio.Future[None] | None = None
        self._writing: asyncio.Future[None] | None = None
        self._received = self._sent = 0

    async def read(self, size: int) -> bytearray:
        data = bytearray(size)
        filled = 0
        while filled < size:
            if self._chunks:
                filled += self._pull(data, filled)
                continue
            if self.closed:
                raise Closed
            self._least = min(size - filled, PIECE)
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading
        return data

    def _pull(self, data: bytearray, at: int) -> int:
        chunk = self._chunks.popleft()
        size = min(len(chunk), len(data) - at)
        data[at : at + size] = chunk[:size]
        if size < len(chunk):
            self._chunks.appendleft(chunk[size:])
        self._ready -= size
        self._link.count_read(self._stream, size)
        return size

    async def write(self, *parts: Buffer) -> None:
        for part in parts:
            view = memoryview(part)
            for at in range(0, len(view), PIECE):
                while not self.closed and self._link.quic.unsent(self._stream) > UNSENT:
                    self._writing = asyncio.get_running_loop().create_future()
                    await self._writing
                if self.closed:
                    raise Closed
                piece = bytes(view[at : at + PIECE])
                self._link.send(self._stream, piece)
                self._sent += len(piece)

    def moved_bytes(self) -> int:
        return self._received + self._sent - self._link.quic.unsent(self._stream)

    def close(self) -> None:
        if not self.closed:
            self._link.finish(self._stream)
        self._leave()

    def abort(self) -> None:
        if not self.closed:
            self._link.cut(self._stream)
        self._leave()

    def _leave(self) -> None:
        self._chunks.clear()
        self._ready = 0
        self.end()
        self._link.quic.forget(self._stream)

    def feed(self, data: bytes) -> None:
        self._received += len(data)
        self._ready += len(data)
        self._link.quic.count_received(self._stream, len(data))
        self._chunks.append(data)
        if self._ready >= self._least:
            _wake(self._reading)

    def on_acknowledged(self) -> None:
        if self._writing is not None and self._link.quic.unsent(self._stream) <= UNSENT // 2:
            _wake(self._writing)

    def end(self) -> None:
        """Mark the channel as closed. Bytes that were received can still be read."""
        self.closed = True
        self._link.forget(self._stream)
        _wake(self._reading)
        _wake(self._writing)


def _wake(waiting: asyncio.Future[None] | None) -> None:
    if waiting is not None and not waiting.done():
        waiting.set_result(None)


class Link(QuicConnectionProtocol):
    """A connection of a client or a server. On a server, `accept` receives the channels that the client opens."""

    def __init__(
        self,
        quic: Any,
        peer: str,
        accept: Callable[[Channel], None] | None = None,
        on_end: Callable[[Link], None] | None = None,
    ) -> None:
        quic.__class__ = quic_windows.Connection
        quic.open_windows()
        super().__init__(quic)
        self.quic: quic_windows.Connection = quic
        self.peer = peer
        self.ended: str | None = None  # reason why the connection ended; None while it is open
        self.connected: asyncio.Future[None] = self._loop.create_future()
        self._accept = accept
        self._on_end = on_end
        self._channels: dict[int, QuicChannel] = {}
        self._cut: set[int] = set()
        self._late = self._loop.call_later(HANDSHAKE_S, self.close, ENDED, "the handshake timed out")

    def open(self) -> QuicChannel:
        stream_id = self.quic.get_next_available_stream_id()
        self.send(stream_id, b"")  # reserves the stream id
        channel = self._channels[stream_id] = QuicChannel(self, stream_id)
        return channel

    def send(self, stream_id: int, data: bytes) -> None:
        self.quic.send_stream_data(stream_id, data)
        self._transmit_soon()

    def count_read(self, stream_id: int, size: int) -> None:
        if self.quic.count_read(stream_id, size):
            self._transmit_soon()

    def cut(self, stream_id: int) -> None:
        if self.ended is not None:
            return
        self._cut.add(stream_id)
        if len(self._cut) > MOST_CUT:
            self.close(ENDED, "too many streams were aborted")
            return
        self.quic.reset_stream(stream_id, ENDED)
        self.quic.stop_stream(stream_id, ENDED)
        self._transmit_soon()

    def finish(self, stream_id: int) -> None:
        """Close the stream after its remaining bytes have been sent. Ask the peer to send nothing more on it."""
        if self.ended is None:
            self._cut.add(stream_id)
            self.quic.send_stream_data(stream_id, b"", end_stream=True)
            self.quic.stop_stream(stream_id, ENDED)
            self._transmit_soon()

    def hang_up(self) -> None:
        """Close the client's socket, because no other connection uses it."""
        if self._transport is not None:
            self._transport.close()

    def forget(self, stream_id: int) -> None:
        self._channels.pop(stream_id, None)

    def datagram_received(self, data: Any, addr: Any) -> None:
        """Override aioquic to send one answer for all datagrams that arrive together."""
        self.quic.receive_datagram(data, addr, now=self._loop.time())
        self._process_events()
        self._transmit_soon()
        for channel in [*self._channels.values()]:
            channel.on_acknowledged()

    def quic_event_received(self, event: events.QuicEvent) -> None:
        if isinstance(event, events.StreamDataReceived):
            self._on_data(event)
        elif isinstance(event, events.StreamReset | events.StopSendingReceived):
            channel = self._channels.get(event.stream_id)
            if channel is not None:
                channel.abort()
        elif isinstance(event, events.HandshakeCompleted):
            self._on_handshake(event)
        elif isinstance(event, events.ConnectionTerminated):
            self._on_terminated(event)

    def _on_handshake(self, event: events.HandshakeCompleted) -> None:
        self._late.cancel()
        server = self._accept is not None
        if event.alpn_protocol != mutual_tls.ALPN or (server and not mutual_tls.is_verified(self.quic.tls)):
            self.close(ENDED, "a client's certificate is required")
        elif not self.connected.done():
            self.connected.set_result(None)

    def _on_data(self, event: events.StreamDataReceived) -> None:
        channel = self._channels.get(event.stream_id) or self._incoming(event.stream_id)
        if channel is None:
            return
        if event.data:
            channel.feed(event.data)
        if event.end_stream:
            channel.end()

    def _incoming(self, stream_id: int) -> QuicChannel | None:
        """Return a channel for a stream that the peer opens; None if the stream is already closed or not allowed."""
        if stream_id in self._cut:
            return None
        verified = self.connected.done() and self.ended is None
        if self._accept is None or not verified or stream_id % 4 or len(self._channels) >= quic_windows.MOST_STREAMS:
            self.close(ENDED, "the peer may not open this stream")
            return None
        channel = self._channels[stream_id] = QuicChannel(self, stream_id)
        self._accept(channel)
        return channel

    def _on_terminated(self, event: events.ConnectionTerminated) -> None:
        self._late.cancel()
        self.ended = event.reason_phrase or (f"error {event.error_code}" if event.error_code else "it was closed")
        if not self.connected.done():
            self.connected.set_exception(Closed(self.ended))
            self.connected.exception()  # marks the exception as retrieved, because a server does not await this future
        for channel in [*self._channels.values()]:
            channel.end()
        if self._on_end is not None:
            self._on_end(self)
