"""A workload's first requests, looked at without serving them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from headway.types import PS_PER_SECOND, Path, Request
from headway.workload.preview import look, preview
from headway.workload.sessions import Chain, Session, Turn
from headway.workload.spec import WorkloadSpec
from headway.workload.traffic import OpenLoop, Planned, Sessions, Source


def planned(number: int, at_s: float, path: Path, output: int = 8, **more: Any) -> Planned:
    request = Request(number, round(at_s * PS_PER_SECOND), path.tokens, path, **more)
    return Planned(request, output, 1000 + number)


def test_all_of_a_small_workload_is_shown() -> None:
    found = preview(WorkloadSpec(requests=50, rate="10/s", prompt_tokens=64, output_tokens=8))
    assert found["requests"] == found["expected_requests"] == 50 and found["complete"]
    assert found["prompt_tokens"]["mean"] == 64 and found["output_tokens"]["total"] == 400
    assert found["waits"] is False and found["sessions"] is None
    assert [row["name"] for row in found["tenants"]] == ["default"]
    json.dumps(found, allow_nan=False)


def test_of_a_large_one_the_first_requests_are_and_it_starts_at_once() -> None:
    found = preview(WorkloadSpec(requests=10**9, rate="1000/s", prompt_tokens=64, output_tokens=8), requests=100)
    assert found["requests"] == 100 and not found["complete"]
    assert found["expected_requests"] == 10**9


def test_where_only_a_duration_is_given_the_rate_so_far_tells_what_to_expect() -> None:
    spec = WorkloadSpec(duration="100s", rate="100/s", arrival="constant", prompt_tokens=64, output_tokens=8)
    assert abs(preview(spec, requests=500)["expected_requests"] - 10_000) <= 25
    assert preview(spec)["complete"]


def test_what_to_expect_of_a_duration_goes_with_the_profile() -> None:
    ramp = {"type": "ramp", "from": 0.5, "to": 2, "end": "100s"}
    spec = WorkloadSpec(duration="100s", rate="100/s", arrival="constant", profile=ramp)
    assert abs(preview(spec, requests=500)["expected_requests"] - 12_500) <= 30  # the first 500 have half the rate
    later = {"type": "step", "levels": [{"at": "0s", "multiplier": 0}, {"at": "50s", "multiplier": 1}]}
    both = {"now": {"rate": "10/s", "arrival": "constant"}, "later": {"rate": "10/s", "profile": later}}
    assert abs(preview(WorkloadSpec(duration="100s", tenants=both), requests=100)["expected_requests"] - 1500) <= 12


def test_of_requests_and_duration_the_one_that_ends_first_is_expected() -> None:
    def expected(requests: int) -> Any:
        spec = WorkloadSpec(requests=requests, duration="100s", rate="100/s", arrival="constant")
        return preview(spec, requests=500)["expected_requests"]

    assert abs(expected(1_000_000) - 10_000) <= 25
    assert expected(2000) == 2000


def test_a_workload_of_exactly_as_many_requests_is_complete() -> None:
    assert preview(WorkloadSpec(requests=50, rate="10/s"), requests=50)["complete"]


def test_a_workload_without_requests_is_no_reason_to_fail() -> None:
    assert look(OpenLoop(()), 10) == {"requests": 0, "complete": True, "waits": False}


def test_ideal_reuse_counts_the_leading_tokens_that_were_asked_or_answered_before() -> None:
    rows = [
        planned(0, 0, Path((1, 2), (100, 150))),  # nothing is there yet
        planned(1, 1, Path((1, 3), (100, 120))),  # the shared 100
        planned(2, 2, Path((1, 2, 1000, 4), (100, 150, 158, 200))),  # 150 and the eight tokens of request 0's answer
        planned(3, 3, Path((1, 5, 2), (50, 60, 70))),  # half the shared run; what comes after a miss does not count
    ]
    found = look(OpenLoop(rows), 10)["ideal_reuse"]
    assert found["token_hit_ratio"] == (100 + 158 + 50) / (150 + 120 + 200 + 70)
    assert found["request_hit_ratio"] == 3 / 4


def test_tenants_and_kinds_are_told_apart_and_their_rates_make_up_the_whole() -> None:
    rows = [
        planned(number, number, Path((number,), (10,)), tenant="ab"[number % 3 == 0], kind="chat")
        for number in range(120)
    ]
    found = look(OpenLoop(rows), 1000)
    assert [(row["name"], row["requests"]) for row in found["tenants"]] == [("a", 80), ("b", 40)]
    assert [row["name"] for row in found["kinds"]] == ["chat"]
    each = [row["rate_over_time_per_s"] for row in found["tenants"]]
    for one, other, both in zip(*each, found["arrivals"]["rate_over_time_per_s"], strict=True):
        assert abs(one + other - both) < 1e-9


def conversations() -> Iterator[tuple[int, Session]]:
    for number in range(5):
        turns = (
            Turn(10, 5, Path((number * 10 + turn,), (10,)), 0, delay_ps=2 * PS_PER_SECOND * (turn > 0))
            for turn in range(3)
        )
        yield number * PS_PER_SECOND, Chain(f"s{number}", "default", "standard", turns, 3)


def test_turns_come_as_if_answers_came_at_once() -> None:
    found = look(Sessions([Source(conversations())]), 100)
    assert found["waits"] and found["requests"] == 15
    assert found["span_s"] == 8
    assert found["sessions"]["count"] == 5 and found["sessions"]["turns"]["max"] == 3
    assert found["sessions"]["gap_s"]["min"] == found["sessions"]["gap_s"]["max"] == 2


def test_a_closed_loop_without_any_pause_ends_where_the_look_does() -> None:
    def endless() -> Iterator[tuple[int, Session]]:
        number = 0
        while True:
            turn = Turn(10, 5, Path((number,), (10,)), 0)
            yield 0, Chain(None, "default", "standard", iter((turn,)), 1)
            number += 1

    found = look(Sessions([Source(endless(), users=4)]), 200)
    assert found["requests"] == 200 and not found["complete"]
    assert found["span_s"] == 0 and found["rate_per_s"] is None
