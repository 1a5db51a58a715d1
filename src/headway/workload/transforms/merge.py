"""`merge`: two traces as one, by time."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator
from math import gcd
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config import section, units
from headway.errors import HeadwayError
from headway.workload.traces import open_trace
from headway.workload.traces.blocks import beginning
from headway.workload.traces.record import GLOBAL, LOCAL, Info, Options, Reader, Record
from headway.workload.traces.table import LAST_PS, too_late
from headway.workload.transforms.base import Transform
from headway.workload.transforms.numbering import Counter, Numbers, Run
from headway.workload.transforms.scale import block_count

MARKS = ("a:", "b:")

Mend = Callable[[Record], Record]


class Spec(Struct, frozen=True):
    path: str
    format: str | None = None
    block_tokens: Annotated[int, Meta(ge=1)] | None = None
    offset: Any = None
    apart: bool = True
    transforms: list[Any] = []


def transform(data: object, where: str) -> Transform:
    """Another trace, changed by its own `transforms` and then shifted by `offset`, merged into this one by time, this
    one's first where both have a request at one instant. Traces whose sessions each have their own clock are put one
    after the other.

    The two are kept apart: the other's sessions and ids get a `b:` before their names (this one's an `a:` where they
    already begin with one of these), and block ids are given anew, so that none mean the same in both. `apart: false`
    is for two pieces of one trace, whose names and ids do. Blocks of different sizes are told in their greatest common
    divisor, exactly. It holds a stretch for each run of block ids that it met.
    """
    from headway.workload.transforms import apply, parse

    spec = section.read(Spec, data, where)
    offset_ps = 0 if spec.offset is None else units.duration_ps(spec.offset, f"{where}.offset")
    steps = parse(spec.transforms, f"{where}.transforms")

    def merge(reader: Reader) -> Reader:
        options = Options(block_tokens=spec.block_tokens)
        other = apply(open_trace(pathlib.Path(spec.path), spec.format, options), steps)
        return _merged(reader, other, offset_ps, spec, where)

    return merge


def _merged(one: Reader, other: Reader, offset_ps: int, spec: Spec, where: str) -> Reader:
    if one.info.clock != other.info.clock:
        which = f"{spec.path} has" if other.info.clock == "session" else f"{spec.path} has a clock, but this trace has"
        raise HeadwayError(
            f"{where}.path: {which} no clock across its sessions; give it one with the transform "
            "`starts: {rate: 0.2/s}`."
        )
    if offset_ps and other.info.clock == "session":
        raise HeadwayError(f"{where}.offset: these sessions have no clock in common to shift; leave it out.")
    info = _info(one.info, other.info, spec.apart, where)
    counter = None if info.scope == LOCAL else Counter()
    first = _mend(one.info, info, counter, spec.apart, 0)
    second = _mend(other.info, info, counter, spec.apart, 1)
    pair = _timed(one.records, 0, where), _timed(other.records, offset_ps, where)
    return Reader(info, _by_time(*pair, first, second) if info.clock == "trace" else _in_turn(*pair, first, second))


def _info(one: Info, other: Info, apart: bool, where: str) -> Info:
    sizes = [info.block_tokens for info in (one, other) if info.block_tokens is not None]
    scopes = [info.scope for info in (one, other) if info.block_tokens is not None]
    if not apart and (len(set(sizes)) > 1 or len(set(scopes)) > 1):
        raise HeadwayError(f"{where}.apart: the blocks of these traces differ in size or scope; leave it out.")
    return replace(
        one,
        block_tokens=gcd(*sizes) if sizes else None,
        whole_blocks=any(info.whole_blocks for info in (one, other) if info.block_tokens is not None),
        scope=LOCAL if scopes and all(scope == LOCAL for scope in scopes) else GLOBAL,
        sessions=one.sessions or other.sessions,
    )


def _mend(old: Info, new: Info, counter: Counter | None, apart: bool, which: int) -> Mend:
    """What a trace's records become among those of both."""
    size, wanted = old.block_tokens, new.block_tokens
    finer = (
        None if size is None or wanted is None or (size == wanted and old.whole_blocks == new.whole_blocks) else wanted
    )
    unnamed = old.whole_blocks and size != wanted  # what is behind the last full block may fill some of the finer ones
    numbers = None if not apart or (new.scope == LOCAL and not unnamed) else Numbers(old.scope, counter)

    def name(text: str) -> str:
        return f"{MARKS[which]}{text}" if which or text.startswith(MARKS) else text

    def mend(record: Record) -> Record:
        blocks = record.blocks
        if blocks is not None and finer is not None and size is not None:
            blocks = _finer(blocks, size // finer, block_count(record.prompt_tokens, finer, new.whole_blocks))
        if not apart:
            return record if blocks is record.blocks else replace(record, blocks=blocks)
        if blocks is not None and numbers is not None:
            numbering = numbers.of(record)
            blocks = numbering.runs(blocks)
            if unnamed and wanted is not None:
                given = sum(count for _, count in blocks)
                missing = block_count(record.prompt_tokens, wanted, new.whole_blocks) - given
                blocks += [(numbering.counter.take(missing), missing)] if missing else []
        return replace(
            record,
            blocks=blocks,
            session=None if record.session is None else name(record.session),
            id=None if record.id is None else name(record.id),
            after=tuple(name(one) for one in record.after),
        )

    return mend


def _finer(blocks: Any, parts: int, count: int) -> list[Run]:
    """Blocks cut in so many parts each, of which the first `count` are filled."""
    return beginning([(first * parts, length * parts) for first, length in blocks], count)


def _timed(records: Iterator[Record], offset_ps: int, where: str) -> Iterator[tuple[int, Record]]:
    """Records with their times; one that has none comes right after the one before."""
    last_ps = offset_ps
    for record in records:
        if record.at_ps is not None:
            last_ps = record.at_ps + offset_ps
            if offset_ps:
                record = replace(record, at_ps=last_ps)
            if last_ps > LAST_PS:
                raise HeadwayError(f"{where}.offset: a request would come {too_late(last_ps)}; lower it.")
        yield last_ps, record


Timed = Iterator[tuple[int, Record]]


def _by_time(one: Timed, other: Timed, first: Mend, second: Mend) -> Iterator[Record]:
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] <= right[0]):
            assert left is not None
            yield first(left[1])
            left = next(one, None)
        else:
            yield second(right[1])
            right = next(other, None)


def _in_turn(one: Timed, other: Timed, first: Mend, second: Mend) -> Iterator[Record]:
    for _, record in one:
        yield first(record)
    for _, record in other:
        yield second(record)
