"""Quantities as people write them: "250ms", "12/s", "50GB/s", "80GB". Time becomes whole picoseconds."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND

TIME: Final = {
    "ps": Fraction(1),
    "ns": Fraction(10**3),
    "us": Fraction(10**6),
    "µs": Fraction(10**6),
    "ms": Fraction(10**9),
    "s": Fraction(PS_PER_SECOND),
    "m": Fraction(60 * PS_PER_SECOND),
    "min": Fraction(60 * PS_PER_SECOND),
    "h": Fraction(3600 * PS_PER_SECOND),
    "d": Fraction(86400 * PS_PER_SECOND),
}
DECIMAL: Final = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
SIZE: Final = {**DECIMAL, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
PER: Final = {"s": Fraction(1), "min": Fraction(60), "m": Fraction(60), "h": Fraction(3600)}

LONGEST: Final = 40  # characters of a number
STEEPEST: Final = 30  # powers of ten: beyond them a figure is a slip, and exact arithmetic would never end
LONGEST_PS: Final = 100 * 86400 * PS_PER_SECOND  # the clock counts picoseconds in 64 bits, which last for 106 days
SLOWEST: Final = Fraction(1, 3_600_000)
FASTEST: Final = Fraction(10**12)
LARGEST: Final = 10**18  # bytes

_NUMBER = r"([0-9][0-9_]*\.?[0-9_]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"


def _parse(text: object, pattern: str) -> tuple[Fraction, str] | None:
    match = re.fullmatch(_NUMBER + r"\s*" + pattern, written(text))
    number = exact(match[1].replace("_", "")) if match else None
    return (number, match[2]) if match and number is not None else None


def written(value: object) -> str:
    """A quantity as text; nothing of one that no person would write."""
    try:
        return str(value).strip()
    except ValueError:  # an integer of more digits than Python writes
        return ""


def _quoted(value: object) -> str:
    text = repr(value) if not isinstance(value, int) or written(value) else "a number of thousands of digits"
    return text if len(text) <= 100 else f"{text[:100]}..."


def exact(text: str) -> Fraction | None:
    """A number of ordinary length and size exactly as it is written, else None."""
    mantissa, _, exponent = text.lower().partition("e")
    if len(mantissa) > LONGEST or len(exponent) > LONGEST:
        return None
    try:
        return Fraction(text) if abs(int(exponent or 0)) <= STEEPEST else None
    except (ValueError, ZeroDivisionError):
        return None


def duration_ps(value: object, where: str) -> int:
    """A duration with its unit, in whole picoseconds."""
    return round(fine_duration(value, where))


def positive_duration_ps(value: object, where: str) -> int:
    """A duration with its unit that is longer than nothing, in whole picoseconds."""
    found = duration_ps(value, where)
    if found <= 0:
        raise HeadwayError(f"{where}: must be longer than nothing, got {shown(value)}.")
    return found


def positive_seconds(value: object, where: str) -> float:
    """The same in seconds."""
    return positive_duration_ps(value, where) / PS_PER_SECOND


def fine_duration(value: object, where: str) -> Fraction:
    """A duration with its unit, in picoseconds and parts of one."""
    parsed = _parse(value, r"(ps|ns|us|µs|ms|s|min|m|h|d)")
    if parsed is None:
        raise HeadwayError(
            f"{where}: {_quoted(value)} is not a duration; write it with its unit, as in 250ms, 1.5s or 5m."
        )
    found = parsed[0] * TIME[parsed[1]]
    if found > LONGEST_PS:
        raise HeadwayError(
            f"{where}: must be at most 100d, since the simulated clock ends soon after, got {_quoted(value)}."
        )
    return found


def duration_text(ps: int | None) -> str | None:
    """A duration in the largest unit that writes it as a whole number."""
    if ps is None:
        return None
    for unit, size in (("s", PS_PER_SECOND), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if ps % size == 0:
            return f"{ps // size}{unit}"
    return f"{ps}ps"


def rate(value: object, where: str) -> Fraction:
    """Events a second, from "40/s", "90/min" or "1200/h"."""
    parsed = _parse(value, r"/\s*(s|min|m|h)")
    if parsed is None or parsed[0] <= 0:
        raise HeadwayError(
            f"{where}: {_quoted(value)} is not a rate; write it above zero with its unit, as in 40/s or 90/min."
        )
    found = parsed[0] / PER[parsed[1]]
    if not SLOWEST <= found <= FASTEST:
        raise HeadwayError(f"{where}: must lie between 0.001/h and 1e12/s, got {_quoted(value)}.")
    return found


def size_bytes(value: object, where: str, least: int = 0) -> int:
    parsed = _parse(value, r"([kKMGT]?i?B)")
    if parsed is None or parsed[1] not in SIZE:
        raise HeadwayError(f"{where}: {_quoted(value)} is not a size; write it with its unit, as in 80GB or 16GiB.")
    found = round(parsed[0] * SIZE[parsed[1]])
    if found > LARGEST:
        raise HeadwayError(f"{where}: must be at most 1000000TB, got {_quoted(value)}.")
    if found < least:
        raise HeadwayError(f"{where}: must be at least {least:,} bytes, got {shown(value)}.")
    return found


def bandwidth(value: object, where: str) -> int:
    """Bytes a second, from "50GB/s"."""
    text = written(value)
    if not text.endswith("/s"):
        raise HeadwayError(f"{where}: {_quoted(value)} is not a bandwidth; write it with its unit, as in 50GB/s.")
    return size_bytes(text[:-2], where)
