"""Parses quantities with units: "250ms", "12/s", "50GB/s", "80GB". Durations become whole picoseconds."""

import re
from collections.abc import Collection, Mapping
from fractions import Fraction
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND, Json

SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
SHORT: Final = {"ps": 1, "ns": 10**3, "us": 10**6, "µs": 10**6, "ms": 10**9}  # the units below a second, in picoseconds
TIME: Final = SHORT | {unit: seconds * PS_PER_SECOND for unit, seconds in SECONDS.items()}
DECIMAL: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE: Final = {**DECIMAL, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
PER: Final = {unit: Fraction(1, seconds) for unit, seconds in SECONDS.items() if unit != "d"}

LONGEST: Final = 40  # maximum number of characters that a number may have
STEEPEST: Final = 30  # maximum exponent of ten; a larger one is a typing error and would slow down exact arithmetic
# Maximum duration: 100 days, because the clock, a 64-bit count of picoseconds, reaches 106 days.
LONGEST_PS: Final = 100 * 86400 * PS_PER_SECOND
SLOWEST: Final = Fraction(1, 3_600_000)
FASTEST: Final = Fraction(10**12)
LARGEST: Final = 10**18  # maximum size, in bytes

_NUMBER: Final = r"([0-9][0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"


def _parse(value: object, units: Mapping[str, int | Fraction], before: str = "") -> Fraction | None:
    """Parse a number with one of these units, and return the value in the base unit. `before` is a regular expression
    for text between the number and the unit. If the value has another form, return None."""
    match = re.fullmatch(rf"{_NUMBER}\s*{before}({'|'.join(units)})", to_text(value))
    number = exact(match[1].replace("_", "")) if match else None
    return number * units[match[2]] if match and number is not None else None


def quantity_schema(units: Collection[str], *examples: str, before: str = "", after: str = "") -> Json:
    """Return the JSON Schema of a number with one of these units, as `_parse` reads it."""
    pattern = rf"^\s*{_NUMBER}\s*{before}({'|'.join(units)}){after}\s*$"
    return {"type": "string", "pattern": pattern, "examples": list(examples)}


def to_text(value: object) -> str:
    """Return a quantity as a string. If it is an integer that is too long for Python to print, return an empty
    string."""
    try:
        return str(value).strip()
    except ValueError:
        return ""


def exact(text: str) -> Fraction | None:
    """Return the exact value of a number. If it is invalid, too long or too large, return None."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > LONGEST or len(exponent) > LONGEST:
        return None
    try:
        return Fraction(text) if abs(int(exponent or 0)) <= STEEPEST else None
    except (ValueError, ZeroDivisionError):
        return None


def duration_ps(value: object, where: str) -> int:
    """Parse a duration with its unit into whole picoseconds."""
    return round(fine_duration(value, where))


def positive_duration_ps(value: object, where: str) -> int:
    """Parse a duration greater than zero into whole picoseconds."""
    duration = duration_ps(value, where)
    if duration <= 0:
        raise HeadwayError(f"{where}: must be greater than zero, got {shown(value)}.")
    return duration


def positive_seconds(value: object, where: str) -> float:
    """Parse a duration greater than zero into seconds."""
    return positive_duration_ps(value, where) / PS_PER_SECOND


def fine_duration(value: object, where: str) -> Fraction:
    """Parse a duration with its unit into picoseconds. The result may have fractions."""
    duration = _parse(value, TIME)
    if duration is None:
        raise HeadwayError(
            f"{where}: {shown(value)} is not a duration; write it with its unit, as in 250ms, 1.5s or 5m."
        )
    if duration > LONGEST_PS:
        raise HeadwayError(f"{where}: must be at most 100d, got {shown(value)}.")
    return duration


def duration_text(ps: int | None) -> str | None:
    """Return a duration as a whole number of the largest possible unit, such as "250ms"."""
    if ps is None:
        return None
    for unit, size in (("s", PS_PER_SECOND), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if ps % size == 0:
            return f"{ps // size}{unit}"
    return f"{ps}ps"


def rate(value: object, where: str) -> Fraction:
    """Parse a rate such as "40/s", "90/min" or "1200/h" into events per second."""
    per_second = _parse(value, PER, r"/\s*")
    if per_second is None or per_second <= 0:
        raise HeadwayError(
            f"{where}: {shown(value)} is not a rate; write a positive number with its unit, as in 40/s or 90/min."
        )
    if not SLOWEST <= per_second <= FASTEST:
        raise HeadwayError(f"{where}: must lie between 0.001/h and 1e12/s, got {shown(value)}.")
    return per_second


def size_bytes(value: object, where: str, least: int = 0) -> int:
    parsed = _parse(value, SIZE)
    if parsed is None:
        raise HeadwayError(f"{where}: {shown(value)} is not a size; write it with its unit, as in 80GB or 16GiB.")
    size = round(parsed)
    if size > LARGEST:
        raise HeadwayError(f"{where}: must be at most 1000000TB, got {shown(value)}.")
    if size < least:
        raise HeadwayError(f"{where}: must be at least {least:,} bytes, got {shown(value)}.")
    return size


def bandwidth(value: object, where: str) -> int:
    """Parse a bandwidth such as "50GB/s" into bytes per second."""
    text = to_text(value)
    if not text.endswith("/s"):
        raise HeadwayError(f"{where}: {shown(value)} is not a bandwidth; write it with its unit, as in 50GB/s.")
    return size_bytes(text[:-2], where)
