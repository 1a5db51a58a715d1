"""A trace's shape and reuse, against a brute-force cache written from the rule alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.workload.inspect import inspect


def brute_force(prompts: list[list[int]], instances: int, capacity: int | None) -> float:
    """Each cache is a list in order of use, the most recent last."""
    caches: list[list[int]] = [[] for _ in range(instances)]
    hits = 0
    for number, blocks in enumerate(prompts):
        cache = caches[number % instances]
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        for block in blocks:
            if block in cache:
                cache.remove(block)
            cache.append(block)
            while capacity is not None and len(cache) > capacity:
                cache.pop(0)
    return hits / sum(map(len, prompts))


def write(folder: Path, prompts: list[list[int]], stamps: list[float] | None = None) -> Path:
    path = folder / "t.jsonl"
    with path.open("w") as file:
        for number, ids in enumerate(prompts):
            at = stamps[number] if stamps else number
            row = {"timestamp": at, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=25),
    capacity=st.none() | st.integers(1, 12),
    instances=st.integers(1, 4),
)
def test_reuse_follows_the_rule(tmp_path: Path, prompts: list[list[int]], capacity: int | None, instances: int) -> None:
    found = inspect(write(tmp_path, prompts), capacities=[capacity], instances=[instances])["reuse"]
    assert found == [
        {
            "instances": instances,
            "capacity": capacity,
            "block_hit_ratio": pytest.approx(brute_force(prompts, instances, capacity)),
        }
    ]


def test_a_request_does_not_hit_itself_and_stops_at_the_first_miss(tmp_path: Path) -> None:
    path = write(tmp_path, [[1, 2, 3], [1, 2, 3], [9, 2, 3]])
    assert inspect(path)["reuse"][0]["block_hit_ratio"] == 3 / 9
    # a cache of two keeps the tail of a prompt, whose head is gone
    assert inspect(path, capacities=[2])["reuse"][0]["block_hit_ratio"] == 0


def test_sessions_continue_the_owner_of_the_deepest_match_but_not_a_shared_root(tmp_path: Path) -> None:
    prompts = [[0, 10 * number + 1] for number in range(20)]  # twenty users under one system prompt
    prompts += [[0, 1, 2], [0, 1, 2, 3], [0, 11, 12]]
    found = inspect(write(tmp_path, prompts))["sessions"]
    assert found["count"] == 20
    assert found["turns"]["max"] == 3
    assert found["multi_turn_share"] == 2 / 20
    assert found["requests_in_multi_turn_share"] == 5 / 23


def test_shape_of_even_arrivals(tmp_path: Path) -> None:
    found = inspect(write(tmp_path, [[number] for number in range(601)], [500.0 * number for number in range(601)]))
    assert found["requests"] == 601
    assert found["span_s"] == 300
    assert found["rate_per_s"] == pytest.approx(601 / 300)
    assert found["arrivals"]["cv"] == 0
    assert found["arrivals"]["idc"] == {"1s": 0, "10s": 0, "60s": 0}
    assert found["arrivals"]["peak_to_mean_60s"] == 1
    assert found["blocks"] == {"tokens": 512, "distinct": 601, "referenced": 601}
    assert sum(count for _, count in found["prompt_tokens"]["histogram"]) == 601


def test_a_single_request_has_a_shape_too(tmp_path: Path) -> None:
    found = inspect(write(tmp_path, [[1, 2]]), capacities=[1, None], instances=[1, 8])
    assert found["rate_per_s"] is None and found["arrivals"]["cv"] is None
    assert [entry["block_hit_ratio"] for entry in found["reuse"]] == [0, 0, 0, 0]
    json.dumps(found, allow_nan=False)


def test_a_format_without_content_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    found = inspect(path, capacities=[10])
    assert found["reuse"] == [] and found["blocks"] is None and found["sessions"] is None
    assert "nothing of content" in found["note"]
