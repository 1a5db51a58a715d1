"""A trace file as numbered lines, unpacked where it is gzip (told by its content), every mishap told at its line."""

from __future__ import annotations

import gzip
import pathlib
import zlib
from collections.abc import Iterator
from typing import IO, Final, cast

from headway.types import HeadwayError

GZIP: Final = b"\x1f\x8b"
BOM: Final = b"\xef\xbb\xbf"


def lines(path: pathlib.Path) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, stripped, with their numbers from 1."""
    number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP
            raw.seek(0)
            source = cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if packed else raw
            for number, line in enumerate(source, 1):
                if number == 1:
                    line = line.removeprefix(BOM)
                    check_text(line, path)
                line = line.strip()
                if line:
                    yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise HeadwayError(f"{path.name} line {number + 1}: the gzip data is damaged or cut short ({error}).") from None
    except (OSError, ValueError) as error:
        raise HeadwayError(f"{path}: the file cannot be read ({reason(error)}).") from None


def reason(error: OSError | ValueError) -> str:
    """Why a file could not be opened or read, without the path, which the sentence names already."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def check_text(line: bytes, path: pathlib.Path) -> None:
    try:
        line.decode()
    except UnicodeDecodeError:
        text = False
    else:
        text = b"\0" not in line
    if not text:
        raise HeadwayError(f"{path.name} line 1: this is not text; a trace is JSONL or CSV, plain or in gzip.")
