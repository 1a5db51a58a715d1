"""A trace as every format gives it: what is known of the file, and one record a request, read one at a time."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

LOCAL: Final = "session"
GLOBAL: Final = "trace"


class Record(Struct):
    """One request as its format tells it; None where the format does not.

    A request with `after` waits for those to end; one of a session without `after` waits for the session's previous
    record. `delay_ps` is how long after that it comes (a person thinks, a tool runs).
    """

    prompt_tokens: int
    output_tokens: int
    at_ps: int | None = None  # arrival, from the start of the trace (see Info.clock)
    # The ids of the prompt's blocks as runs (first, count): first, first + 1, ... An id stands for its block and for
    # everything before it.
    blocks: Sequence[tuple[int, int]] | None = None
    session: str | None = None
    turn: int | None = None
    id: str | None = None  # the format's own name of the request
    after: tuple[str, ...] = ()  # ids
    delay_ps: int | None = None
    model: str | None = None
    tenant: str | None = None
    slo_class: str | None = None
    kind: str | None = None  # completion, chat, agentic or reasoning
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # what else was known of it: measured times, statuses

    @property
    def adapter(self) -> str | None:
        name = self.extra.get("adapter")
        return name if isinstance(name, str) and name else None


def present(values: dict[str, Any]) -> dict[str, Any]:
    """The values that are known."""
    return {name: value for name, value in values.items() if value is not None}


class Info(Struct):
    """What is known of a trace beside its requests."""

    format: str
    block_tokens: int | None = None  # None: it says nothing of content
    whole_blocks: bool = False  # ids for full blocks only, not for a partly filled last one
    scope: str = GLOBAL  # where equal ids mean equal content: in the whole trace, or within a session
    clock: Literal["trace", "session"] = "trace"  # what at_ps counts from: the trace's start, or its session's
    sessions: bool = False  # whether the file itself records sessions
    # What else is known of it: the format's own header, counts of what was left out, `origin`, and `notes` for people.
    extra: dict[str, Any] = field(default_factory=dict)


class Reader(Struct):
    """A trace about to be read. The records come in the file's order, which is that of `at_ps` where the clock is the
    trace's; a wrong one raises a HeadwayError that names file, line and field. Records are not kept once given."""

    info: Info
    records: Iterator[Record]


class Options(Struct, frozen=True):
    """What a user may have to say of a file; None leaves it to the file."""

    block_tokens: int | None = None
    limit: int | None = None  # the first so many requests
    start: Any = None  # of what is drawn rather than read (servegen): where to begin, as in 10h or in seconds,
    duration: Any = None  # for how long,
    seed: int = 0  # and from which seed


class Format(Struct, frozen=True):
    """A trace format: how it is told, read and written."""

    name: str
    title: str  # a line for people
    tell: Callable[[pathlib.Path, list[bytes]], bool]  # by the first lines, where that is safe
    read: Callable[[pathlib.Path, Options], Reader]
    # Writes the records, and gives a phrase for each thing that the format could not express. None: read only.
    write: Callable[[pathlib.Path, Info, Iterable[Record]], list[str]] | None = None
    blocks: bool = True  # whether it may tell content
    drawn: bool = False  # whether its requests are drawn from what the file says, and not recorded
