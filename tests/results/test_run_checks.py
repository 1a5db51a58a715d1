from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from recorders import SECOND, facts, fleet, record, rows

from headway.errors import InvariantError
from headway.results.checks import verify

DONE = {
    "arrival_ps": 10, "started_ps": 20, "first_token_ps": 30, "finished_ps": 40,
    "instance": 0, "outcome": "completed", "output_tokens": 2,
}  # fmt: skip


@given(rows())
def test_possible_runs_pass(made: list[dict[str, Any]]) -> None:
    verify(record(made), fleet(3), facts(ended_ps=20 * SECOND))


@pytest.mark.parametrize(
    "wrong",
    [
        {"admitted_ps": 9, "routed_ps": 12, "enqueued_ps": 13},  # before it arrived
        {"admitted_ps": 13, "routed_ps": 12, "enqueued_ps": 14},  # routed before it was admitted
        {"admitted_ps": 11, "routed_ps": 14, "enqueued_ps": 13},  # at its instance before it was sent there
        {"admitted_ps": 11, "routed_ps": 12, "enqueued_ps": 21},  # started before it came to the instance
        {"admitted_ps": -1},
        {"routed_ps": -1},
        {"enqueued_ps": -1},
        {"started_ps": 9},
        {"first_token_ps": 19},
        {"finished_ps": 29},
        {"finished_ps": -1},
        {"first_token_ps": -1},
        {"finished_ps": 11 * SECOND},
        {"output_tokens": 0},
        {"instance": -1},
        {"instance": 2},
        {"outcome": "in_flight"},
        {"outcome": "timed_out", "admitted_ps": 9},
        {"outcome": "timed_out", "admitted_ps": 13, "routed_ps": 12, "enqueued_ps": 14},
        {"outcome": "timed_out", "admitted_ps": 11, "routed_ps": 14, "enqueued_ps": 13},
        {"outcome": "timed_out", "enqueued_ps": 41},
        {"outcome": "rejected", "admitted_ps": 41, "routed_ps": -1, "enqueued_ps": -1},
        {"outcome": "failed", "instance": -1},
        {"outcome": "timed_out", "started_ps": -1},
        {"outcome": "timed_out", "finished_ps": 25},
        {"arrival_ps": 50, "outcome": "in_flight", "finished_ps": -1},
    ],
)
def test_an_impossible_request_is_refused(wrong: dict[str, Any]) -> None:
    verify(record([DONE]), fleet(2), facts())
    with pytest.raises(InvariantError, match="Request 1 is inconsistent"):
        verify(record([DONE, {**DONE, **wrong}]), fleet(2), facts())


def test_a_request_that_came_before_the_run_began_is_refused() -> None:
    with pytest.raises(InvariantError, match="Request 0 is inconsistent"):
        verify(record([DONE]), fleet(1), facts(started_ps=11))


def test_requests_out_of_order_or_without_an_outcome_are_refused() -> None:
    with pytest.raises(InvariantError, match="order of arrival"):
        verify(record([DONE, {"arrival_ps": 5, "outcome": "rejected"}]), fleet(1), facts())
    recorder = record([DONE])
    recorder.outcome[0] = 9
    with pytest.raises(InvariantError, match="1 requests arrived, but 0"):
        verify(recorder, fleet(1), facts())
    recorder = record([DONE])
    recorder.preemptions.append(0)
    with pytest.raises(InvariantError, match="Column preemptions has 2 rows"):
        verify(recorder, fleet(1), facts())


@pytest.mark.parametrize("counts", [{"abandoned": 1}, {"not_issued": -1, "abandoned": -1}, {"retried": 2}])
def test_turns_that_do_not_add_up_are_refused(counts: dict[str, int]) -> None:
    recorder = record([DONE])
    for name, count in counts.items():
        setattr(recorder, name, count)
    with pytest.raises(InvariantError, match=r"1 requests arrived, .* never issued"):
        verify(recorder, fleet(1), facts())


@pytest.mark.parametrize("figures", [{"busy_ps": 11 * SECOND}, {"peak_kv_blocks": 101}])
def test_an_instance_that_did_the_impossible_is_refused(figures: dict[str, int]) -> None:
    with pytest.raises(InvariantError, match="Instance i0"):
        verify(record([DONE]), fleet(1, **figures), facts())
