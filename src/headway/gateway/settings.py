"""Values in a gateway's file: addresses, files, folders, names and timeouts."""

from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.keys import Form, PositiveSeconds, Seconds, Unit
from headway.config.wording import shown
from headway.errors import HeadwayError


def check_name(name: Any, where: str, longest: int = 100, ascii_only: bool = False) -> None:
    """Raise unless the name is a string that logs, metrics and headers can show on one line."""
    good = isinstance(name, str) and 0 < len(name) <= longest and name.isprintable()
    if not good or (ascii_only and not name.isascii()):
        kind = "printable ASCII" if ascii_only else "printable"
        raise HeadwayError(f"{where}: expected a name of 1 to {longest} {kind} characters, got {shown(name)}.")


def address(text: str, where: str) -> tuple[str, int]:
    """Return host and port of a string such as 127.0.0.1:8000."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise HeadwayError(f"{where}: expected an address such as 127.0.0.1:8000, got {shown(text)}.")
    return host.strip("[]"), int(port)


def read_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise HeadwayError(f"{where}: expected text, got {shown(value)}.")
    return value


def _read_address(value: Any, where: str) -> tuple[str, int]:
    return address(str(value) if isinstance(value, int) else read_text(value, where), where)


def _read_file(value: Any, where: str) -> Path:
    return Path(read_text(value, where)).expanduser()


ADDRESS: Final = Form.of({"type": "string", "pattern": ":[0-9]+$", "examples": ["127.0.0.1:8000"]})
PATH: Final = Form.of(str)
Listen = Annotated[
    tuple[str, int], Unit("address", _read_address, lambda place: f"{place[0]}:{place[1]}", form=ADDRESS)
]
File = Annotated[Path, Unit("file", _read_file, str, form=PATH)]
Folder = Annotated[Path, Unit("folder", _read_file, str, form=PATH)]


class Timeouts(Struct, frozen=True):
    """The section `timeouts:` of a gateway's file."""

    connect_s: Annotated[PositiveSeconds, "time to connect to an engine"] = 3.0
    first_byte_s: Annotated[PositiveSeconds, "longest time until the first byte of an answer's body"] = 600.0
    first_byte_floor_s: Annotated[
        PositiveSeconds,
        "shortest limit for the first byte, if the engine sends nothing at all; the limit follows the engine's recent "
        "times and lies between `first_byte_floor` and `first_byte`",
    ] = 20.0
    silence_s: Annotated[PositiveSeconds, "longest pause within an answer"] = 120.0
    stall_s: Annotated[
        PositiveSeconds,
        "shortest limit for a pause within an answer, if the engine sends nothing at all; the limit follows the "
        "engine's recent pauses and lies between `stall` and `silence`",
    ] = 10.0
    slack: Annotated[
        float, Meta(ge=1, le=1000), "multiple of the engine's recent times at which the gateway gives up on it"
    ] = 5.0


class ShutdownSettings(Struct, frozen=True):
    """The section `shutdown:` of a gateway's file."""

    lame_duck_s: Annotated[Seconds, "time after SIGTERM for which the gateway still accepts connections"] = 5.0
    limit_s: Annotated[Seconds, "time that requests in flight then have to end"] = 30.0
