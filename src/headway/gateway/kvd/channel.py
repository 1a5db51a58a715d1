"""The interface of a transport. A transport opens byte streams to a peer, and accepts streams that a peer opens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.settings import File

Buffer: TypeAlias = bytes | bytearray
# The codes of `KvdError`.
UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"
BUSY: Final = "busy"  # too many connections
WRONG: Final = "wrong"  # a malformed request or reply
REFUSED: Final = "refused"
LEAST_MOVED: Final = 65_536  # minimum number of bytes that must move within `stall_s` during a request
FAILED: Final = "failed"  # the daemon or the source of a fetch failed


class KvdError(HeadwayError):
    """A request to the daemon failed. `code` is one of the constants above."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Closed(Exception):
    """Either side has closed the channel."""


class TlsFiles(Struct, frozen=True):
    """The PEM files of one node."""

    ca: Annotated[File, "certificate of the authority that signs the certificates of all nodes"]
    certificate: Annotated[File, "certificate of this node"]
    key: Annotated[File, "private key of that certificate"]

    def beside(self, folder: Path) -> TlsFiles:
        """Resolve relative paths against the folder of the file that names them."""
        return TlsFiles(folder / self.ca, folder / self.certificate, folder / self.key)


class Channel(Protocol):
    """A byte stream to one peer. On a closed channel, `read` and `write` raise `Closed`."""

    peer: str  # name of the peer; all channels of one connection have the same name
    closed: bool

    async def read(self, size: int) -> bytearray:
        """Read exactly `size` bytes."""

    async def write(self, *parts: Buffer) -> None:
        """Write all parts. If the peer reads slowly, wait until it has read enough."""

    def moved_bytes(self) -> int:
        """Return the number of bytes received and sent so far, by which the daemon detects stalled streams."""

    def close(self) -> None:
        """Close the channel once all written bytes have been sent."""

    def abort(self) -> None:
        """Close the channel immediately, and drop unsent bytes."""


class Listener(Protocol):
    address: str  # the address that clients use

    async def close(self) -> None:
        """Stop accepting channels. Open channels stay open."""

    async def close_connections(self) -> None:
        """Close the connections that are still open."""


class Dialler(Protocol):
    """Opens channels to one address."""

    async def open(self) -> Channel: ...

    def why(self) -> str | None:
        """Return the reason why the last connection ended; None if the reason is unknown."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def listen(
        self, address: str, tls: TlsFiles | None, accept: Callable[[Channel], None], most: int
    ) -> Listener:
        """Listen, and call `accept` with each channel that a peer opens. Allow at most `most` connections."""

    def dialler(self, address: str, tls: TlsFiles | None) -> Dialler: ...
