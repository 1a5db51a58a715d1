"""Reads a trace file as numbered lines, and decompresses gzip by content; errors name the line."""

import gzip
import pathlib
import stat
import zlib
from collections.abc import Iterator
from typing import IO, Final, cast

from headway.errors import HeadwayError

Numbered = tuple[int, bytes]  # a line with its number
GZIP: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"
HEAD: Final = 65536  # decompressed bytes by which a format is detected
MAX_LINE: Final = 1 << 26  # bytes; a longer line is not a request and could fill the memory


def check_ordinary(path: pathlib.Path) -> None:
    """Raise for a pipe or a device, which could block forever; a missing file fails later, when it is opened."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise HeadwayError(f"{path}: is a pipe or a device. Write its content to a file and name that.")


def lines(path: pathlib.Path) -> Iterator[Numbered]:
    """Yield the lines that are not blank, stripped, with their numbers from 1."""
    check_ordinary(path)
    number = 0
    try:
        with path.open("rb") as raw:
            source = _unpack(raw)
            while line := source.readline(MAX_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(BOM)
                    check_text(line, path)
                if len(line) == MAX_LINE:
                    raise HeadwayError(f"{path.name} line {number}: is longer than {MAX_LINE >> 20} MiB.")
                line = line.strip()
                if line:
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeadwayError(f"{path.name} line {number + 1}: the gzip data is damaged or cut short ({error}).") from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None


def head(path: pathlib.Path) -> list[bytes]:
    """Return the first lines that are not blank, stripped; the last may be incomplete. A folder has none."""
    if path.is_dir():
        return []
    check_ordinary(path)
    try:
        with path.open("rb") as raw:
            start = _unpack(raw).read(HEAD)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeadwayError(f"{path.name} line 1: the gzip data is damaged or cut short ({error}).") from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None
    stripped = (line.strip() for line in start.removeprefix(BOM).split(b"\n"))
    return [line for line in stripped if line]


def _unpack(raw: IO[bytes]) -> IO[bytes]:
    packed = raw.read(2) == GZIP
    raw.seek(0)
    return cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw


def reason(error: OSError | ValueError) -> str:
    """Return why a file could not be opened or read, without its path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_text(line: bytes, path: pathlib.Path) -> None:
    try:
        text = "\0" not in line.decode()
    except UnicodeDecodeError:
        text = False
    if not text:
        raise HeadwayError(f"{path.name} line 1: is not text. A trace is JSONL or CSV, plain or in gzip.")
