"""Why a source is not of the policy language, or why its program stopped."""

from collections.abc import Sequence

from msgspec import Struct

from headway.errors import HeadwayError


class Rejection(Struct, frozen=True):
    """One thing that the language does not have."""

    line: int
    construct: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.construct}: {self.why}"


class CodeError(HeadwayError):
    """A policy's code that is refused or that failed."""

    def __init__(self, text: str, rejections: Sequence[Rejection] = ()) -> None:
        super().__init__(text)
        self.rejections = tuple(rejections)


class Exhausted(Exception):
    """The steps of one decision are used up."""


class Misuse(Exception):
    """An operator or a function of the library was given what it does not take."""
