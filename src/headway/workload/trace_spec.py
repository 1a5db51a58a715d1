"""The `trace:` key of a workload: which file is replayed, and how."""

from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from headway.config.section import check_range, read
from headway.config.units import duration_ps, rate
from headway.errors import HeadwayError
from headway.types import Json
from headway.workload import arrivals, transforms
from headway.workload.traces import find_format
from headway.workload.traces.limits import MAX_BLOCK

PLACE: Final = "workload.trace"
MAX_USERS: Final = 1_000_000
BOTH_STARTS: Final = "{rate: 0.2/s, arrival: poisson} or {users: 16, pause: 1s}"
GIVEN: Final = ("transforms", "replay", "sessions", "starts", "share_system")  # in a resolved copy where given


class TraceSpec(Struct, frozen=True):
    """The `trace` key: a file to replay. Without `format` it is told from the content."""

    path: str
    format: str | None = None
    speed: float = 1.0  # 2 replays twice as fast
    limit: int | None = None  # the first so many requests
    block_tokens: int | None = None  # of the trace's ids, where the file does not say (Mooncake: 512 unless said)
    transforms: list[Any] | None = None  # each a mapping of one name to its keys, in order
    replay: Literal["think", "timestamps"] | None = None  # think where the file itself records sessions
    sessions: Literal["recorded", "derived", "none"] | None = None  # recorded where the file does, else derived
    starts: Any = None  # when sessions begin, where the trace does not say or should not
    share_system: bool | None = None  # sessions with equally long tool and system prompts share them


class Starts(Struct, frozen=True):
    """The `starts` key: sessions begin at a rate, or so many users have one each, the next after a pause."""

    rate: Any = None
    arrival: Any = None
    users: int | None = None
    pause: Any = None


def parse(data: object) -> TraceSpec:
    """The `trace` key, checked as far as can be without its file."""
    spec = read(TraceSpec, data, PLACE)
    if spec.format is not None:
        format = find_format(spec.format, f"{PLACE}.format")
        if spec.block_tokens is not None and not format.blocks:
            raise HeadwayError(f"{PLACE}.block_tokens: an {spec.format} trace has no blocks; leave it out.")
    if not 1e-6 <= spec.speed <= 1e6:
        raise HeadwayError(f"{PLACE}.speed: must lie between 1e-6 and 1e6, got {spec.speed:g}.")
    if spec.limit is not None and spec.limit < 1:
        raise HeadwayError(f"{PLACE}.limit: must be at least 1, got {spec.limit}.")
    if spec.block_tokens is not None:
        check_range(spec.block_tokens, 1, MAX_BLOCK, f"{PLACE}.block_tokens")
    if spec.transforms is not None:
        transforms.parse(spec.transforms, f"{PLACE}.transforms")
    if spec.replay == "think" and spec.sessions == "none":
        raise HeadwayError(f"{PLACE}.replay: think needs sessions; leave out `sessions: none`, or say timestamps.")
    if spec.starts is not None:
        read_starts(spec)
    return spec


def explicit(spec: TraceSpec) -> Json:
    """The key with its defaults, but for what the file tells: format, block size, and how sessions are replayed."""
    keys: Json = msgspec.to_builtins(spec)
    return {name: value for name, value in keys.items() if name not in GIVEN or value is not None}


def read_starts(spec: TraceSpec) -> Starts:
    """The `starts` key, checked."""
    where = f"{PLACE}.starts"
    starts = read(Starts, spec.starts, where)
    if (starts.rate is None) == (starts.users is None):
        raise HeadwayError(f"{where}: say one of the two, {BOTH_STARTS}.")
    if starts.rate is not None:
        rate(starts.rate, f"{where}.rate")
        arrivals.parse("poisson" if starts.arrival is None else starts.arrival, f"{where}.arrival")
        if starts.pause is not None:
            raise HeadwayError(f"{where}.pause: goes with users, not with a rate; leave it out.")
        return starts
    assert starts.users is not None
    check_range(starts.users, 1, MAX_USERS, f"{where}.users")
    if starts.arrival is not None:
        raise HeadwayError(f"{where}.arrival: goes with a rate, not with users; leave it out.")
    if starts.pause is not None:
        duration_ps(starts.pause, f"{where}.pause")
    if spec.replay == "timestamps":
        raise HeadwayError(f"{where}.users: users wait for sessions to end, which timestamps do not; give a rate.")
    return starts
