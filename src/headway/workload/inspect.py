"""Statistics of a trace: rate, lengths, burstiness, tenants, sessions, and hits in LRU caches.

The caches receive the requests in file order. With N caches, request i is sent to cache i mod N (round robin), or all
requests of session i are sent to cache i mod N (sticky), where sessions are numbered by first appearance. Blocks have
the size that the trace uses; a partly filled last block counts as a block.
"""

from __future__ import annotations

import pathlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import cycle
from typing import Final

from headway.errors import HeadwayError, argument
from headway.types import Json
from headway.workload import reuse, trace_statistics
from headway.workload.trace_statistics import NONE, Columns
from headway.workload.traces import paths, read_trace
from headway.workload.traces.blocks import RunTable, id_runs
from headway.workload.traces.table import Trace, number_sessions

RENUMBER: Final = 2  # if runs of consecutive ids have fewer blocks than this on average, ids are renumbered

Runs = Callable[[int], Sequence[reuse.Run]]  # maps a row to its runs of block ids


def inspect(
    path: str | pathlib.Path,
    format: str | None = None,
    capacities: Sequence[int | None] = (None,),
    instances: Sequence[int] = (1,),
    order: reuse.Order = "first-to-last",
) -> Json:
    """Return the statistics of a trace file. Capacities are in blocks per cache; None means unlimited."""
    for capacity in capacities:
        if capacity is not None and capacity < 1:
            raise HeadwayError(
                f"{argument('capacities', '--capacity')}: must be at least 1 block, or inf, got {capacity}."
            )
    for count in instances:
        if count < 1:
            raise HeadwayError(f"{argument('instances')}: must be at least 1, got {count}.")
    trace = read_trace(pathlib.Path(path), format)
    return describe(trace, capacities, instances, order)


def describe(
    trace: Trace, capacities: Sequence[int | None], instances: Sequence[int], order: reuse.Order = "first-to-last"
) -> Json:
    """Return the statistics of a loaded trace. Statistics of time need timestamps from a common clock; statistics of
    content need block ids."""
    clock = trace.info.clock == "trace" and min(trace.arrival_ps) >= 0
    runs = None if trace.info.block_tokens is None else _runs(trace)
    columns = _columns(trace, runs)
    figures: Json = {
        "format": trace.info.format,
        "clock": trace.info.clock,  # requests that wait for others may have no timestamp, even with a common clock
        "requests": len(trace),
        **trace_statistics.overview(columns, clock),
        "tenants": _groups(trace, columns, [label.tenant for label in trace.labels], clock),
        "kinds": _groups(trace, columns, [label.kind for label in trace.labels], clock),
        "models": _groups(trace, columns, [label.model for label in trace.labels], clock),
        "blocks": None,
        "sessions": _sessions(trace, columns),
        "ideal_reuse": None,
        "reuse": [],
        "sticky_reuse": [],
    }
    figures["notes"] = [f"{note[0].upper()}{note[1:]}." for note in trace.info.extra.get("notes", ())]
    if runs is None:
        figures["notes"].append(
            f"The {trace.info.format} format does not describe content: there are no blocks and no reuse to report."
        )
    else:
        figures |= _reuse(trace, runs, columns, capacities, instances, order)
    return figures


def _runs(trace: Trace) -> Runs:
    """Return a function that maps a row to its block ids, as runs of consecutive ids.

    If the ids are hashes, they are hardly ever consecutive, so that runs would be short. In this case, renumber the ids
    in order of first appearance, so that runs become long.
    """
    if sum(trace.blocks.counts) >= RENUMBER * len(trace.blocks.counts):
        return trace.runs
    numbers: dict[int, int] = {}
    table = RunTable()
    for row in range(len(trace)):
        blocks = (block for first, count in trace.runs(row) for block in range(first, first + count))
        table.append(id_runs([numbers.setdefault(block, len(numbers)) for block in blocks]))
    return table.row


def _columns(trace: Trace, runs: Runs | None) -> Columns:
    columns = Columns(trace.arrival_ps, trace.prompt_tokens, trace.output_tokens)
    if trace.info.sessions:
        columns.session, columns.gap_ps = trace.session, _recorded_gaps(trace)
    elif runs is not None:
        derived = paths.derive(len(trace), runs)
        columns.session = derived.session
        columns.gap_ps = _gaps(trace, ((parent,) if parent >= 0 else () for parent in derived.parent))
    return columns


def _recorded_gaps(trace: Trace) -> array[int]:
    """Return the gap between each row and the requests that it waits for. By default, a request waits for the previous
    request of its session."""
    last: dict[int, int] = {}
    parents = []
    for row, session in enumerate(trace.session):
        before = trace.after.get(row) or ((last[session],) if session in last else ())
        parents.append(before if session != NONE else ())
        last[session] = row
    return _gaps(trace, parents)


def _gaps(trace: Trace, parents: Iterable[Sequence[int]]) -> array[int]:
    """Return the gap between each row and its latest parent. If the row has no parent or a timestamp is missing, the
    gap is NONE."""
    stamps = trace.arrival_ps
    gaps = array("q")
    for row, earlier in enumerate(parents):
        since = max((stamps[parent] for parent in earlier), default=NONE)
        gaps.append(stamps[row] - since if 0 <= since <= stamps[row] else NONE)
    return gaps


def _groups(trace: Trace, columns: Columns, by_label: Sequence[str | None], clock: bool) -> list[Json]:
    """Return statistics by tenant, kind or model. If the trace does not record these labels, return an empty list."""
    numbers: dict[str | None, int] = {}
    of_label = [numbers.setdefault(name, len(numbers)) for name in by_label]
    if all(name is None for name in numbers):
        return []
    return trace_statistics.groups(
        columns, array("q", (of_label[label] for label in trace.label)), list(numbers), clock
    )


def _sessions(trace: Trace, columns: Columns) -> Json | None:
    figures = trace_statistics.sessions(columns)
    if figures is None:
        return None
    begun: set[int] = set()
    think = array("q")
    for row, (session, think_ps) in enumerate(zip(trace.session, trace.think_ps, strict=True)):
        if think_ps != NONE and (session in begun or row in trace.after):  # a first turn waits for no other turn
            think.append(think_ps)
        begun.add(session)
    return figures | {
        "source": "recorded" if trace.info.sessions else "derived",
        "think_s": trace_statistics.seconds(think),
    }


def _reuse(
    trace: Trace,
    runs: Runs,
    columns: Columns,
    capacities: Sequence[int | None],
    instances: Sequence[int],
    order: reuse.Order,
) -> Json:
    size = trace.info.block_tokens
    assert size is not None

    def hits(places: Iterable[int], sizes: Sequence[int | None]) -> reuse.Hits:
        rows = range(len(trace))
        return reuse.hits(((runs(row), trace.prompt_tokens[row]) for row in rows), places, sizes, size, order)

    ideal = hits(cycle((0,)), (None,))
    total = max(ideal.referenced, 1)

    def table(placement: str, places: Callable[[int], Iterable[int]], counts: Iterable[int]) -> list[Json]:
        return [
            {
                "instances": count,
                "capacity": capacity,
                "block_hit_ratio": blocks / total,
                "placement": placement,
                "order": order,
            }
            for count in counts
            for capacity, blocks in zip(capacities, hits(places(count), capacities).blocks, strict=True)
        ]

    number = number_sessions()
    by_session = array("q", (number(None if session == NONE else session) for session in columns.session))
    several = [count for count in instances if count > 1] if len(by_session) else []
    return {
        "blocks": {"tokens": size, "distinct": ideal.distinct, "referenced": ideal.referenced},
        "ideal_reuse": {
            "block_hit_ratio": ideal.blocks[0] / total,
            "token_hit_ratio": ideal.tokens / sum(trace.prompt_tokens),
            "request_hit_ratio": ideal.requests / len(trace),
        },
        "reuse": table("round-robin", lambda count: cycle(range(count)), instances),
        "sticky_reuse": table("sticky", lambda count: (number % count for number in by_session), several),
    }
