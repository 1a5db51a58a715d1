"""`merge`: merge another trace into this one, by time."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Iterator
from heapq import merge as merge_sorted
from itertools import chain
from math import gcd
from operator import itemgetter
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from headway.config import units
from headway.config.keys import DURATION, Doc, Form
from headway.config.schema import Later
from headway.errors import HeadwayError
from headway.workload.traces import FORMAT_NAME, open_trace
from headway.workload.traces.blocks import beginning, block_count
from headway.workload.traces.limits import LAST_PS, too_late
from headway.workload.traces.record import GLOBAL, LOCAL, Info, Options, Reader, Record
from headway.workload.transforms.base import Transform
from headway.workload.transforms.numbering import Counter, Numbers

MARKS = ("a:", "b:")

Timed = tuple[int, int, Record]  # (time, number of the trace, record)


def _nested() -> Form:
    from headway.workload.transforms import TRANSFORMS_FORM  # imported here, because it imports this module

    return TRANSFORMS_FORM


NESTED_FORM: Final = Form.of(Later("transforms", _nested))


class Spec(Struct, frozen=True):
    path: Annotated[str, "the other trace"]
    format: Annotated[str | None, FORMAT_NAME, Doc("format of the other trace", default="detected")] = None
    block_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, "size of its blocks, if the file does not state it"] = (
        None
    )
    offset: Annotated[Any, DURATION, "time by which the other trace is shifted"] = None
    apart: Annotated[bool, "whether the two traces share no content and no names"] = True
    transforms: Annotated[list[Any], NESTED_FORM, "transforms of the other trace"] = []


def transform(spec: Spec, where: str) -> Transform:
    """Apply `transforms` to another trace, shift it by `offset`, and merge it into this trace by time.

    If times are equal, requests of this trace precede requests of the other trace. Traces whose sessions have no common
    clock are concatenated. The two traces share no content: sessions and request ids of the other trace get the prefix
    `b:`, and blocks are renumbered. A name in this trace that already begins with `a:` or `b:` gets the prefix `a:`. If
    both files are parts of one trace, which share names and ids, set `apart: false`. Blocks of different sizes are
    split into blocks of their greatest common divisor. Memory grows with the number of runs of block ids.
    """
    from headway.workload.transforms import apply, parse

    offset_ps = 0 if spec.offset is None else units.duration_ps(spec.offset, f"{where}.offset")
    steps = parse(spec.transforms, f"{where}.transforms")

    def merge(reader: Reader) -> Reader:
        options = Options(block_tokens=spec.block_tokens)
        other = apply(open_trace(pathlib.Path(spec.path), spec.format, options), steps)
        return _merge(reader, other, offset_ps, spec, where)

    return merge


def _merge(left: Reader, right: Reader, offset_ps: int, spec: Spec, where: str) -> Reader:
    if left.info.clock != right.info.clock:
        which = spec.path if right.info.clock == "session" else "this trace"
        raise HeadwayError(
            f"{where}.path: the sessions of {which} have no common clock, but those of the other trace do. "
            "Add one with the transform `starts: {rate: 0.2/s}`."
        )
    if offset_ps and right.info.clock == "session":
        raise HeadwayError(f"{where}.offset: the sessions have no common clock. Remove this key.")
    info = _info(left.info, right.info, spec.apart, where)
    counter = None if info.scope == LOCAL else Counter()
    mends = [_mender(reader.info, info, counter, spec.apart, which) for which, reader in enumerate((left, right))]
    pair = _with_times(left.records, 0, 0, where), _with_times(right.records, 1, offset_ps, where)
    merged: Iterable[Timed] = merge_sorted(*pair, key=itemgetter(0)) if info.clock == "trace" else chain(*pair)
    return Reader(info, (mends[which](record) for _, which, record in merged))


def _info(left: Info, right: Info, apart: bool, where: str) -> Info:
    with_blocks = [info for info in (left, right) if info.block_tokens is not None]
    sizes = [info.block_tokens for info in with_blocks if info.block_tokens is not None]
    scopes = [info.scope for info in with_blocks]
    if not apart and (len(set(sizes)) > 1 or len(set(scopes)) > 1):
        raise HeadwayError(f"{where}.apart: the blocks of these traces differ in size or scope. Remove this key.")
    return replace(
        left,
        block_tokens=gcd(*sizes) if sizes else None,
        whole_blocks=any(info.whole_blocks for info in with_blocks),
        scope=LOCAL if scopes and all(scope == LOCAL for scope in scopes) else GLOBAL,
        sessions=left.sessions or right.sessions,
        think_times=all(info.think_times for info in (left, right) if info.sessions),
    )


def _mender(old: Info, new: Info, counter: Counter | None, apart: bool, which: int) -> Callable[[Record], Record]:
    """Return a function that adapts a record of one trace to the merged trace: its block size, ids and names."""
    size, new_size = old.block_tokens, new.block_tokens
    recut = size != new_size or old.whole_blocks != new.whole_blocks
    unnamed = old.whole_blocks and size != new_size  # tokens after the last full block may fill the new, smaller blocks
    numbers = None if not apart or (new.scope == LOCAL and not unnamed) else Numbers(old.scope, counter)

    def name(text: str) -> str:
        return f"{MARKS[which]}{text}" if which or text.startswith(MARKS) else text

    def mend(record: Record) -> Record:
        blocks = record.blocks
        if recut and blocks is not None and size is not None and new_size is not None:
            parts = size // new_size  # number of new blocks per old block; new blocks beyond the prompt are removed
            finer = [(first * parts, length * parts) for first, length in blocks]
            blocks = beginning(finer, block_count(record.prompt_tokens, new_size, new.whole_blocks))
        if not apart:
            return record if blocks is record.blocks else replace(record, blocks=blocks)
        if blocks is not None and numbers is not None:
            numbering = numbers.of(record)
            blocks = numbering.runs(blocks)
            if unnamed and new_size is not None:
                named = sum(count for _, count in blocks)
                missing = block_count(record.prompt_tokens, new_size, new.whole_blocks) - named
                blocks += [(numbering.counter.take(missing), missing)] if missing else []
        return replace(
            record,
            blocks=blocks,
            session=None if record.session is None else name(record.session),
            id=None if record.id is None else name(record.id),
            after=tuple(map(name, record.after)),
        )

    return mend


def _with_times(records: Iterator[Record], which: int, offset_ps: int, where: str) -> Iterator[Timed]:
    """Yield records with their times. If a record has no time, use the time of the previous record."""
    last_ps = offset_ps
    for record in records:
        if record.at_ps is not None:
            last_ps = record.at_ps + offset_ps
            if offset_ps:
                record = replace(record, at_ps=last_ps)
            if last_ps > LAST_PS:
                raise HeadwayError(f"{where}.offset: a request would arrive {too_late(last_ps)}. Lower the offset.")
        yield last_ps, which, record
