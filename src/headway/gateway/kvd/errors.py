"""What a caller of the daemon can meet."""

from __future__ import annotations

from typing import Final

from headway.errors import HeadwayError

UNREACHABLE: Final = "unreachable"
TIMEOUT: Final = "timeout"
BUSY: Final = "busy"  # too many connections
WRONG: Final = "wrong"  # a request that nobody could answer
REFUSED: Final = "refused"
FAILED: Final = "failed"  # the daemon's own fault, or its source's


class KvdError(HeadwayError):
    """The daemon did not do what was asked; `code` is one of the names above."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Closed(Exception):
    """The other side has gone, or nothing more may be said to it."""
