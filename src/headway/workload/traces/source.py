"""Read a trace file as numbered lines. Decompress gzip and zstd, which are detected by content. Errors name the
line."""

import gzip
import io
import pathlib
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Final, cast

from headway.errors import HeadwayError

Numbered = tuple[int, bytes]  # a line with its number
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
BOM: Final = b"\xef\xbb\xbf"
HEAD: Final = 65536  # number of decompressed bytes from which a format is detected
MAX_LINE: Final = 1 << 26  # maximum length of a line in bytes; a longer line is not a request and could fill the memory


def check_ordinary(path: pathlib.Path) -> None:
    """Raise if the path is a pipe or a device, because reading it could block forever. If the file is missing, do not
    raise, because opening it fails later."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise HeadwayError(f"{path}: is a pipe or a device. Write its content to a file and name that.")


def lines(path: pathlib.Path) -> Iterator[Numbered]:
    """Yield each line that is not blank, with its number. Lines are stripped, and numbers count from 1."""
    number = 0
    with open_unpacked(path, lambda: f"{path.name} line {number + 1}") as source:
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


def head(path: pathlib.Path) -> list[bytes]:
    """Return the first non-blank lines of a file, stripped. The last of them may be incomplete. For a folder, return an
    empty list."""
    if path.is_dir():
        return []
    with open_unpacked(path) as source:
        start = source.read(HEAD)
    stripped = (line.strip() for line in start.removeprefix(BOM).split(b"\n"))
    return [line for line in stripped if line]


@contextmanager
def open_unpacked(path: pathlib.Path, place: Callable[[], str] | None = None) -> Iterator[IO[bytes]]:
    """Open a file for reading, and decompress it. A read error raises a HeadwayError that begins with `place()`."""
    check_ordinary(path)
    where = place or (lambda: f"{path.name} line 1")
    try:
        with path.open("rb") as raw, _unpack(raw, path) as source:
            yield source
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeadwayError(f"{where()}: the gzip data is damaged or cut short ({error}).") from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None


def _unpack(raw: IO[bytes], path: pathlib.Path) -> IO[bytes]:
    start = raw.read(len(ZSTD))
    raw.seek(0)
    if start.startswith(GZIP):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    return _unpack_zstd(raw, path) if start == ZSTD else raw


def _unpack_zstd(raw: IO[bytes], path: pathlib.Path) -> IO[bytes]:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        wrong = "zstd needs the package zstandard. Run: pip install 'headway[data]'; or use .gz"
        raise HeadwayError(f"{path.name}: {wrong}.") from None
    return cast(IO[bytes], io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)))


def reason(error: OSError | ValueError) -> str:
    """Return the reason why a file could not be opened or read, without the path of the file."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_text(line: bytes, path: pathlib.Path) -> None:
    try:
        text = "\0" not in line.decode()
    except UnicodeDecodeError:
        text = False
    if not text:
        raise HeadwayError(f"{path.name} line 1: is not text. A trace is JSONL or CSV, plain or in gzip.")
