"""The common form of all trace formats: facts about the file, and one record per request, read one at a time."""

import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any, Final, Literal

from msgspec import Struct, field

from headway.config.keys import Doc

LOCAL: Final = "session"
GLOBAL: Final = "trace"


class Record(Struct):
    """One request. If the format does not have a field, the field is None.

    A request with `after` waits for the end of the requests in `after`. A request of a session without `after` waits
    for the end of the session's previous record. After this wait, the request arrives with a delay of `delay_ps`, in
    which a person thinks or a tool runs.
    """

    prompt_tokens: Annotated[int, "length of the prompt"]
    output_tokens: Annotated[int, "length of the output"]
    at_ps: Annotated[
        int | None,
        "arrival in picoseconds after the start of the trace or of the session, as `clock` in the header says",
    ] = None
    blocks: Annotated[
        Sequence[tuple[int, int]] | None,
        Doc(
            "ids of the prompt's blocks as runs: [first id, count]. Equal ids mean that the blocks and everything "
            "before them are equal",
            type="list of pairs",
        ),
    ] = None
    session: Annotated[str | None, "the conversation"] = None
    turn: Annotated[int | None, "position of the request in its session, from 0"] = None
    id: Annotated[str | None, "name of the request"] = None
    after: Annotated[
        tuple[str, ...], Doc("names of the requests whose end this request waits for", default="none")
    ] = ()
    delay_ps: Annotated[int | None, "time between the end of the previous answer and this request"] = None
    model: Annotated[str | None, "name of the model"] = None
    tenant: Annotated[str | None, "name of the tenant"] = None
    slo_class: Annotated[str | None, "name of the SLO class"] = None
    kind: Annotated[str | None, "completion, chat, agentic or reasoning"] = None
    max_tokens: Annotated[int | None, "limit of the output that the client sends"] = None
    shared_prefix_tokens: Annotated[int, "leading tokens that the client declares as shared"] = 0
    extra: Annotated[dict[str, Any], "anything else, such as measured times and statuses"] = field(default_factory=dict)

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
    think_times: bool = True  # whether the file tells how long sessions waited between an answer and the next request
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
    start: Any = None  # for servegen, which draws requests: start of the drawn period, in seconds or with a unit
    duration: Any = None  # for servegen: length of the drawn period
    seed: int = 0  # for servegen: random seed of the drawn requests
    columns: dict[str, Column] | None = None  # for a user's own table: the column of each field
    skip_bad: bool = False  # for a user's own table: whether to skip invalid rows
    # for a user's own table: receives progress before the first record, such as ("rows checked", 5000)
    stage: Callable[[str, int], None] | None = None
    ask: str = "format"  # for errors: the argument, the option or the path of the scenario's key that sets the format


class Format(Struct, frozen=True):
    """A trace format: how to detect, read and write it."""

    name: str
    title: str  # one-line description
    # returns whether the first lines of a file show that the file has this format
    tell: Callable[[pathlib.Path, list[bytes]], bool]
    read: Callable[[pathlib.Path, Options], Reader]
    # Writes the records, and returns a phrase for each property that the format cannot express. None: read-only format.
    write: Callable[[pathlib.Path, Info, Iterable[Record]], list[str]] | None = None
    blocks: bool = True  # whether traces of the format may describe content
    drawn: bool = False  # whether the file contains distributions from which requests are drawn
