"""Read numbers exactly as decimals, never as binary fractions, and define the units of latency and hardware keys."""

import re
from fractions import Fraction
from typing import Annotated, Final, Literal

from headway.config.keys import DURATION, Form, Unit
from headway.config.units import LONGEST_PS, duration_ps, duration_text, exact, fine_duration, to_text
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND

_NUMBER: Final = re.compile(r"[+-]?[0-9][0-9_.]*(?:[eE][+-]?[0-9]+)?")
_SUFFIX: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def _fraction(value: object, where: str) -> Fraction | None:
    """Return a value as an exact number. If it is not a number, return None."""
    if isinstance(value, bool) or not isinstance(value, int | float | str | Fraction):
        return None
    if isinstance(value, Fraction):
        return value
    text = to_text(value)
    number = exact(text)
    if number is None and _NUMBER.fullmatch(text):
        raise HeadwayError(
            f"{where}: {shown(value)} is too large, too small or has too many digits. Use at most 40 characters and an "
            "exponent from -30 to 30."
        )
    return number


def positive(value: object, where: str) -> Fraction:
    number = _fraction(value, where)
    if number is None or number <= 0:
        raise HeadwayError(f"{where}: must be a number above zero, got {shown(value)}.")
    return number


def not_negative(value: object, where: str) -> float:
    number = _fraction(value, where)
    if number is None or number < 0:
        raise HeadwayError(f"{where}: must be a number, zero or more, got {shown(value)}.")
    return float(number)


def share(value: object, where: str) -> Fraction:
    """Return the exact value of a number that must be above zero and at most one."""
    number = _fraction(value, where)
    if number is None or not 0 < number <= 1:
        raise HeadwayError(f"{where}: must be above 0 and at most 1, got {shown(value)}.")
    return number


def count(value: object, where: str, most: int = 10**6) -> int:
    """Return the value of a whole number that must be above zero and at most `most`. Forms such as 8.03B and 630M are
    valid too."""
    text, factor = value, 1
    if isinstance(value, str) and value.strip()[-1:].upper() in ("K", "M", "B", "T"):
        text, factor = value.strip()[:-1], _SUFFIX[value.strip()[-1].upper()]
    number = _fraction(text, where)
    whole = number * factor if number is not None else Fraction(0)
    if whole <= 0 or whole.denominator != 1:
        raise HeadwayError(f"{where}: must be a whole number above zero, got {shown(value)}.")
    if whole > most:
        raise HeadwayError(f"{where}: must be at most {most:,}, got {shown(value)}.")
    return int(whole)


def token_ps(value: object, where: str) -> int:
    """Convert tokens per second to whole picoseconds per token."""
    time = round(PS_PER_SECOND / positive(value, where))
    if time < 1:
        raise HeadwayError(f"{where}: must be at most 10^12 tokens a second, got {shown(value)}.")
    if time > LONGEST_PS:
        raise HeadwayError(f"{where}: must be at least one token in 100 days, got {shown(value)}.")
    return time


def round_ratio(numerator: int, denominator: int) -> int:
    """Return the same as `round(Fraction(numerator, denominator))`, but faster. Halves are rounded to the even
    number."""
    whole, rest = divmod(numerator, denominator)
    rest *= 2
    return whole + 1 if rest > denominator or (rest == denominator and whole & 1) else whole


# Units of keys. `headway.config.keys` defines what a unit is.


def _step_ps(value: object, where: str) -> int:
    step = duration_ps(value, where)
    if step < 1:
        raise HeadwayError(f"{where}: must be at least 1ps, got {shown(value)}.")
    return step


def _token_rate(value: object, where: str) -> Fraction:
    token_ps(value, where)  # this call only checks the range
    return positive(value, where)


def _auto_or_ps(value: object, where: str) -> int | Literal["auto"]:
    return "auto" if value == "auto" else duration_ps(value, where)


def _duration_text(ps: int | Literal["auto"]) -> str | None:
    return "auto" if ps == "auto" else duration_text(ps) if ps else "0ms"


# The forms of these numbers in a file. A string keeps all digits.
ABOVE_0: Final = Form.of({"type": ["number", "string"], "exclusiveMinimum": 0})
COUNT: Final = Form.of({"type": ["integer", "string"], "minimum": 1, "examples": [4096, "8.03B", "630M"]})
UP_TO_1: Final = Form.of({"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 1})


def plain_number(number: Fraction | float) -> float:
    return int(number) if number == int(number) else float(number)


StepDuration = Annotated[int, Unit("duration above 0", _step_ps, _duration_text, "_ps", form=DURATION)]
PartDuration = Annotated[int, Unit("duration", duration_ps, _duration_text, "_ps", form=DURATION)]
# A fine duration may have fractions of a picosecond.
FineDuration = Annotated[Fraction, Unit("duration", fine_duration, duration_text, form=DURATION)]
AutoDuration = Annotated[
    int | Literal["auto"],
    Unit("duration or auto", _auto_or_ps, _duration_text, "_ps", form=Form.of(Literal["auto"], DURATION)),
]
TokenTime = Annotated[
    int, Unit("number above 0", token_ps, lambda ps: plain_number(Fraction(PS_PER_SECOND, ps)), form=ABOVE_0)
]
TokenRate = Annotated[Fraction, Unit("number above 0", _token_rate, plain_number, form=ABOVE_0)]
Share = Annotated[Fraction, Unit("number above 0, at most 1", share, float, form=UP_TO_1)]
