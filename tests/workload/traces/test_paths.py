"""Prompts as paths, from runs of ids: sharing is what the ids share, whichever way they are written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway import hashing
from headway.types import Path as Prompt
from headway.workload.traces import read_trace
from headway.workload.traces.blocks import beginning, id_runs, rest, shared_blocks
from headway.workload.traces.record import GLOBAL, LOCAL, Info, Reader, Record
from headway.workload.traces.table import Trace

SIZE = 4
prompts = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=8), st.integers(0, SIZE - 1), st.integers(0, 2)),
    min_size=1,
    max_size=14,
)


def common_tokens(record: Prompt, other: Prompt) -> int:
    shared = 0
    for a, end_a, b, end_b in zip(record.keys, record.ends, other.keys, other.ends, strict=False):
        if a != b:
            break
        shared = min(end_a, end_b)
        if end_a != end_b:
            break
    return shared


def common_ids(record: list[int], other: list[int]) -> int:
    shared = 0
    while shared < min(len(record), len(other)) and record[shared] == other[shared]:
        shared += 1
    return shared


def trace(rows: list[tuple[list[int], int, int]], scope: str, pair: tuple[int, int] | None = None) -> Trace:
    """Whole blocks only, and a rest without an id."""

    def records() -> Iterator[Record]:
        for ids, tail, session in rows:
            extra = {} if pair is None else {"tool_tokens": pair[0], "system_tokens": pair[1]}
            yield Record(len(ids) * SIZE + tail, 1, 0, id_runs(ids), session=f"s{session}", extra=extra)

    return Trace.load(Reader(Info("x", SIZE, whole_blocks=True, scope=scope), records()))


@given(prompts, st.sampled_from([GLOBAL, LOCAL]))
def test_whole_blocks_are_shared_where_ids_are_and_the_rest_is_of_its_own(
    rows: list[tuple[list[int], int, int]], scope: str
) -> None:
    path = trace(rows, scope).paths()
    for record, (ids, tail, session) in enumerate(rows):
        assert path(record).tokens == len(ids) * SIZE + tail
        assert list(path(record).ends) == sorted(set(path(record).ends))
        for other, (others, _, session_too) in enumerate(rows):
            same_space = scope == GLOBAL or session == session_too
            expected = common_ids(ids, others) * SIZE if same_space else 0
            if record == other:
                expected += tail
            assert common_tokens(path(record), path(other)) == expected


def test_a_growing_conversation_is_one_run() -> None:
    rows = [(list(range(length)), 1, 0) for length in (3, 5, 9, 9, 30)]
    path = trace(rows, GLOBAL).paths()
    assert [path(row).ends for row in range(5)] == [(12, 13), (20, 21), (36, 37), (36, 37), (120, 121)]
    assert len({path(row).keys[0] for row in range(5)}) == 1
    assert {path(row).keys[1] for row in range(5)} == {hashing.key(hashing.PROMPT, row) for row in range(5)}


def test_equally_long_system_prompts_are_shared_where_that_is_asked() -> None:
    rows = [([1, 2, 3, 4], 0, 0), ([1, 2, 3, 5], 0, 0), ([1, 2, 3, 4], 0, 1), ([9, 2], 0, 1)]
    built = trace(rows, LOCAL, pair=(5, 4))  # two whole blocks
    apart, shared = built.paths(), built.paths(share_system=True)
    assert common_tokens(apart(0), apart(2)) == 0
    assert common_tokens(shared(0), shared(2)) == 2 * SIZE
    assert common_tokens(shared(0), shared(1)) == 3 * SIZE
    assert common_tokens(shared(2), shared(3)) == 0


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)), st.integers(0, 9))
def test_runs_are_cut_and_compared_as_ids_are(record: list[int], other: list[int], count: int) -> None:
    def expand(runs: list[tuple[int, int]]) -> list[int]:
        return [first + at for first, length in runs for at in range(length)]

    assert expand(id_runs(record)) == record
    assert expand(beginning(id_runs(record), count)) == record[:count]
    assert expand(rest(id_runs(record), count)) == record[count:]
    single = [(block, 1) for block in other]
    assert shared_blocks(id_runs(record), single) == shared_blocks(single, id_runs(record)) == common_ids(record, other)


@pytest.mark.full
@pytest.mark.parametrize("share_system", [False, True])
def test_long_agentic_prompts_stay_a_handful_of_runs(traces: Path, share_system: bool) -> None:
    trace = read_trace(traces / "agentic-coding-weka" / "sessions_compact.jsonl.gz")
    path = trace.paths(share_system)
    assert len(trace) == 49_334
    assert sum(trace.blocks.counts) == 94_310_647
    assert sum(len(path(row).keys) for row in range(len(trace))) < 8 * len(trace)
    assert all(path(row).tokens == trace.prompt_tokens[row] for row in range(0, len(trace), 7))
