"""The settings of a daemon: addresses, memory and disk for blocks, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.keys import Bytes, Doc, PositiveSeconds, Unit, bytes_of_at_least
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.kvd.channel import TlsFiles
from headway.gateway.settings import Folder

MIB: Final = 2**20
SHARES: Final = 4  # one peer may use 1/SHARES of the memory for requests in flight


def _read_listen(value: Any, where: str) -> tuple[str, ...]:
    addresses = [value] if isinstance(value, str) else value
    if not isinstance(addresses, list) or not addresses or not all(isinstance(each, str) for each in addresses):
        raise HeadwayError(f"{where}: expected an address such as unix:/run/kvd.sock or a list, got {shown(value)}.")
    return tuple(addresses)


SomeFrames = Annotated[int, bytes_of_at_least(65_536)]
SomeMebibytes = Annotated[int, bytes_of_at_least(MIB)]


class Limits(Struct, frozen=True):
    frame: Annotated[SomeFrames, "most bytes of blocks in one request or reply"] = 64 * MIB
    in_flight: Annotated[SomeFrames, "memory for requests and replies in flight; a peer may use a quarter"] = 512 * MIB
    connections: Annotated[int, Meta(ge=1, le=10_000), "most connections; each QUIC stream counts as one"] = 256
    fetches: Annotated[int, Meta(ge=1, le=1000), "most fetches from other daemons at a time"] = 4
    stall_s: Annotated[
        PositiveSeconds,
        "if a peer moves less than 64 KiB in this time during a request or a fetch, the request or the fetch fails",
    ] = 10.0
    idle_s: Annotated[PositiveSeconds, "if a connection has no request for this time, it is closed"] = 300.0
    drain_s: Annotated[PositiveSeconds, "how long the daemon waits for requests in flight when it ends"] = 30.0


class DiskSettings(Struct, frozen=True):
    folder: Annotated[Folder, "folder for the blocks; no other daemon may use it"]
    limit: Annotated[SomeMebibytes, "disk space for blocks, in pages of 4 KiB"]
    unwritten: Annotated[SomeMebibytes, "memory for blocks that wait to be written"] = 256 * MIB


class Settings(Struct, frozen=True):
    listen: Annotated[
        tuple[str, ...],
        Unit("address or list", _read_listen, ", ".join),
        "unix:PATH or quic://HOST:PORT; add ?datagram=8900 if the network carries datagrams above 1,200 bytes",
    ] = ("unix:kvd.sock",)
    ram: Annotated[SomeMebibytes, "memory for blocks; each block needs its size and 256 bytes"] = 1024 * MIB
    held: Annotated[
        Bytes | None, Doc("the part of `ram` that blocks with a time to live may use", default="half of `ram`")
    ] = None
    disk: Annotated[DiskSettings | None, "for blocks that do not fit in memory; below"] = None
    tls: Annotated[TlsFiles | None, "PEM files; required for QUIC; below"] = None
    peers: Annotated[
        tuple[str, ...], Doc("addresses of daemons that this one may fetch from", default="any quic:// address")
    ] = ()
    limits: Annotated[Limits, "below"] = Limits()

    @property
    def held_bytes(self) -> int:
        return self.ram // 2 if self.held is None else self.held

    @classmethod
    def load(cls, data: Mapping[str, Any], folder: Path = Path()) -> Settings:
        """Read and check settings. Relative paths resolve against `folder`."""
        settings = read(cls, dict(data), "")
        if settings.held_bytes > settings.ram:
            ram = shown(data.get("ram", "1GiB"))
            raise HeadwayError(
                f"held: {shown(data['held'])} is more than 'ram' ({ram}). "
                "Held blocks use a part of 'ram'; lower 'held'."
            )
        limits, written = settings.limits, data.get("limits") or {}
        if limits.frame > 2**32 - 1:
            raise HeadwayError(f"limits.frame: must be below 4GiB, got {shown(written['frame'])}.")
        if limits.in_flight < SHARES * (limits.frame + 4 * MIB):
            raise HeadwayError(
                f"limits.in_flight: must be at least {SHARES} times 'frame' plus 16MiB, so that one peer cannot block "
                f"the others, got {shown(written.get('in_flight', '512MiB'))}."
            )
        disk = None if settings.disk is None else replace(settings.disk, folder=folder / settings.disk.folder)
        return replace(settings, disk=disk, tls=None if settings.tls is None else settings.tls.beside(folder))
