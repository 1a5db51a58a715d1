"""What the section plans: order, sharing, determinism, independence of its streams, and what a trace replays."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from headway import hashing
from headway.config.section import read
from headway.types import PS_PER_SECOND
from headway.workload.spec import WorkloadSpec
from headway.workload.traffic import Planned

SCENARIO: dict[str, Any] = {
    "requests": 2000,
    "rate": "40/s",
    "arrival": "poisson",
    "prompt_tokens": {"dist": "normal", "mean": 512, "std": 128, "min": 16, "max": 2048},
    "output_tokens": {"dist": "normal", "mean": 256, "std": 64, "min": 8, "max": 1024},
    "prefix": {"groups": 20, "tokens": 256},
}


def spec(section: dict[str, Any]) -> WorkloadSpec:
    return read(WorkloadSpec, section, "workload")


def plan(section: dict[str, Any], seed: int = 7) -> list[Planned]:
    return list(spec(section).plan(seed, "llama"))


def without(*names: str, **changed: Any) -> dict[str, Any]:
    return {key: value for key, value in SCENARIO.items() if key not in names} | changed


def test_requests_come_in_order_with_whole_microseconds_and_their_model() -> None:
    planned = plan(SCENARIO)
    assert [item.request.id for item in planned] == list(range(2000))
    assert all(a.request.arrival_ps <= b.request.arrival_ps for a, b in pairwise(planned))
    assert all(item.request.arrival_ps % 10**6 == 0 for item in planned)
    assert all(item.request.path.tokens == item.request.prompt_tokens for item in planned)
    assert {item.request.model for item in planned} == {"llama"}
    assert {item.request.max_tokens for item in planned} == {None}


def test_the_first_tokens_of_a_prompt_are_its_groups() -> None:
    groups = set()
    for item in plan(SCENARIO):
        request, path = item.request, item.request.path
        assert request.shared_prefix_tokens == min(256, request.prompt_tokens)
        assert path.keys[0] % 4 == hashing.GROUP
        groups.add(path.keys[0] // 4)
        if request.prompt_tokens <= 256:
            assert path.ends == (request.prompt_tokens,)
        else:
            assert path.ends == (256, request.prompt_tokens)
            assert path.keys[1] == hashing.key(hashing.PROMPT, request.id)
    assert groups == set(range(20))


def test_without_groups_every_prompt_is_its_own() -> None:
    planned = plan(without("prefix"))
    assert len({item.request.path.keys for item in planned}) == 2000
    assert {item.request.shared_prefix_tokens for item in planned} == {0}


def test_share_and_popularity_decide_who_belongs_where() -> None:
    half = plan(without(prefix={"groups": 4, "tokens": 64, "share": 0.5}))
    members = [item.request.path.keys[0] // 4 for item in half if item.request.shared_prefix_tokens]
    assert len(members) == pytest.approx(1000, abs=120)
    zipf = plan(without(requests=20000, prefix={"groups": 4, "tokens": 64, "popularity": {"dist": "zipf", "s": 1}}))
    counts = [sum(item.request.path.keys[0] // 4 == group for item in zipf) for group in range(4)]
    for group, count in enumerate(counts):
        assert count == pytest.approx(20000 * 12 / 25 / (group + 1), rel=0.06)
    weighted = plan(without(prefix={"groups": 2, "tokens": 64, "popularity": [9, 1]}))
    assert sum(item.request.path.keys[0] // 4 for item in weighted) == pytest.approx(200, abs=70)
    # everyone keeps the group that full membership would have given it
    full = plan(without(prefix={"groups": 4, "tokens": 64}))
    joined = [
        item.request.path.keys[0] // 4
        for item, other in zip(full, half, strict=True)
        if other.request.shared_prefix_tokens
    ]
    assert joined == members


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert plan(SCENARIO) == plan(SCENARIO)
    assert plan(SCENARIO) != plan(SCENARIO, seed=8)


def test_adding_a_part_shifts_no_other() -> None:
    plain, grouped = plan(without("prefix")), plan(SCENARIO)
    declared = plan(without(max_tokens={"dist": "exponential", "mean": 5000, "min": 1024}))
    for a, b, c in zip(plain, grouped, declared, strict=True):
        assert a.request.arrival_ps == b.request.arrival_ps == c.request.arrival_ps
        assert a.request.prompt_tokens == b.request.prompt_tokens == c.request.prompt_tokens
        assert a.output_tokens == b.output_tokens == c.output_tokens
        assert b.request.path == c.request.path


def test_duration_and_requests_end_arrivals_whichever_comes_first() -> None:
    by_time = plan(without("requests", duration="10s", arrival="constant"))
    assert len(by_time) == 400
    assert by_time[-1].request.arrival_ps == 9_975 * PS_PER_SECOND // 1000
    assert len(plan(without(duration="10s", arrival="constant"))) == 400
    assert len(plan(without(requests=5, duration="10s"))) == 5
    assert plan(without("requests", duration="20s", rate="1/h")) == []


def test_an_output_never_exceeds_what_the_client_declared() -> None:
    for item in plan(without(max_tokens=200)):
        assert item.request.max_tokens == 200
        assert 1 <= item.output_tokens <= 200


def test_plans_are_streamed() -> None:
    endless = spec(without(requests=1_000_000_000)).plan(1, "m")
    assert len(list(islice(endless, 10))) == 10


def test_defaults_are_written_out_and_read_back_the_same() -> None:
    section = {"requests": 10, "rate": "2/s"}
    written = spec(section).resolved()
    assert written["arrival"] == "poisson"
    assert spec(written).resolved() == written
    assert plan(written) == plan(section)
    trace = spec({"trace": {"path": "a.jsonl"}}).resolved()
    assert trace["trace"]["speed"] == 1.0
    assert spec(trace).resolved() == trace


def test_the_defaults_of_the_parts_are_written_out_too() -> None:
    prefix = {"groups": 3, "tokens": 8}
    written = spec(without(arrival="gamma", prefix=prefix | {"popularity": "zipf"})).resolved()
    assert written["arrival"] == {"process": "gamma", "cv": 2.0}
    assert written["prefix"] == {**prefix, "share": 1.0, "popularity": {"dist": "zipf", "s": 1.0}}
    for popularity in ("uniform", [1, 2, 3]):
        assert (
            spec(without(prefix=prefix | {"popularity": popularity})).resolved()["prefix"]["popularity"] == popularity
        )


def test_plans_are_the_same_in_every_process() -> None:
    code = (
        "import json, sys; from headway.workload.spec import WorkloadSpec\n"
        "for p in WorkloadSpec(**json.loads(sys.argv[1])).plan(7, 'm'): print(p)"
    )
    section = without(requests=200, arrival={"process": "gamma", "cv": 3})
    elsewhere = subprocess.run(
        [sys.executable, "-c", code, json.dumps(section)],
        env=os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        text=True,
    ).stdout.splitlines()
    assert elsewhere == [str(plan) for plan in spec(section).plan(7, "m")] and len(elsewhere) == 200


def write(folder: Path, *rows: tuple[float, int, int, list[int]]) -> Path:
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def test_a_trace_replays_its_stamps_exactly_and_divides_them_by_speed(tmp_path: Path) -> None:
    file = write(tmp_path, (0, 5, 1, [0]), (1000, 5, 2, [0]), (1000.25, 5, 3, [1]), (10000, 5, 4, [0]))
    at = {
        speed: [
            item.request.arrival_ps
            for item in plan({"trace": {"format": "mooncake", "path": str(file), "speed": speed}})
        ]
        for speed in (1, 0.5, 2, 3, 0.1)
    }
    assert at[1] == [0, 10**12, 10**12 + 250_000_000, 10**13]
    assert at[0.5] == [2 * stamp for stamp in at[1]]
    assert at[0.1] == [10 * stamp for stamp in at[1]]
    assert at[2] == [stamp // 2 for stamp in at[1]]
    assert at[3] == [0, 333_333_333_333, 333_416_666_667, 3_333_333_333_333]


def test_a_trace_can_be_cut_by_count_by_time_and_by_declared_lengths(tmp_path: Path) -> None:
    file = write(tmp_path, *[(100 * number, 5, 40, [number]) for number in range(50)])
    trace = {"format": "mooncake", "path": str(file)}
    assert len(plan({"trace": trace | {"limit": 7}})) == 7
    assert len(plan({"trace": trace, "duration": "1s"})) == 10
    assert len(plan({"trace": trace | {"speed": 2}, "duration": "1s"})) == 20
    capped = plan({"trace": trace, "max_tokens": 30})
    assert {(item.request.max_tokens, item.output_tokens) for item in capped} == {(30, 30)}
