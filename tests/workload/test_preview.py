"""A workload's first requests, looked at without serving them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fake_service import starts

from headway.types import PS_PER_SECOND, Path, Request
from headway.workload.preview import look, preview
from headway.workload.sessions import Chain, Session, Turn
from headway.workload.spec import WorkloadSpec
from headway.workload.traffic import OpenLoop, Planned, Sessions, Source


def plan_request(number: int, at_s: float, path: Path, output: int = 8, **more: Any) -> Planned:
    request = Request(number, round(at_s * PS_PER_SECOND), path.tokens, path, **more)
    return Planned(request, output, 1000 + number)


def test_all_of_a_small_workload_is_shown() -> None:
    figures = preview(WorkloadSpec(requests=50, rate="10/s", prompt_tokens=64, output_tokens=8))
    assert figures["requests"] == figures["expected_requests"] == 50 and figures["complete"]
    assert figures["prompt_tokens"]["mean"] == 64 and figures["output_tokens"]["total"] == 400
    assert figures["waits"] is False and figures["sessions"] is None
    assert [row["name"] for row in figures["tenants"]] == ["default"]
    json.dumps(figures, allow_nan=False)


def test_of_a_large_one_the_first_requests_are_and_it_starts_at_once() -> None:
    figures = preview(WorkloadSpec(requests=10**9, rate="1000/s", prompt_tokens=64, output_tokens=8), requests=100)
    assert figures["requests"] == 100 and not figures["complete"]
    assert figures["expected_requests"] == 10**9


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
    def expect(requests: int) -> Any:
        spec = WorkloadSpec(requests=requests, duration="100s", rate="100/s", arrival="constant")
        return preview(spec, requests=500)["expected_requests"]

    assert abs(expect(1_000_000) - 10_000) <= 25
    assert expect(2000) == 2000


def test_a_workload_of_exactly_as_many_requests_is_complete() -> None:
    assert preview(WorkloadSpec(requests=50, rate="10/s"), requests=50)["complete"]


def test_a_workload_without_requests_is_no_reason_to_fail() -> None:
    assert look(OpenLoop(()), 10) == {"requests": 0, "complete": True, "waits": False}


def test_ideal_reuse_counts_the_leading_tokens_that_were_asked_or_answered_before() -> None:
    rows = [
        plan_request(0, 0, Path((1, 2), (100, 150))),  # nothing is there yet
        plan_request(1, 1, Path((1, 3), (100, 120))),  # the shared 100
        plan_request(
            2, 2, Path((1, 2, 1000, 4), (100, 150, 158, 200))
        ),  # 150 and the eight tokens of request 0's answer
        plan_request(
            3, 3, Path((1, 5, 2), (50, 60, 70))
        ),  # half the shared run; what comes after a miss does not count
    ]
    figures = look(OpenLoop(rows), 10)["ideal_reuse"]
    assert figures["token_hit_ratio"] == (100 + 158 + 50) / (150 + 120 + 200 + 70)
    assert figures["request_hit_ratio"] == 3 / 4


def test_tenants_and_kinds_are_told_apart_and_their_rates_make_up_the_whole() -> None:
    rows = [
        plan_request(number, number, Path((number,), (10,)), tenant="ab"[number % 3 == 0], kind="chat")
        for number in range(120)
    ]
    figures = look(OpenLoop(rows), 1000)
    assert [(row["name"], row["requests"]) for row in figures["tenants"]] == [("a", 80), ("b", 40)]
    assert [row["name"] for row in figures["kinds"]] == ["chat"]
    each = [row["rate_over_time_per_s"] for row in figures["tenants"]]
    for first, other, both in zip(*each, figures["arrivals"]["rate_over_time_per_s"], strict=True):
        assert abs(first + other - both) < 1e-9


def conversations() -> Iterator[tuple[int, Session]]:
    for number in range(5):
        turns = (
            Turn(10, 5, Path((number * 10 + turn,), (10,)), 0, delay_ps=2 * PS_PER_SECOND * (turn > 0))
            for turn in range(3)
        )
        yield number * PS_PER_SECOND, Chain(f"s{number}", "default", "standard", turns, 3)


def test_turns_come_as_if_answers_came_at_once() -> None:
    figures = look(Sessions([Source(starts(conversations()))]), 100)
    assert figures["waits"] and figures["requests"] == 15
    assert figures["span_s"] == 8
    assert figures["sessions"]["count"] == 5 and figures["sessions"]["turns"]["max"] == 3
    assert figures["sessions"]["gap_s"]["min"] == figures["sessions"]["gap_s"]["max"] == 2


def test_a_closed_loop_without_any_pause_ends_where_the_look_does() -> None:
    def endless() -> Iterator[tuple[int, Session]]:
        number = 0
        while True:
            turn = Turn(10, 5, Path((number,), (10,)), 0)
            yield 0, Chain(None, "default", "standard", iter((turn,)), 1)
            number += 1

    figures = look(Sessions([Source(starts(endless()), users=4)]), 200)
    assert figures["requests"] == 200 and not figures["complete"]
    assert figures["span_s"] == 0 and figures["rate_per_s"] is None
