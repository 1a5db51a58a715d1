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
from typing import IO, Any, Final, cast

from headway.errors import HeadwayError, missing_extra

Numbered = tuple[int, bytes]  # (number of the line, line)
GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
FOREIGN: Final = {  # first bytes of files that Headway does not unpack
    b"PK\x03\x04": "a zip archive or an Excel file. Unpack it, or save the sheet as CSV",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an Excel file. Save the sheet as CSV",
    b"\xfd7zXZ\x00": "compressed with xz. Use gzip or zstd",
    b"BZh91AY&SY": "compressed with bzip2. Use gzip or zstd",
}
PACKED: Final = 1024  # number of bytes of zstd to decompress at once; 1 KiB can contain 32 MiB
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
        raise HeadwayError(f"{path}: is a pipe or a device. Write its content to a file, and name that file.")


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
        raise HeadwayError(f"{where()}: the compressed data is damaged or cut short ({error}).") from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None


def _unpack(raw: IO[bytes], path: pathlib.Path) -> IO[bytes]:
    start = raw.read(max(map(len, FOREIGN)))
    raw.seek(0)
    for magic, problem in FOREIGN.items():
        if start.startswith(magic):
            raise HeadwayError(f"{path.name}: is {problem}.")
    if start.startswith(GZIP):
        return cast(IO[bytes], gzip.GzipFile(fileobj=raw))
    return _unpack_zstd(raw, path) if start.startswith(ZSTD) else raw


def _unpack_zstd(raw: IO[bytes], path: pathlib.Path) -> IO[bytes]:
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise missing_extra(path.name, "zstandard", "data", "use gzip") from None
    return cast(IO[bytes], io.BufferedReader(_Zstd(raw, zstandard), HEAD))


class _Zstd(io.RawIOBase):
    """Decompresses frames of zstd. Unlike the library's own reader, it notices that the last frame is cut short."""

    def __init__(self, raw: IO[bytes], library: Any) -> None:
        self._raw, self._library = raw, library
        self._frame: Any = None  # the decompressor of the current frame
        self._packed, self._ready = b"", b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            packed = self._packed or self._raw.read(PACKED)
            if not packed:
                if self._frame is not None:
                    raise EOFError("the last frame is incomplete")
                return 0
            if self._frame is None:
                self._frame = self._library.ZstdDecompressor().decompressobj()
            try:
                self._ready = self._frame.decompress(packed)
            except self._library.ZstdError as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data if self._frame.eof else b""
            self._frame = None if self._frame.eof else self._frame
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size


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
