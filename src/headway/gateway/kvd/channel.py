"""The interface of transports: byte streams in both directions, accepted at one end and opened at the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.settings import File

Buffer: TypeAlias = bytes | bytearray
# Codes of `KvdError`.
UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"
BUSY: Final = "busy"  # too many connections
WRONG: Final = "wrong"  # a malformed request or answer
REFUSED: Final = "refused"
FAILED: Final = "failed"  # the daemon's own fault, or its source's


class KvdError(HeadwayError):
    """The daemon did not carry out a request; `code` is one of the names above."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Closed(Exception):
    """The channel is closed, at this end or at the other."""


class TlsFiles(Struct, frozen=True):
    """The files of one node, in PEM: the authority that it trusts, and its own certificate."""

    ca: Annotated[File, "the authority that peers' certificates are signed by"]
    certificate: Annotated[File, "of this node"]
    key: Annotated[File, "the private key of that"]

    def beside(self, folder: Path) -> TlsFiles:
        """Resolve relative paths against the folder of the file that names them."""
        return TlsFiles(folder / self.ca, folder / self.certificate, folder / self.key)


class Channel(Protocol):
    """A stream of bytes to one peer. Reading and writing raise `Closed` once it is."""

    peer: str  # channels of one connection share it
    closed: bool

    async def read(self, size: int) -> bytearray:
        """Read exactly so many bytes."""

    async def write(self, *parts: Buffer) -> None:
        """Write all of them; waits while the peer is slow to read."""

    def moved_bytes(self) -> int:
        """Return the bytes that have come in or gone out so far; a stalled stream shows by it."""

    def close(self) -> None:
        """Close it once all that was written has gone out."""

    def abort(self) -> None:
        """Close it at once, whatever is under way."""


class Listener(Protocol):
    address: str  # as a client would write it

    async def close(self) -> None:
        """Accept no more channels; open ones stay."""

    async def close_connections(self) -> None:
        """End the connections that are left."""


class Dialler(Protocol):
    """Opens channels to one address, over one connection or several."""

    async def open(self) -> Channel: ...

    def why(self) -> str | None:
        """Return what ended the last connection, if that is known."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def listen(
        self, address: str, tls: TlsFiles | None, accept: Callable[[Channel], None], most: int
    ) -> Listener:
        """Call `accept` with each channel that a peer opens, on at most so many connections."""

    def dialler(self, address: str, tls: TlsFiles | None) -> Dialler: ...
