"""The `trace:` key of a workload: the file to replay, and the options of the replay."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headway.config.keys import DURATION, RATE, Doc, Form
from headway.config.schema import Later, Part
from headway.config.section import check_range, read
from headway.config.units import duration_ps, rate
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload import arrivals, transforms
from headway.workload.traces import FORMAT_NAME, find_format
from headway.workload.traces.columns import COLUMNS_FORM, parse_columns
from headway.workload.traces.limits import MAX_BLOCK
from headway.workload.transforms import TRANSFORMS_FORM

PLACE: Final = "workload.trace"
MAX_USERS: Final = 1_000_000
BOTH_STARTS: Final = "{rate: 0.2/s, arrival: poisson} or {users: 16, pause: 1s}"
GIVEN: Final = (
    "transforms",
    "replay",
    "sessions",
    "starts",
    "share_system",
    "columns",
    "skip_bad",
)  # keys that a resolved scenario contains only if they are set


class TraceSpec(Struct, frozen=True):
    """The `trace` key: a file to replay. If `format` is not set, the format is detected from the content."""

    path: Annotated[str, "the file; a relative path resolves against the scenario's folder"]
    format: Annotated[str | None, FORMAT_NAME, Doc("format of the file", default="detected from the content")] = None
    speed: Annotated[float, Form.of(Annotated[float, Meta(ge=1e-6, le=1e6)]), "2 replays twice as fast"] = 1.0
    limit: Annotated[
        int | None, Form.of(Annotated[int, Meta(ge=1)]), "most requests to replay, from the start of the file"
    ] = None
    block_tokens: Annotated[
        int | None,
        Form.of(Annotated[int, Meta(ge=1, le=MAX_BLOCK)]),
        "size of the trace's blocks, if the file does not state it",
    ] = None
    transforms: Annotated[
        list[Any] | None, TRANSFORMS_FORM, "transforms in order, each a name or a mapping of its name to its keys"
    ] = None
    replay: Annotated[
        Literal["think", "timestamps"] | None,
        Doc(
            "think: a turn waits for the end of the previous one; timestamps: requests arrive at their recorded times",
            default="think if the file records sessions and when answers ended",
        ),
    ] = None
    sessions: Annotated[
        Literal["recorded", "derived", "none"] | None,
        Doc("where sessions come from", default="the first that the file allows"),
    ] = None
    starts: Annotated[Any, Form.of(Later("starts", lambda: Part(Starts))), "when sessions begin"] = None
    share_system: Annotated[
        bool | None, "whether sessions with equally long tool and system prompts share these prompts"
    ] = None
    columns: Annotated[
        Any,
        COLUMNS_FORM,
        'for your own table: the column of each field, as in {arrival: "ts_ms:ms", prompt: in_tok, output: out_tok}',
    ] = None
    skip_bad: Annotated[
        bool | None, "for your own table: whether to skip invalid rows instead of rejecting the file"
    ] = None


class Starts(Struct, frozen=True):
    """The `starts` key: when sessions begin. Either sessions begin at a rate, or each of `users` users runs one session
    after another, with a pause."""

    rate: Annotated[Any, RATE, "rate at which sessions begin"] = None
    arrival: Annotated[arrivals.ArrivalSpec, Doc("arrival process of the sessions", default="poisson")] = None
    users: Annotated[
        int | None,
        Form.of(Annotated[int, Meta(ge=1, le=MAX_USERS)]),
        "number of users, each of whom runs one session after another; excludes `rate`",
    ] = None
    pause: Annotated[Any, DURATION, "with `users`: time between the sessions of a user"] = None


def parse(data: object) -> TraceSpec:
    """Read the `trace` key, and make all checks that do not need the trace file."""
    spec = read(TraceSpec, data, PLACE)
    if spec.format is not None:
        format = find_format(spec.format, f"{PLACE}.format")
        if spec.block_tokens is not None and not format.blocks:
            raise HeadwayError(f"{PLACE}.block_tokens: the {spec.format} format has no blocks. Remove this key.")
    if spec.columns is not None:
        parse_columns(spec.columns, f"{PLACE}.columns")
    if not 1e-6 <= spec.speed <= 1e6:
        raise HeadwayError(f"{PLACE}.speed: must lie between 1e-6 and 1e6, got {spec.speed:g}.")
    if spec.limit is not None and spec.limit < 1:
        raise HeadwayError(f"{PLACE}.limit: must be at least 1, got {spec.limit}.")
    if spec.block_tokens is not None:
        check_range(spec.block_tokens, 1, MAX_BLOCK, f"{PLACE}.block_tokens")
    if spec.transforms is not None:
        transforms.parse(spec.transforms, f"{PLACE}.transforms")
    if spec.replay == "think" and spec.sessions == "none":
        raise HeadwayError(f"{PLACE}.replay: think needs sessions. Remove `sessions: none`, or use timestamps.")
    if spec.starts is not None:
        read_starts(spec)
    return spec


def explicit(spec: TraceSpec) -> Json:
    """Return the `trace` key as a mapping with all defaults, except defaults that depend on the trace file."""
    keys: Json = msgspec.to_builtins(spec)
    return {name: value for name, value in keys.items() if name not in GIVEN or value is not None}


def read_starts(spec: TraceSpec) -> Starts:
    """Read and check the `starts` key."""
    where = f"{PLACE}.starts"
    starts = read(Starts, spec.starts, where)
    if (starts.rate is None) == (starts.users is None):
        raise HeadwayError(f"{where}: set either a rate or users: {BOTH_STARTS}.")
    if starts.rate is not None:
        rate(starts.rate, f"{where}.rate")
        arrivals.parse("poisson" if starts.arrival is None else starts.arrival, f"{where}.arrival")
        if starts.pause is not None:
            raise HeadwayError(f"{where}.pause: is valid with users, not with a rate. Remove it.")
        return starts
    assert starts.users is not None
    check_range(starts.users, 1, MAX_USERS, f"{where}.users")
    if starts.arrival is not None:
        raise HeadwayError(f"{where}.arrival: is valid with a rate, not with users. Remove it.")
    if starts.pause is not None:
        duration_ps(starts.pause, f"{where}.pause")
    if spec.replay == "timestamps":
        raise HeadwayError(
            f"{where}.users: is not valid with replay: timestamps. Set a rate instead, or set replay: think."
        )
    return starts
