"""A CSV file of measured steps: its rows, and the figures in them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from headway.config.wording import listed, shown
from headway.errors import HeadwayError

Row = tuple[str, dict[str, Any]]


def read_rows(path: str | Path, needed: Sequence[str]) -> list[Row]:
    """Rows with their places; where there is a `mode`, only those that say "graph"."""
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            columns = reader.fieldnames or ()
            rows = [(f"{path}, line {reader.line_num}", row) for row in reader]
    except OSError as error:
        raise HeadwayError(f"{path}: cannot be read: {error.strerror}.") from None
    except (UnicodeDecodeError, csv.Error):
        raise HeadwayError(f"{path}: is no CSV file in UTF-8.") from None
    missing = [repr(name) for name in needed if name not in columns]
    if missing:
        raise HeadwayError(
            f"{path}: the column{'s' if len(missing) > 1 else ''} {listed(missing)} "
            f"{'are' if len(missing) > 1 else 'is'} missing; a file of steps has {', '.join(needed)}."
        )
    return [(place, row) for place, row in rows if row.get("mode") in (None, "", "graph")]


def whole(text: str | None, where: str) -> int:
    value = number(text or "0", where, least=0.0)
    if value != int(value):
        raise HeadwayError(f"{where}: must be a whole number, got {shown(text)}.")
    return int(value)


def number(text: str | None, where: str, least: float | None = None) -> float:
    """Above zero, or not below `least`."""
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if not isfinite(value) or (value <= 0 if least is None else value < least):
        wanted = "a number above zero" if least is None else "a number, zero or more"
        raise HeadwayError(f"{where}: must be {wanted}, got {shown(text)}.")
    return value
