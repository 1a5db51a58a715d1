"""Each record with its session: as the trace records it, else derived from its blocks."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Final

from headway.errors import HeadwayError
from headway.workload.traces import threads
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import Held

BITS: Final = (1 << 64) - 1  # whichever 64 bits are kept of a longer hash name it as well


def threaded(reader: Reader, where: str) -> Iterator[tuple[str | None, Record]]:
    """Where they have to be derived it holds the whole trace, a few hundred bytes a request. The records themselves are
    not changed: sessions that were guessed are not to be taken for recorded ones."""
    if reader.info.sessions:
        return ((record.session, record) for record in reader.records)
    if reader.info.block_tokens is None:
        raise HeadwayError(
            f"{where}: this trace ({reader.info.format}) neither records sessions nor has blocks to derive them from."
        )
    return _derived(reader)


def _derived(reader: Reader) -> Iterator[tuple[str | None, Record]]:
    held = Held()
    packed: list[bytes] = []
    firsts, counts, starts = array("Q"), array("Q"), array("Q", [0])
    for record in reader.records:
        packed.append(held.pack(record))
        for first, count in record.blocks or ():
            firsts.append(first & BITS)
            counts.append(count)
        starts.append(len(firsts))

    def runs(row: int) -> list[tuple[int, int]]:
        begin, end = starts[row], starts[row + 1]
        return list(zip(firsts[begin:end], counts[begin:end], strict=True))

    found = threads.derive(len(packed), runs)
    for session, one in zip(found.session, packed, strict=True):
        yield str(session), held.unpack(one)
