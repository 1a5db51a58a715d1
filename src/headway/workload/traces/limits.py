"""The largest values that a trace may hold, and the checks of them that readers share."""

from typing import Final

from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND

PS_PER_DAY: Final = 86400 * PS_PER_SECOND
LAST_PS: Final = 100 * PS_PER_DAY  # times are 64-bit integers, good for 106 days: the rest is left for the run's end
MAX_LENGTH: Final = 2**31 - 1
MAX_BLOCK: Final = 65536  # tokens of a block
MAX_DIGITS: Final = 18  # of a whole number in a text: any such fits into 64 bits


def too_late(at_ps: int) -> str:
    """How far a time lies beyond the last arrival that leaves the clock room for the run."""
    days = at_ps // PS_PER_DAY
    return f"after {days if days < 10**9 else 'over 1000000000'} days, but arrivals end after {LAST_PS // PS_PER_DAY}"


def check_range(value: int, low: int, high: int, name: str, place: str) -> None:
    if not low <= value <= high:
        raise HeadwayError(f"{place}: {name} must lie between {low} and {high}, got {shown(value)}.")


def check_length(value: int, name: str, place: str, least: int = 1) -> None:
    check_range(value, least, MAX_LENGTH, name, place)


def check_order(at_ps: int, last_ps: int, name: str, stamp: object, place: str) -> None:
    """Raise if a request comes before the last one; `stamp` is its time as the file has it."""
    if at_ps < last_ps:
        raise HeadwayError(f"{place}: {name} {stamp} is before an earlier line's; sort the file by time.")


def whole_number(text: str) -> int | None:
    """The number that a text of digits is; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS else None
