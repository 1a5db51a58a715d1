"""`starts`: give the sessions of a trace a common clock, by drawing a random start time for each session."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from headway.config import units
from headway.config.keys import RATE
from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import PS_PER_US
from headway.workload.traces.limits import LAST_PS, too_late
from headway.workload.traces.record import Reader, Record
from headway.workload.transforms.base import Transform, pack, unpack, with_records


class Spec(Struct, frozen=True):
    rate: Annotated[Any, RATE, "rate at which sessions begin"]
    seed: Annotated[int, "seed of the arrivals"] = 0


def transform(spec: Spec, where: str) -> Transform:
    """Let the sessions begin as a Poisson process of this rate, in file order and with the first at 0. Then sort all
    requests by time. Memory holds the whole trace."""
    rate = units.rate(spec.rate, f"{where}.rate")

    def start(reader: Reader) -> Reader:
        if reader.info.clock == "trace":
            raise HeadwayError(f"{where}: this trace already has a common clock. Remove the transform.")
        return with_records(reader, _start_sessions(reader.records, rate, spec.seed, where), clock="trace")

    return start


def _start_sessions(records: Iterator[Record], rate: Fraction, seed: int, where: str) -> Iterator[Record]:
    random = stream(seed, "trace.starts")
    mean_us = float(1_000_000 / rate)
    starts: dict[str, int] = {}
    placed: list[tuple[int, int, bytes]] = []
    next_us, last_ps = 0, 0
    for position, record in enumerate(records):
        start_ps = None if record.session is None else starts.get(record.session)
        if start_ps is None:
            start_ps = last_ps = next_us * PS_PER_US
            next_us += round(random.expovariate(1) * mean_us)
            if record.session is not None:
                starts[record.session] = start_ps
        if record.at_ps is not None:
            last_ps = start_ps + record.at_ps
        if last_ps > LAST_PS:
            late = f"request {position + 1} would arrive {too_late(last_ps)}"
            raise HeadwayError(f"{where}.rate: {late}. Raise the rate.")
        placed.append((last_ps, position, pack(record)))
    placed.sort()
    for at_ps, _, packed in placed:
        record = unpack(packed)
        yield record if record.at_ps is None else replace(record, at_ps=at_ps)
