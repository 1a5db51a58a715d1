"""The daemon's file: where it listens, how much it keeps, and its limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.documents import read_yaml
from headway.config.section import read
from headway.config.units import duration_ps, size_bytes
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.kvd.channel import TlsFiles

MIB: Final = 2**20
SHARES: Final = 4  # one peer has at most this part of the bytes in flight


class _Keys(Struct):
    listen: Any = "unix:kvd.sock"
    ram: Any = "1GiB"
    held: Any = None
    disk: Any = None
    tls: Any = None
    peers: list[str] = []
    limits: Any = None


class _DiskKeys(Struct):
    folder: str
    limit: Any
    unwritten: Any = "256MiB"


class _TlsKeys(Struct):
    ca: str
    certificate: str
    key: str


class _LimitKeys(Struct):
    frame: Any = "64MiB"
    in_flight: Any = "512MiB"
    connections: Annotated[int, Meta(ge=1, le=10_000)] = 256
    fetches: Annotated[int, Meta(ge=1, le=1000)] = 4
    stall: Any = "10s"
    idle: Any = "300s"
    drain: Any = "30s"


class Limits(Struct, frozen=True):
    frame: int = 64 * MIB  # bytes of blocks in one frame
    in_flight: int = 512 * MIB  # of all requests and answers under way
    connections: int = 256
    fetches: int = 4
    stall_s: float = 10.0
    idle_s: float = 300.0
    drain_s: float = 30.0


class DiskSettings(Struct, frozen=True):
    folder: Path
    limit: int
    unwritten: int = 256 * MIB


class Settings(Struct, frozen=True):
    listen: tuple[str, ...]
    ram: int
    held: int
    disk: DiskSettings | None = None
    tls: TlsFiles | None = None
    peers: tuple[str, ...] = ()  # where blocks may be fetched from; anywhere if empty
    limits: Limits = Limits()

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any]) -> Settings:
        """From a YAML file or a mapping; files that it names lie beside it."""
        if isinstance(source, Mapping):
            return read_settings(dict(source), Path())
        path = Path(source).expanduser()
        data = read_yaml(path)
        if not isinstance(data, dict):
            raise HeadwayError(f"{path}: a daemon's file is a mapping with 'listen' and 'ram'.")
        return read_settings(data, path.parent)


def read_settings(data: dict[str, Any], folder: Path) -> Settings:
    keys = read(_Keys, data, "")
    ram = _size(keys.ram, "ram", MIB)
    limits = _limits(keys.limits or {})
    held = ram // 2 if keys.held is None else _size(keys.held, "held", 0)
    if held > ram:
        raise HeadwayError(f"held: is a part of 'ram', which is {shown(keys.ram)}, got {shown(keys.held)}.")
    return Settings(
        _listen(keys.listen),
        ram,
        held,
        None if keys.disk is None else _disk(keys.disk, folder, limits),
        None if keys.tls is None else read_tls(keys.tls, folder),
        tuple(keys.peers),
        limits,
    )


def read_tls(data: Any, folder: Path, where: str = "tls") -> TlsFiles:
    keys = read(_TlsKeys, data, where)
    return TlsFiles(*(folder / Path(getattr(keys, name)).expanduser() for name in ("ca", "certificate", "key")))


def _listen(given: Any) -> tuple[str, ...]:
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(one, str) for one in found):
        raise HeadwayError(f"listen: expected an address such as unix:/run/kvd.sock or a list, got {shown(given)}.")
    return tuple(found)


def _disk(data: Any, folder: Path, limits: Limits) -> DiskSettings:
    keys = read(_DiskKeys, data, "disk")
    unwritten = _size(keys.unwritten, "disk.unwritten", MIB)
    return DiskSettings(folder / Path(keys.folder).expanduser(), _size(keys.limit, "disk.limit", MIB), unwritten)


def _limits(data: Any) -> Limits:
    keys = read(_LimitKeys, data, "limits")
    frame = _size(keys.frame, "limits.frame", 65_536)
    in_flight = _size(keys.in_flight, "limits.in_flight", 65_536)
    if frame > 2**32 - 1:
        raise HeadwayError(f"limits.frame: must be below 4GiB, got {shown(keys.frame)}.")
    if in_flight < SHARES * (frame + 4 * MIB):
        raise HeadwayError(
            f"limits.in_flight: must be at least {SHARES} times 'frame' and 16MiB more, so that one peer cannot hold "
            f"up the others, got {shown(keys.in_flight)}."
        )
    seconds = (_seconds(getattr(keys, name), f"limits.{name}") for name in ("stall", "idle", "drain"))
    return Limits(frame, in_flight, keys.connections, keys.fetches, *seconds)


def _size(value: Any, where: str, least: int) -> int:
    found = size_bytes(value, where)
    if found < least:
        raise HeadwayError(f"{where}: must be at least {least:,} bytes, got {shown(value)}.")
    return found


def _seconds(value: Any, where: str) -> float:
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found / 1e12
