"""The common form of all trace formats: facts about the file, and one record per request, read one at a time."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from msgspec import Struct, field

LOCAL: Final = "session"
GLOBAL: Final = "trace"


class Record(Struct):
    """One request. If the format does not have a field, the field is None.

    A request with `after` waits for the end of the requests in `after`. A request of a session without `after` waits
    for the end of the session's previous record. Then it arrives after `delay_ps`, in which a person thinks or a tool
    runs.
    """

    prompt_tokens: int
    output_tokens: int
    at_ps: int | None = None  # arrival time; Info.clock says from which start it counts
    # Ids of the prompt's blocks as runs (first, count), which stand for the ids first, first + 1, ... An id identifies
    # its block and all blocks before it.
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
    scope: str = GLOBAL  # equal ids mean equal content in the whole trace (GLOBAL) or only within a session (LOCAL)
    clock: Literal["trace", "session"] = "trace"  # at_ps counts from the start of the trace or of the session
    sessions: bool = False  # whether the file itself records sessions
    # Other facts: the header of the format, counts of skipped requests, `origin`, and `notes` for the user.
    extra: dict[str, Any] = field(default_factory=dict)


class Reader(Struct):
    """A trace that is open for reading. Records are in file order. If the clock is "trace", this is also the order of
    `at_ps`. If a record is invalid, reading it raises a HeadwayError that names the file, the line and the field."""

    info: Info
    records: Iterator[Record]


class Column(Struct, frozen=True):
    """A column of a table, and the unit of its numbers. The unit is None if it is unknown."""

    name: str
    unit: str | None = None


class Options(Struct, frozen=True):
    """Options for reading a file. None means the value that the file contains."""

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
    tell: Callable[[pathlib.Path, list[bytes]], bool]  # whether the first lines show that a file has this format
    read: Callable[[pathlib.Path, Options], Reader]
    # Writes the records, and returns a phrase for each property that the format cannot express. None: read-only format.
    write: Callable[[pathlib.Path, Info, Iterable[Record]], list[str]] | None = None
    blocks: bool = True  # whether traces of the format may describe content
    drawn: bool = False  # whether the file contains distributions from which requests are drawn
