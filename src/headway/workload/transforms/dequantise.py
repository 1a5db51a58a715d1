"""`dequantise`: spread arrivals whose timestamps were rounded down to a grid.

Because of the rounding, every tick of the grid becomes a burst, which distorts the gaps and all latencies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from math import fsum
from random import Random
from typing import Annotated, Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from headway.config import units
from headway.config.keys import DURATION, Form
from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import PS_PER_US
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import Transform, need_clock, with_records

SAMPLE: Final = 20_000  # number of requests from which the grid is detected
SHARED: Final = 0.1  # minimum fraction of requests that share a timestamp; with less, the grid is harmless
ASTRAY: Final = 0.05  # maximum mean deviation of timestamps from the grid, as a fraction of a tick


class Spec(Struct, frozen=True):
    grid: Annotated[Any, Form.of(Literal["auto"], DURATION), "length of a tick"] = "auto"
    seed: Annotated[int, "seed of the draws"] = 0


def transform(spec: Spec, where: str) -> Transform:
    """Spread the requests of each tick uniformly over the tick, in file order. Round their times to whole microseconds.

    `grid` is the length of a tick. `auto` detects the length from the timestamps, and fails if they are not on a grid.
    If a tick would end after the next tick begins, it is shortened, so that the order does not change. Memory holds the
    requests of one tick and, during detection, the first 20,000 requests.
    """
    grid_ps = None if spec.grid == "auto" else units.duration_ps(spec.grid, f"{where}.grid")
    if grid_ps is not None and grid_ps < PS_PER_US:
        raise HeadwayError(f"{where}.grid: must be at least 1us, got {spec.grid}.")

    def spread(reader: Reader) -> Reader:
        need_clock(reader.info, where)
        return with_records(reader, _spread(reader, grid_ps, stream(spec.seed, "trace.dequantise"), where))

    return spread


def _spread(reader: Reader, grid: int | None, random: Random, where: str) -> Iterator[Record]:
    records: Iterable[Record] = reader.records
    if grid is None:
        head = list(islice(reader.records, SAMPLE))
        grid = find_grid([record.at_ps for record in head if record.at_ps is not None])
        if grid is None:
            raise HeadwayError(
                f"{where}.grid: the time stamps of this trace lie on no grid. Remove the transform, or set the grid, "
                "as in 3s."
            )
        records = chain(head, reader.records)
    tick: list[Record] = []
    start: int | None = None
    for record in records:
        if record.at_ps is not None and record.at_ps != start:
            if start is not None:
                gap = record.at_ps - start
                yield from _tick(tick, start, gap if 4 * gap <= 5 * grid else grid, random)
                tick = []
            start = record.at_ps
        tick.append(record)
    if start is not None:
        yield from _tick(tick, start, grid, random)
    else:
        yield from tick


def _tick(tick: Sequence[Record], start: int, length: int, random: Random) -> Iterator[Record]:
    room = max(1, length // PS_PER_US)
    stamped = sum(record.at_ps is not None for record in tick)
    offsets = iter(sorted(int(random.random() * room) for _ in range(stamped)))
    for record in tick:
        yield record if record.at_ps is None else replace(record, at_ps=start + next(offsets) * PS_PER_US)


def find_grid(stamps: Sequence[int]) -> int | None:
    """Return the length of a tick in picoseconds. If the timestamps are not on a grid, or too few of them share a tick,
    return None."""
    gaps = sorted(later - earlier for earlier, later in pairwise(stamps) if later != earlier)
    if len(gaps) < 2 or len(gaps) + 1 > (1 - SHARED) * len(stamps):
        return None
    least = gaps[len(gaps) // 20]
    single = [gap for gap in gaps if 2 * gap < 3 * least and 2 * gap > least]
    grid = single[len(single) // 2]
    astray = fsum(abs(gap / grid - round(gap / grid)) for gap in gaps) / len(gaps)
    return grid if astray <= ASTRAY else None
