"""The JSON objects of a file: one a line, or the single one that a file of several lines is."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from headway.errors import HeadwayError
from headway.workload.traces.source import lines

T = TypeVar("T")
LARGEST: Final = 256 << 20  # bytes of one document, which has to be held in memory
WRONG: Final = (msgspec.MsgspecError, RecursionError, ValueError, OverflowError)


def objects(path: pathlib.Path) -> Iterator[tuple[str, bytes]]:
    """Each object as text, with its place for error messages."""
    source = lines(path)
    number, line = next(source, (0, b""))
    if not number:
        raise HeadwayError(f"{path.name}: the file is empty.")
    if _complete(line) or line.endswith(b"}"):
        yield f"{path.name} line {number}", line
        for number, line in source:
            yield f"{path.name} line {number}", line
    else:
        yield path.name, _document(path, number, line, source)


def decoded(decode: Callable[[bytes], T], text: bytes, place: str, form: str) -> T:
    """What `decode` makes of the text; where it cannot, an error that says what the form should be."""
    try:
        return decode(text)
    except WRONG as error:
        raise HeadwayError(f"{place}: {_told(error)}; {form}.") from None


def _told(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _complete(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except WRONG:
        return False
    return True


def _document(path: pathlib.Path, number: int, line: bytes, rest: Iterator[tuple[int, bytes]]) -> bytes:
    """All lines as one text, found to be JSON as a whole: after that, mistakes have a path in it and no line."""
    kept, numbers, size = [line], [number], len(line)
    for number, line in rest:
        size += len(line) + 1
        if size > LARGEST:
            raise HeadwayError(
                f"{path.name} line {number}: one JSON document of more than {LARGEST >> 20} MiB; "
                "write one object a line instead, which is read line by line."
            )
        kept.append(line)
        numbers.append(number)
    text = b"\n".join(kept)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except WRONG as error:
        byte = re.search(r"byte (\d+)", str(error))
        at = numbers[text.count(b"\n", 0, int(byte[1]))] if byte else numbers[-1]
        raise HeadwayError(f"{path.name} line {at}: {_told(error)}; a file is one JSON object or one a line.") from None
    return text
