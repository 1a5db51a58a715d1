"""A gateway's journal: a file with every input of the control plane and every decision, in order, for replay.

The file holds msgpack records, each preceded by its length. The first record holds the plane's settings. Each other
record is (nanoseconds, kind, payload).
The file contains the block keys of prompts, but not their text.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path as File
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, astuple, replace

from headway.errors import HeadwayError
from headway.gateway.deciding.policy_versions import PlaneSettings
from headway.gateway.plane import Plane
from headway.types import Path, Request

FORMAT: Final = 1
FLUSH_BYTES: Final = 256 * 1024
SHOWN: Final = 20  # maximum number of differences that a replay lists
log = logging.getLogger("headway.gateway")
_encode = msgspec.msgpack.Encoder().encode


class Tape:
    """Writes the journal until the file has `limit` bytes, and then stops: a journal with gaps cannot be replayed."""

    def __init__(self, file: File, settings: PlaneSettings, limit: int) -> None:
        self.file, self.limit = file, limit
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._out: BinaryIO | None = _open_empty(file)
        except BlockingIOError:
            raise HeadwayError(f"journal.file: another gateway writes to {file.name}. Name another file.") from None
        except OSError as error:
            raise HeadwayError(f"journal.file: cannot write to {file.name}: {error.strerror}.") from None
        self._buffer = bytearray()
        self.written = 0
        self._put({"format": FORMAT, **asdict(settings)})

    def __call__(self, now_ps: int, kind: str, payload: tuple[Any, ...]) -> None:
        if self._out is not None:
            write = WRITERS.get(kind)
            self._put((now_ps // 1000, kind, payload if write is None else write(now_ps, payload)))

    def _put(self, record: Any) -> None:
        data = _encode(record)
        self._buffer += len(data).to_bytes(4, "big")
        self._buffer += data
        if len(self._buffer) > FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._out is None or not self._buffer:
            return
        data, self._buffer = self._buffer, bytearray()
        self.written += len(data)
        if self.written > self.limit:
            log.warning("journal: %s ends here, at its limit of %d bytes", self.file, self.limit)
            self.close()
            return
        try:
            self._out.write(data)
            self._out.flush()
        except OSError as error:
            log.warning("journal: %s ends here, because writing failed: %s", self.file, error.strerror)
            self._out = None

    def close(self) -> None:
        self.flush()
        if self._out is not None:
            self._out.close()
            self._out = None


def _lock(out: BinaryIO) -> None:
    """Lock the file. If another process has locked it, raise BlockingIOError."""
    try:
        import fcntl
    except ImportError:  # Windows does not have this module
        return
    fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _open_empty(file: File) -> BinaryIO:
    """Open and lock an empty file. If an earlier process left a file, rename that file to NAME.NUMBER.old."""
    out = file.open("ab")
    _lock(out)
    if not out.tell():
        return out
    number = 1
    while (other := file.with_name(f"{file.name}.{number}.old")).exists():
        number += 1
    file.rename(other)
    out.close()
    return _open_empty(file)


def _write_request(now_ps: int, payload: tuple[Request]) -> tuple[Any, ...]:
    """Return the fields of a request for the tape: its age in ns instead of its arrival, its deadline relative to the
    arrival, and the keys and ends of its path instead of the path."""
    request = payload[0]
    deadline = None if request.deadline_ps is None else request.deadline_ps - request.arrival_ps
    number, arrival_ps, tokens, path, *fields = astuple(replace(request, deadline_ps=deadline))
    return number, (now_ps - arrival_ps) // 1000, tokens, path.keys, path.ends, *fields


def _read_request(now_ps: int, record: list[Any]) -> tuple[Request]:
    number, since, tokens, keys, ends, *fields = record
    arrival_ps = now_ps - since * 1000
    request = Request(number, arrival_ps, tokens, Path(tuple(keys), tuple(ends)), *fields)
    return (request if request.deadline_ps is None else replace(request, deadline_ps=arrival_ps + request.deadline_ps),)


def _write_heard(now_ps: int, payload: tuple[Any, ...]) -> tuple[Any, ...]:
    peer, counts, touches = payload
    return peer, counts, [(place, path.keys, path.ends) for place, path in touches]


def _read_heard(now_ps: int, record: list[Any]) -> tuple[Any, ...]:
    peer, counts, touches = record
    return (
        peer,
        {place: tuple(count) for place, count in counts.items()},
        [(place, Path(tuple(keys), tuple(ends))) for place, keys, ends in touches],
    )


WRITERS: Final[dict[str, Callable[[int, Any], Any]]] = {"arrive": _write_request, "heard": _write_heard}
READERS: Final[dict[str, Callable[[int, list[Any]], tuple[Any, ...]]]] = {"arrive": _read_request, "heard": _read_heard}


class Difference(Struct, frozen=True):
    request: int
    then: str
    now: str


class Replayed(Struct, frozen=True):
    inputs: int
    decisions: int
    different: int
    differences: list[Difference]  # the first differences between recorded and replayed decisions, at most `SHOWN`
    seconds: float  # duration of the recorded traffic


def records(file: File) -> Iterator[Any]:
    """Yield the complete records of a tape. If the last record is cut off, ignore it."""
    decode = msgspec.msgpack.Decoder().decode
    try:
        with file.open("rb") as source:
            while len(size := source.read(4)) == 4:
                data = source.read(int.from_bytes(size, "big"))
                if len(data) < int.from_bytes(size, "big"):
                    return
                yield decode(data)
    except OSError as error:
        raise HeadwayError(f"{file.name}: cannot be read ({error.strerror}).") from None
    except msgspec.DecodeError:
        raise HeadwayError(f"{file.name}: is not the journal of a gateway.") from None


def replay(file: File) -> Replayed:
    """Replay the inputs of a tape on a new control plane, and compare its decisions with the recorded ones."""
    source = records(file)
    head = next(source, None)
    if not isinstance(head, dict) or head.pop("format", None) != FORMAT:
        raise HeadwayError(f"{file.name}: is not the journal of a gateway.")
    replayed: deque[tuple[Any, ...]] = deque()  # decisions of the replay that are not compared yet
    settings = PlaneSettings(**head)
    plane = Plane(settings, lambda now_ps, kind, payload: replayed.append(payload) if kind == "decided" else None)
    inputs = decisions = different = last = 0
    differences: list[Difference] = []
    for nanoseconds, kind, payload in source:
        now_ps = last = nanoseconds * 1000
        if kind != "decided":
            inputs += 1
            getattr(plane, kind)(now_ps, *(READERS[kind](now_ps, payload) if kind in READERS else payload))
            continue
        decisions += 1
        then = (payload[0], payload[1])
        now = replayed.popleft() if replayed else (then[0], "nothing")
        if now != then:
            different += 1
            if len(differences) < SHOWN:
                differences.append(Difference(then[0], then[1], now[1]))
    return Replayed(inputs, decisions, different, differences, last / 1e12)
