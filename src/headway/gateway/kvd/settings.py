"""The daemon's file: its addresses, the memory and disk for blocks, and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config.documents import read_yaml
from headway.config.keys import Bytes, Doc, PositiveSeconds, Unit, bytes_of_at_least
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.kvd.channel import TlsFiles
from headway.gateway.settings import Folder

MIB: Final = 2**20
SHARES: Final = 4  # one peer has at most this part of the bytes in flight


def _read_listen(value: Any, where: str) -> tuple[str, ...]:
    addresses = [value] if isinstance(value, str) else value
    if not isinstance(addresses, list) or not addresses or not all(isinstance(each, str) for each in addresses):
        raise HeadwayError(f"{where}: expected an address such as unix:/run/kvd.sock or a list, got {shown(value)}.")
    return tuple(addresses)


SomeFrames = Annotated[int, bytes_of_at_least(65_536)]
SomeMebibytes = Annotated[int, bytes_of_at_least(MIB)]


class Limits(Struct, frozen=True):
    frame: Annotated[SomeFrames, "of blocks in a request or an answer"] = 64 * MIB
    in_flight: Annotated[SomeFrames, "of all requests and answers under way; a peer has a quarter at most"] = 512 * MIB
    connections: Annotated[int, Meta(ge=1, le=10_000), "at a time"] = 256
    fetches: Annotated[int, Meta(ge=1, le=1000), "from other daemons at once"] = 4
    stall_s: Annotated[
        PositiveSeconds, "a peer that moves less than 64 KiB in so long while a request is under way is given up"
    ] = 10.0
    idle_s: Annotated[PositiveSeconds, "and so is one without a request after so long"] = 300.0
    drain_s: Annotated[PositiveSeconds, "what the end takes at most"] = 30.0


class DiskSettings(Struct, frozen=True):
    folder: Annotated[Folder, "of its own"]
    limit: Annotated[SomeMebibytes, "of what lies there, in pages of 4 KiB"]
    unwritten: Annotated[SomeMebibytes, "memory for what waits to be written"] = 256 * MIB


class Settings(Struct, frozen=True):
    listen: Annotated[
        tuple[str, ...],
        Unit("address or list", _read_listen, ", ".join),
        "unix:PATH, or quic://HOST:PORT; quic://HOST:PORT?datagram=8900 where the network takes longer datagrams than "
        "1,200 bytes",
    ] = ("unix:kvd.sock",)
    ram: Annotated[SomeMebibytes, "memory for blocks, with 256 bytes for each beside its own"] = 1024 * MIB
    held: Annotated[
        Bytes | None,
        Doc("the part of it that blocks put with a time to live may fill", default="half of `ram`"),
    ] = None
    disk: Annotated[DiskSettings | None, "blocks that memory has no room for"] = None
    tls: Annotated[TlsFiles | None, "files in PEM; QUIC wants them"] = None
    peers: Annotated[tuple[str, ...], Doc("where blocks may be fetched from", default="any quic:// address")] = ()
    limits: Annotated[Limits, "below"] = Limits()

    @property
    def held_bytes(self) -> int:
        return self.ram // 2 if self.held is None else self.held

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Settings:
        """Read a YAML file or a mapping; relative paths resolve against the file's folder."""
        if isinstance(source, Mapping):
            return read_settings(dict(source), Path())
        path = Path(source).expanduser()
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise HeadwayError(f"{path}: a daemon's file is a mapping with 'listen' and 'ram'.")
        return read_settings(data, path.parent)


def read_settings(data: dict[str, Any], folder: Path) -> Settings:
    settings = read(Settings, data, "")
    if settings.held_bytes > settings.ram:
        ram = shown(data.get("ram", "1GiB"))
        raise HeadwayError(f"held: is a part of 'ram', which is {ram}, got {shown(data['held'])}.")
    _check_limits(settings.limits, data.get("limits") or {})
    disk = None if settings.disk is None else replace(settings.disk, folder=folder / settings.disk.folder)
    return replace(settings, disk=disk, tls=None if settings.tls is None else settings.tls.beside(folder))


def _check_limits(limits: Limits, data: dict[str, Any]) -> None:
    if limits.frame > 2**32 - 1:
        raise HeadwayError(f"limits.frame: must be below 4GiB, got {shown(data['frame'])}.")
    if limits.in_flight < SHARES * (limits.frame + 4 * MIB):
        raise HeadwayError(
            f"limits.in_flight: must be at least {SHARES} times 'frame' and 16MiB more, so that one peer cannot hold "
            f"up the others, got {shown(data.get('in_flight', '512MiB'))}."
        )
