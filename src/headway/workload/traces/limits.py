"""The maximum values in a trace, and checks that all readers use."""

from fractions import Fraction
from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND

PS_PER_DAY: Final = 86400 * PS_PER_SECOND
LAST_PS: Final = 100 * PS_PER_DAY  # 64-bit times reach 106 days; the last 6 days are reserved for the end of the run
MAX_LENGTH: Final = 2**31 - 1
MAX_BLOCK: Final = 65536  # maximum number of tokens of a block
MAX_DIGITS: Final = 18  # maximum number of digits of a whole number in a file, so that it fits into 64 bits


def too_late(at_ps: int) -> str:
    """Return a phrase for the end of an error message: how late an arrival is, and what the limit is."""
    days = at_ps // PS_PER_DAY
    return f"after {days if days < 10**9 else 'over 1000000000'} days; the limit is {LAST_PS // PS_PER_DAY} days"


def check_range(value: int, low: int, high: int, name: str, place: str) -> None:
    if not low <= value <= high:
        raise HeadwayError(f"{place}: {name} must lie between {low} and {high}, got {shown(value)}.")


def check_length(value: int, name: str, place: str, least: int = 1) -> None:
    check_range(value, least, MAX_LENGTH, name, place)


def check_order(at_ps: int, last_ps: int, name: str, stamp: object, place: str) -> None:
    """Raise if a request arrives before the previous request or after the limit. `stamp` is its time in the file."""
    if at_ps < last_ps:
        raise HeadwayError(
            f"{place}: {name} {stamp} is earlier than that of a previous request. Sort the file by time."
        )
    if at_ps > LAST_PS:
        raise HeadwayError(f"{place}: {name} {stamp} is too late: {too_late(at_ps)}.")


def read_time(value: float, unit: str, unit_ps: int, name: str, place: str) -> int:
    """Convert a time from its unit to picoseconds. Raise unless it is between 0 and 100 days."""
    if not 0 <= value * unit_ps <= LAST_PS:
        raise HeadwayError(f"{place}: {name} must be a time in {unit} between 0 and 100 days, got {shown(value)}.")
    return exact(value, unit_ps)


def exact(value: float, unit: int) -> int:
    """Return `value` times `unit`, rounded. Compute with the decimal number that the file contains, such as 0.1, not
    with the binary float nearest to it."""
    if isinstance(value, int):
        return value * unit
    # Fast path for a number with at most six decimals: rounding to millionths restores the decimal number exactly.
    millionths = round(value * 1_000_000)
    if unit % 1_000_000 == 0 and millionths / 1_000_000 == value:
        return millionths * (unit // 1_000_000)
    return round(Fraction(repr(value)) * unit)


def whole_number(text: str) -> int | None:
    """Return a string of digits as a number. For any other string, return None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
