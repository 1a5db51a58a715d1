"""What those who look on read of an exchange that has ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from headway.control.flights import Flight
    from headway.gateway.engines.engine_fleet import Backend
    from headway.http.answer_tally import AnswerTally
    from headway.http.wire import Incoming
    from headway.types import Request


class Observed(Protocol):
    @property
    def request(self) -> Request: ...

    @property
    def incoming(self) -> Incoming: ...

    @property
    def backend(self) -> Backend | None:
        """The engine that it was sent to last."""

    @property
    def flight(self) -> Flight | None: ...

    @property
    def tally(self) -> AnswerTally: ...

    @property
    def status(self) -> int: ...

    @property
    def attempts(self) -> int: ...

    @property
    def sent_ps(self) -> int:
        """When it was sent to its engine; -1 where it was not."""

    @property
    def first_ps(self) -> int:
        """When the first content of its answer came; -1 where none did."""


EndListener = Callable[[Observed, int, str, str], None]  # the exchange, picoseconds, outcome and reason
