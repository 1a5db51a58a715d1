"""Columns of cells of a user's own table. A column in a usual form is read as a whole; any other column is read cell by
cell.

Each function gives the same results as the matching function of `cells`, called for every cell. If that function would
raise `BadRow` for a cell, the function here raises it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

from headway.config.wording import shown
from headway.types import PS_PER_SECOND
from headway.workload.traces.cells import (
    DIGITS,
    EXCEL,
    LONGEST_EMPTY,
    UNITS,
    BadRow,
    cell_text,
    epoch_unit,
    is_empty,
    read_time,
    read_tokens,
)
from headway.workload.traces.limits import MAX_LENGTH
from headway.workload.traces.objects import EPOCH

Cells = Sequence[Any]
SECONDS: Final = len("2026-01-31T12:00:00")
ZEROS: Final = str.maketrans("123456789", "0" * 9)
STAMP: Final = re.compile(r"0000-00-00[T ]00:00:00(\.0{1,12})?Z?")  # a usual date and time, with 0 for every digit


def read_texts(cells: Cells) -> Sequence[str | None]:
    """Return a column of texts. Empty cells are None."""
    texts = _stripped(cells) if set(map(type, cells)) == {str} else list(map(cell_text, cells))
    if not "".join(filter(None, texts)).isprintable():
        text = next(text for text in texts if text and not text.isprintable())
        raise BadRow(f"has control characters: {shown(text)}")
    return texts


def _stripped(cells: Sequence[str]) -> Sequence[str | None]:
    texts = list(map(str.strip, cells))
    if min(map(len, texts)) > LONGEST_EMPTY:
        return texts
    empty = {text for text in set(texts) if is_empty(text)}
    return [None if text in empty else text for text in texts]


def read_token_counts(cells: Cells, least: int) -> Sequence[int]:
    numbers = _whole_numbers(cells)
    if numbers and least <= min(numbers) and max(numbers) <= MAX_LENGTH:
        return numbers
    return [read_tokens(cell, least) for cell in cells]


def read_times(cells: Cells, unit: str | None, decimal_comma: bool) -> Sequence[int]:
    """Return a column of times in picoseconds; see `read_time`."""
    numbers = _whole_numbers(cells)
    if numbers:
        used = unit or epoch_unit(min(numbers))
        if used != EXCEL and (unit or used == epoch_unit(max(numbers))):
            scale = UNITS[used]
            return [number * scale for number in numbers]
    return _stamps(cells) or [read_time(cell, unit, decimal_comma) for cell in cells]


def read_present(cells: Cells, read: Callable[[Cells], Sequence[int]]) -> Sequence[int | None]:
    """Read the cells of a column that are not empty. Empty cells are None."""
    present = [cell_text(cell) is not None for cell in cells]
    values = read([cell for cell, there in zip(cells, present, strict=True) if there])
    if len(values) == len(cells):
        return values
    rest = iter(values)
    return [next(rest) if there else None for there in present]


def _whole_numbers(cells: Cells) -> Sequence[int] | None:
    """Return a column of plain whole numbers. If a cell has another form, return None."""
    kinds = set(map(type, cells))
    if kinds == {int}:
        return cells if max(map(abs, cells)) < 10**DIGITS else None
    if kinds != {str}:
        return None
    text = "".join(cells)
    if not (text.isascii() and text.isdigit() and all(cells) and max(map(len, cells)) <= DIGITS):
        return None
    return list(map(int, cells))


def _stamps(cells: Cells) -> list[int] | None:
    """Return a column of dates and times in UTC. If a cell has another form, return None."""
    if set(map(type, cells)) != {str}:
        return None
    shapes = set("\n".join(cells).translate(ZEROS).split("\n"))
    if not all(map(STAMP.fullmatch, shapes)):
        return None
    try:
        spans = [datetime.fromisoformat(cell[:SECONDS]) - EPOCH for cell in cells]
    except ValueError:
        return None
    times = [(span.days * 86_400 + span.seconds) * PS_PER_SECOND for span in spans]
    if not any("." in shape for shape in shapes):
        return times
    digits = [cell[SECONDS + 1 :].rstrip("Z").ljust(12, "0") for cell in cells]
    return [time + int(fraction) for time, fraction in zip(times, digits, strict=True)]
