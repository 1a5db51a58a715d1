"""Prompts of a trace as runs of blocks: shorter to hold, and sharing exactly what the ids share."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.types import Path as Prompt
from headway.workload.traces import read_trace
from headway.workload.traces.table import Trace


def common_blocks(row: Prompt, other: Prompt, size: int) -> int:
    """Blocks, a partly filled last one included, that two prompts share according to their paths."""
    shared = 0
    for a, end_a, b, end_b in zip(row.keys, row.ends, other.keys, other.ends, strict=False):
        if a != b:
            break
        shared = -(-min(end_a, end_b) // size)
        if end_a != end_b:
            break
    return shared


def common_ids(row: list[int], other: list[int]) -> int:
    shared = 0
    while shared < min(len(row), len(other)) and row[shared] == other[shared]:
        shared += 1
    return shared


def load(folder: Path, prompts: list[tuple[int, list[int]]], size: int = 512) -> Trace:
    path = folder / "t.jsonl"
    with path.open("w") as file:
        for number, (tokens, ids) in enumerate(prompts):
            row = {"timestamp": number, "input_length": tokens, "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return read_trace(path, "mooncake", block_tokens=size)


def test_blocks_that_always_occur_together_are_one_run(tmp_path: Path) -> None:
    path = load(tmp_path, [(2000, [0, 1, 2, 3]), (2000, [0, 1, 4, 5]), (600, [6, 7])]).paths()
    assert path(0).ends == (1024, 2000) and path(1).ends == (1024, 2000)
    assert path(0).keys[0] == path(1).keys[0] and path(0).keys[1] != path(1).keys[1]
    assert path(2).ends == (600,)


def test_a_prompt_that_ends_inside_another_cuts_its_run_there(tmp_path: Path) -> None:
    path = load(tmp_path, [(2048, [0, 1, 2, 3]), (1024, [0, 1]), (700, [0, 1])]).paths()
    assert path(0).ends == (1024, 2048)
    assert path(1).ends == (1024,) and path(2).ends == (700,)
    assert path(0).keys[0] == path(1).keys[0] == path(2).keys[0]


def test_ids_that_do_not_commit_to_their_prefix_share_only_what_is_equal_from_the_start(tmp_path: Path) -> None:
    # block 9 stands after different beginnings, and twice in one prompt
    path = load(tmp_path, [(1024, [1, 9]), (1024, [2, 9]), (1536, [9, 9, 9]), (512, [9])]).paths()
    assert common_blocks(path(0), path(1), 512) == 0
    assert common_blocks(path(2), path(3), 512) == 1
    assert common_blocks(path(0), path(2), 512) == 0


def test_ids_may_be_large(tmp_path: Path) -> None:
    big = 2**64 - 1
    path = load(tmp_path, [(1024, [big, 2**63]), (1024, [big, 5])]).paths()
    assert common_blocks(path(0), path(1), 512) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(
        st.tuples(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(1, 4)), min_size=1, max_size=12
    )
)
def test_paths_share_what_ids_share(tmp_path: Path, prompts: list[tuple[list[int], int]]) -> None:
    rows = [(4 * (len(ids) - 1) + last, ids) for ids, last in prompts]
    trace = load(tmp_path, rows, size=4)
    path = trace.paths()
    for row, (tokens, ids) in enumerate(rows):
        assert path(row).tokens == tokens
        assert all(a < b for a, b in zip(path(row).ends, path(row).ends[1:], strict=False))
        for other, (_, others) in enumerate(rows):
            assert common_blocks(path(row), path(other), 4) == common_ids(ids, others)
