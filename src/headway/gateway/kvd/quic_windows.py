"""QUIC flow control by the bytes that the daemon has read. aioquic lets a peer send more as soon as bytes arrive, so a
fast sender could fill the daemon's memory. Here a peer is at most one window ahead of the reader."""

from typing import Any, Final

from aioquic.quic.connection import Limit, QuicConnection
from aioquic.quic.packet import QuicFrameType

from headway.gateway.kvd import mutual_tls

MOST_STREAMS: Final = 16  # maximum number of streams of a connection
STREAM_WINDOW: Final = 1 << 19
STEP: Final = STREAM_WINDOW // 2  # minimum increase of a limit, in bytes, at which the new limit is sent to the peer
WINDOW: Final = (MOST_STREAMS + 1) * STREAM_WINDOW  # large enough that stalled streams do not block others
_FRAME: Final = 17  # maximum size of a MAX_STREAM_DATA frame, in bytes


class _Window(Limit):
    """A limit on received bytes, which rises as the bytes are read."""

    def __init__(self, plain: Limit) -> None:
        self.unread = 0  # number of bytes received but not yet read
        self._granted = plain.value
        super().__init__(plain.frame_type, plain.name, plain.value)

    @property
    def value(self) -> int:
        limit = self.used - self.unread + WINDOW
        if limit - self._granted >= STEP:
            self._granted = limit
        return self._granted

    @value.setter
    def value(self, limit: int) -> None:
        """Ignore the limit that aioquic sets."""


class Connection(QuicConnection):
    """A connection of a client or a server. The server requires the client's certificate."""

    def open_windows(self) -> None:
        """Replace aioquic's limit on received bytes. Call this once, before the first packet."""
        self._local_max_data: Any = _Window(self._local_max_data)
        self._unread: dict[int, int] = {}  # number of unread bytes, by stream

    def count_received(self, stream_id: int, size: int) -> None:
        self._unread[stream_id] = self._unread.get(stream_id, 0) + size
        self._local_max_data.unread += size

    def count_read(self, stream_id: int, size: int) -> bool:
        """Count bytes of a stream as read. Return whether a new limit must be sent to the peer."""
        left = self._unread.pop(stream_id) - size
        if left:
            self._unread[stream_id] = left
        self._local_max_data.unread -= size
        stream = self._streams.get(stream_id)
        return (stream is not None and self._is_due(stream)) or (
            self._local_max_data.value != self._local_max_data.sent
        )

    def forget(self, stream_id: int) -> None:
        """Drop the count of unread bytes of a stream that is no longer read."""
        self._local_max_data.unread -= self._unread.pop(stream_id, 0)

    def unsent(self, stream_id: int) -> int:
        """Return the number of bytes of a stream that the peer has not acknowledged."""
        stream = self._streams.get(stream_id)
        return 0 if stream is None else stream.sender._buffer_stop - stream.sender._buffer_start

    def _initialize(self, peer_cid: bytes) -> None:
        super()._initialize(peer_cid)
        if not self._is_client:
            mutual_tls.demand(self.tls)

    def _grant(self, stream: Any) -> int:
        granted: int = stream.receiver.highest_offset - self._unread.get(stream.stream_id, 0) + STREAM_WINDOW
        return granted

    def _is_due(self, stream: Any) -> bool:
        return bool(self._grant(stream) - stream.max_stream_data_local >= STEP)

    def _write_stream_limits(self, builder: Any, space: Any, stream: Any) -> None:
        if self._is_due(stream):
            stream.max_stream_data_local = self._grant(stream)
        if stream.max_stream_data_local_sent == stream.max_stream_data_local or stream.receiver.is_finished:
            return
        buffer = builder.start_frame(
            QuicFrameType.MAX_STREAM_DATA,
            capacity=_FRAME,
            handler=self._on_max_stream_data_delivery,
            handler_args=(stream,),
        )
        buffer.push_uint_var(stream.stream_id)
        buffer.push_uint_var(stream.max_stream_data_local)
        stream.max_stream_data_local_sent = stream.max_stream_data_local
