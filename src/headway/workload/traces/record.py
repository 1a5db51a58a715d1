"""The common form of all trace formats: facts about the file, and one record per request, read one at a time."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

LOCAL: Final = "session"
GLOBAL: Final = "trace"


class Record(Struct):
    """One request; a field is None if the format does not have it.

    A request with `after` waits for the end of the requests in `after`. A request of a session without `after` waits
    for the session's previous record. It arrives `delay_ps` after that end (while a person thinks or a tool runs).
    """

    prompt_tokens: int
    output_tokens: int
    at_ps: int | None = None  # arrival, counted from the start that Info.clock names
    # Ids of the prompt's blocks as runs (first, count): first, first + 1, ... An id identifies its block and everything
    # before it.
    blocks: Sequence[tuple[int, int]] | None = None
    session: str | None = None
    turn: int | None = None
    id: str | None = None  # the name of the request in its file
    after: tuple[str, ...] = ()  # ids of the requests that this request waits for
    delay_ps: int | None = None
    model: str | None = None
    tenant: str | None = None
    slo_class: str | None = None
    kind: str | None = None  # completion, chat, agentic or reasoning
    max_tokens: int | None = None
    shared_prefix_tokens: int = 0
    extra: dict[str, Any] = field(default_factory=dict)  # other fields, such as measured times and statuses

    @property
    def adapter(self) -> str | None:
        name = self.extra.get("adapter")
        return name if isinstance(name, str) and name else None


def present(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values that are not None."""
    return {name: value for name, value in values.items() if value is not None}


class Info(Struct):
    """Facts about a trace as a whole."""

    format: str
    block_tokens: int | None = None  # None: the trace does not describe content
    whole_blocks: bool = False  # whether only full blocks have ids, not a partly filled last block
    scope: str = GLOBAL  # equal ids mean equal content in the whole trace (GLOBAL) or within a session (LOCAL)
    clock: Literal["trace", "session"] = "trace"  # at_ps counts from the start of the trace, or of the session
    sessions: bool = False  # whether the file itself records sessions
    # Other facts: the format's own header, counts of skipped requests, `origin`, and `notes` for people.
    extra: dict[str, Any] = field(default_factory=dict)


class Reader(Struct):
    """A trace that is open for reading. Records are in file order, which is the order of `at_ps` if the clock is the
    trace's. An invalid record raises a HeadwayError that names file, line and field."""

    info: Info
    records: Iterator[Record]


class Column(Struct, frozen=True):
    """A column of a table, and the unit of its numbers if it is known."""

    name: str
    unit: str | None = None


class Options(Struct, frozen=True):
    """Options for reading a file; None means the file's own value."""

    block_tokens: int | None = None
    limit: int | None = None  # maximum number of requests to read, from the start of the file
    start: Any = None  # servegen, whose requests are drawn: start of the drawn period, as in 10h or in seconds
    duration: Any = None  # servegen: length of the drawn period
    seed: int = 0  # servegen: random seed of the drawn requests
    columns: dict[str, Column] | None = None  # for a user's own table: the column of each field
    skip_bad: bool = False  # for a user's own table: whether to skip invalid rows


class Format(Struct, frozen=True):
    """A trace format: how to detect, read and write it."""

    name: str
    title: str  # one-line description
    tell: Callable[[pathlib.Path, list[bytes]], bool]  # whether a file certainly has this format, by its first lines
    read: Callable[[pathlib.Path, Options], Reader]
    # Writes the records and returns a phrase for each property that the format cannot express; None if read-only.
    write: Callable[[pathlib.Path, Info, Iterable[Record]], list[str]] | None = None
    blocks: bool = True  # whether traces of the format may describe content
    drawn: bool = False  # whether the file contains distributions from which requests are drawn
