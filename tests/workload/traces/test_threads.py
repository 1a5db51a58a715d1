"""Sessions derived from which prompts go on from which."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.workload.traces import paths, read_trace
from headway.workload.traces.blocks import id_runs
from headway.workload.traces.paths import derive

# What trace-formats.md says of the public traces: sessions, turns (p50, p90, p99, max, mean), the share of multi-turn
# sessions and of the requests in them, gaps in s (p50, p90, p99, max), and what a cap of 8 turns leaves.
FIGURES = {
    "conversation_trace.jsonl.gz": (
        7_373,
        (1, 3, 8, 43, 1.63),
        (0.306, 0.575),
        (123, 483, 1_477, 3_030),
        11_712,
    ),
    "synthetic_trace.jsonl.gz": (2_211, (1, 4, 12, 24, 1.81), (0.185, 0.548), (65, 294, 608, 793), 3_770),
}


def percentile(values: list[int], percent: int) -> float:
    ordered = sorted(values)
    below, share = divmod((len(ordered) - 1) * percent, 100)
    return (ordered[below] * (100 - share) + ordered[min(below + 1, len(ordered) - 1)] * share) / 100


def prompts(*rows: list[int]) -> paths.Threads:
    return derive(len(rows), lambda row: id_runs(rows[row]))


def test_a_request_continues_the_latest_owner_of_its_deepest_block() -> None:
    threads = prompts([1, 2], [1, 2, 3], [7], [1, 2, 4], [1, 2, 3, 5], [1, 2, 4, 6])
    assert list(threads.parent) == [-1, 0, -1, 1, 1, 3]
    assert list(threads.session) == [0, 0, 1, 0, 0, 0] and threads.count == 2


def test_a_block_of_a_tenth_of_the_requests_is_a_root_that_nobody_continues() -> None:
    users = [[0, 10 + number] for number in range(20)]
    assert prompts(*users).count == 20
    assert prompts(*users, [0, 10, 50]).count == 20
    few = [[0, 10 + number] for number in range(9)]  # of a short file, nine requests are no crowd
    assert prompts(*few).count == 1


def brute_force(rows: list[list[int]]) -> list[int]:
    """Block by block; an id here stands for itself and all before it."""
    chains = [[tuple(row[: end + 1]) for end in range(len(row))] for row in rows]
    references: dict[tuple[int, ...], int] = {}
    for chain in chains:
        for block in chain:
            references[block] = references.get(block, 0) + 1
    owner: dict[tuple[int, ...], int] = {}
    parents = []
    for number, chain in enumerate(chains):
        matched = [block for block in chain if block in owner]
        root = not matched or references[matched[-1]] >= max(10, len(rows) / 10)
        parents.append(-1 if root else owner[matched[-1]])
        owner.update(dict.fromkeys(chain, number))
    return parents


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=40))
def test_runs_give_what_single_blocks_give(rows: list[list[int]]) -> None:
    assert list(prompts(*rows).parent) == brute_force(rows)


@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_of_the_public_traces_are_found(name: str, traces: Path) -> None:
    sessions, turns_wanted, shares, gaps_wanted, capped = FIGURES[name]
    trace = read_trace(traces / "mooncake" / name)
    threads = derive(len(trace), trace.runs)
    assert threads.count == sessions
    turns = [0] * sessions
    gaps = []
    for row, parent in enumerate(threads.parent):
        turns[threads.session[row]] += 1
        if parent >= 0:
            gaps.append(trace.arrival_ps[row] - trace.arrival_ps[parent])
    found_turns = [percentile(turns, percent) for percent in (50, 90, 99, 100)]
    assert (*found_turns, round(len(trace) / sessions, 2)) == turns_wanted
    several = [count for count in turns if count > 1]
    assert (round(len(several) / sessions, 3), round(sum(several) / len(trace), 3)) == shares
    assert tuple(round(percentile(gaps, percent) / 10**12) for percent in (50, 90, 99, 100)) == gaps_wanted
    assert sum(min(count, 8) for count in turns) == capped
