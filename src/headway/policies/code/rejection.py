"""Reasons why a source is rejected, and errors of running programs."""

from collections.abc import Sequence

from msgspec import Struct

from headway.errors import HeadwayError


class Rejection(Struct, frozen=True):
    """One reason why a source is rejected."""

    line: int
    construct: str
    why: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.construct}: {self.why}"


class CodeError(HeadwayError):
    """A policy's source was rejected, or its program failed."""

    def __init__(self, text: str, rejections: Sequence[Rejection] = ()) -> None:
        super().__init__(text)
        self.rejections = tuple(rejections)


class Exhausted(Exception):
    """A decision exceeded its limit of steps."""


class Misuse(Exception):
    """An operator or a library function got an invalid value."""
