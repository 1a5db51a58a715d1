"""Cells of a user's own table: names, numbers and times in the forms that real files have.

A cell that has two possible meanings, such as 12.000 tokens, is rejected: Headway does not guess between 12 and 12000.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from headway.config.wording import cut, shown
from headway.types import PS_PER_SECOND
from headway.workload.traces.limits import MAX_LENGTH
from headway.workload.traces.objects import stamp_ps

EXCEL: Final = "excel"  # the unit of Excel's dates: days since 30 December 1899
EXCEL_1970: Final = 25_569  # Excel's number for 1 January 1970
EXCEL_2100: Final = 73_051
DAY_PS: Final = 86_400 * PS_PER_SECOND
PS_2100: Final = (EXCEL_2100 - EXCEL_1970) * DAY_PS
UNITS: Final = {"s": PS_PER_SECOND, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1, EXCEL: DAY_PS}
# (smallest number that is read as a date, unit of that date)
EPOCHS: Final = ((10**17, "ns"), (10**14, "us"), (10**11, "ms"), (10**8, "s"))
DATED_PS: Final = 10**8 * PS_PER_SECOND  # times from this value on count from 1970
EMPTY: Final = ("", "null", "none", "nan", "na", "n/a", "-")
LONGEST_EMPTY: Final = max(map(len, EMPTY))
MOST: Final = Decimal(10) ** 30  # no valid value is larger; the digits of a larger number could fill the memory
DIGITS: Final = 18  # maximum number of digits that `int` converts directly
SEPARATOR: Final = r"[.,' \u00a0\u202f]"
# A number with groups of thousands, such as 1,234,567 or 1.234,5. Its decimal places follow another separator.
THOUSANDS: Final = re.compile(
    rf"([+-]?\d{{1,3}}(?P<mark>{SEPARATOR})\d{{3}}(?:(?P=mark)\d{{3}})*)(?:(?!(?P=mark))[.,](\d+))?"
)
ONE_GROUP: Final = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}")
STAMP: Final = re.compile(
    r"(?:(\d{4})[-/.](\d\d?)[-/.](\d\d?)|(\d\d?)\.(\d\d?)\.(\d{4}))"  # year first, or day.month.year
    r"(?:[T ]\s*(\d\d?):(\d\d)(?::(\d\d)(?:[.,](\d{1,12}))?)?)?"
    r"\s*(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.ASCII | re.IGNORECASE,
)


class BadRow(Exception):
    """Raised if a row is invalid. The message says why."""


def cell_text(value: Any) -> str | None:
    """Return a cell as a string, or None if it is empty."""
    if value is None:
        return None
    text = value.strip() if isinstance(value, str) else str(value)
    return None if is_empty(text) else text


def is_empty(text: str) -> bool:
    return len(text) <= LONGEST_EMPTY and text.lower() in EMPTY


def read_number(text: str) -> Decimal | None:
    """Parse a number. Return None if the text is not a number. A single comma or dot separates the decimal places."""
    if "," in text or "'" in text or " " in text or text.count(".") > 1 or not text.isascii():
        text = _without_groups(text)
    try:
        number = Decimal(text)
    except InvalidOperation:
        return None
    return number if number.is_finite() and -MOST < number < MOST else None


def _without_groups(text: str) -> str:
    """Remove the separators of thousands, and write a decimal comma as a dot."""
    match = THOUSANDS.fullmatch(text)
    if match is not None and (match[3] is not None or text.count(match["mark"]) > 1 or match["mark"] not in ".,"):
        whole = match[1].replace(match["mark"], "")
        return whole if match[3] is None else f"{whole}.{match[3]}"
    return text.replace(",", ".") if text.count(",") == 1 and "." not in text else text


def read_tokens(value: Any, least: int) -> int:
    """Return a cell as a number of tokens. If it is not such a number, raise `BadRow`. The caller puts the name of the
    column before the message."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= DIGITS:
        number: Decimal | int | None = int(value)
    elif isinstance(value, bool) or (text := cell_text(value)) is None:
        number = None
    elif ONE_GROUP.fullmatch(text):
        whole, decimals = re.split("[.,]", text)
        meanings = f"{whole} or {whole}{decimals}" if decimals == "000" else f"{whole}{decimals}"
        raise BadRow(f"{shown(text)} may mean {meanings}; write it without a separator")
    else:
        number = read_number(text)
    if number is None or not least <= number <= MAX_LENGTH or number != int(number):
        if cell_text(value) is None:
            raise BadRow("is empty")
        raise BadRow(f"{shown(value)} is not a whole number from {least} to {MAX_LENGTH:,}")
    return int(number)


def read_time(value: Any, unit: str | None, decimal_comma: bool) -> int:
    """Return a cell as a time in picoseconds; a date counts from 1970. If the cell is not a time, raise `BadRow`. The
    caller puts the name of the column before the message.

    Without a unit, a number of at least 10**8 is a time since 1970 in the unit that fits, and a smaller number is in
    seconds. If `decimal_comma` is set, a comma in a number always separates decimal places, never thousands.
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= DIGITS:
        return _scaled(int(value), unit)
    if isinstance(value, datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        at = aware.astimezone(UTC)
        return stamp_ps(f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond:06d}") or 0
    if isinstance(value, date):
        return stamp_ps(f"{value:%Y-%m-%d} 00:00:00") or 0
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1) * 10**6
    text = cell_text(value)
    if text is None:
        raise BadRow("is empty")
    if ":" in text and (stamp := stamp_ps(text.replace(",", "."))) is not None:
        return stamp  # the usual form, tried first because it is fast
    if not decimal_comma and "," in text and ONE_GROUP.fullmatch(text):
        raise BadRow(f"{shown(text)} may mean {text.replace(',', '.')} or {text.replace(',', '')}; write one of these")
    number = None if isinstance(value, bool) else read_number(text)
    if number is not None:
        return _scaled(number, unit)
    if (stamp := _read_stamp(text)) is None:
        forms = "neither a number nor a date and time such as 2026-01-31T12:00:00Z"
        raise BadRow(f"{shown(cut(text, 40))} is {forms}")
    return stamp


def epoch_unit(number: Decimal | int) -> str:
    """Return the unit of a time whose unit is unknown."""
    return next((unit for least, unit in EPOCHS if number >= least), "s")


def _scaled(number: Decimal | int, unit: str | None) -> int:
    unit = unit or epoch_unit(number)
    if unit == EXCEL:
        number -= EXCEL_1970
        return round(number * UNITS[unit] / 10**9) * 10**9  # whole milliseconds, as in Excel
    return int(number * UNITS[unit])


def _read_stamp(text: str) -> int | None:
    match = STAMP.fullmatch(text)
    if match is None:
        return None
    year, month, day, german_day, german_month, german_year, hour, minute, second, digits, zone = match.groups()
    if year is None:
        year, month, day = german_year, german_month, german_day
    zone = "Z" if zone is None or zone.upper() in ("Z", "UTC", "GMT") else zone
    zone += "00" if len(zone) == 3 else ""
    clock = f"{int(hour or 0):02d}:{minute or '00'}:{second or '00'}.{digits or '0'}"
    return stamp_ps(f"{year}-{int(month):02d}-{int(day):02d}T{clock}{zone}")
