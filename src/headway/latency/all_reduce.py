"""The time of a collective operation between GPUs, by link, number of GPUs and size: the all-reduce of a
tensor-parallel group, and the exchange between data-parallel ranks around the experts of a layer.

`presets/all_reduce.yaml` and `presets/exchange.yaml` have the measured times of each kind of link. Times between two
measured sizes are interpolated linearly. Below the smallest size the time is constant, and beyond the largest size it
grows as between the two largest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Final

from msgspec import Struct

from headway.latency.gpus import Interconnect
from headway.latency.tables import document_of

ALL_REDUCE: Final = "all_reduce.yaml"
EXCHANGE: Final = "exchange.yaml"


class AllReduce(Struct, frozen=True):
    """The measured times between a number of GPUs: microseconds by size in bytes, both increasing."""

    sizes: tuple[float, ...]
    us: tuple[float, ...]
    measured: bool  # whether the times were measured with this link and this number of GPUs

    def time_us(self, size: float) -> float:
        sizes, us = self.sizes, self.us
        if size <= sizes[0]:
            return us[0]
        at = min(bisect_left(sizes, size), len(sizes) - 1)
        slope = (us[at] - us[at - 1]) / (sizes[at] - sizes[at - 1])
        return us[at - 1] + slope * (size - sizes[at - 1])


def all_reduce(link: Interconnect, tp: int, engine: str = "") -> AllReduce:
    """Return the times of an all-reduce between `tp` GPUs. Some engines take other times than the rest."""
    return _between(ALL_REDUCE, link, tp, engine)


def exchange(link: Interconnect, gpus: int) -> AllReduce:
    """Return the times of the all-gather before the experts of a layer and the reduce-scatter after them, together. The
    size is that of the hidden states of all ranks."""
    return _between(EXCHANGE, link, gpus)


def _between(file: str, link: Interconnect, gpus: int, engine: str = "") -> AllReduce:
    """Return the times between a number of GPUs. If this number was not measured, return the times of the next larger
    number, or else of the largest."""
    tables = _tables(file)[link.name]
    known = tables.get(engine, tables[""])
    number = next((count for count in sorted(known) if count >= gpus), max(known))
    table = known[number]
    return AllReduce(table.sizes, table.us, table.measured and number == gpus)


ByGpus = Mapping[int, AllReduce]


@cache
def _tables(file: str) -> Mapping[str, Mapping[str, ByGpus]]:
    """Return for each link its times by engine ("": all others) and number of GPUs."""
    document = document_of(file)
    first, links = float(document["first_bytes"]), document["links"]
    tables: dict[str, Mapping[str, ByGpus]] = {}
    for name, entry in links.items():
        rows: ByGpus = {}
        if "like" in entry:
            rows = _rows(first, links[entry["like"]]["us"], float(entry.get("times", 1.0)), measured=False)
        rows = {**rows, **_rows(first, entry.get("us", {}))}
        older = entry.get("engines", {}).items()
        tables[name] = {"": rows, **{engine: {**rows, **_rows(first, by_gpus)} for engine, by_gpus in older}}
    return tables


def _rows(
    first: float, rows: Mapping[int, Sequence[Any]], slower: float = 1.0, *, measured: bool = True
) -> dict[int, AllReduce]:
    return {int(gpus): _table(first, row, slower, measured) for gpus, row in rows.items()}


def _table(first: float, row: Sequence[Any], slower: float, measured: bool) -> AllReduce:
    times: list[float] = []
    for value in row:  # a larger message never takes less time
        times.append(max(float(value) * slower, times[-1] if times else 0.0))
    return AllReduce(tuple(first * (1 << at) for at in range(len(times))), tuple(times), measured)
