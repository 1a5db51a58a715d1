"""What every transport gives: streams of bytes both ways, listened for at one end and opened at the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias

from msgspec import Struct

from headway.errors import HeadwayError
from headway.gateway.settings import File

Buffer: TypeAlias = bytes | bytearray
# What a caller of the daemon can meet.
UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"
BUSY: Final = "busy"  # too many connections
WRONG: Final = "wrong"  # a request that nobody could answer
REFUSED: Final = "refused"
FAILED: Final = "failed"  # the daemon's own fault, or its source's


class KvdError(HeadwayError):
    """The daemon did not do what was asked; `code` is one of the names above."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Closed(Exception):
    """The other side has gone, or nothing more may be said to it."""


class TlsFiles(Struct, frozen=True):
    """Of one node, in PEM: who it trusts, and who it is."""

    ca: Annotated[File, "the authority that peers' certificates are signed by"]
    certificate: Annotated[File, "of this node"]
    key: Annotated[File, "the private key of that"]

    def beside(self, folder: Path) -> TlsFiles:
        """Found from the folder of the file that names them."""
        return TlsFiles(folder / self.ca, folder / self.certificate, folder / self.key)


class Channel(Protocol):
    """A stream of bytes to one peer. Reading and writing raise `Closed` once it is."""

    peer: str  # channels of one connection share it
    closed: bool

    async def read(self, size: int) -> bytearray:
        """Exactly so many bytes."""

    async def write(self, *parts: Buffer) -> None:
        """All of them; waits while the other side is slow to take them."""

    def moved(self) -> int:
        """Bytes that have come in or gone out so far: a stream that stands still is told by it."""

    def close(self) -> None:
        """Ends it once what was written has gone out."""

    def abort(self) -> None:
        """Ends it at once, whatever is under way."""


class Listener(Protocol):
    address: str  # as a client would write it

    async def close(self) -> None:
        """No channel more; those that are open stay."""

    async def gone(self) -> None:
        """Ends what is left of its connections."""


class Dialler(Protocol):
    """Opens channels to one address, over one connection or several."""

    async def open(self) -> Channel: ...

    def why(self) -> str | None:
        """What ended the last connection, where that is known."""

    async def close(self) -> None: ...


class Transport(Protocol):
    async def listen(
        self,
        address: str,
        tls: TlsFiles | None,
        accept: Callable[[Channel], None],
        most: int,
    ) -> Listener:
        """`accept` is given each channel that a peer opens, of at most so many connections."""

    def dialler(self, address: str, tls: TlsFiles | None) -> Dialler: ...
