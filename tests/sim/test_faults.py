"""What goes wrong with instances, to the picosecond: crashes, slowness, and what cannot be reached."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lived import Told, lived, ms, requests, rows, scenario, states

UP = partial(Told, (10, 2))
SLOWLY = {"interval": "10ms", "provisioning": "7ms", "model_load": "13ms"}


def test_a_slow_instance_takes_so_many_times_as_long_from_its_next_step_on(tmp_path: Path) -> None:
    # Tokens at 1.6, 11.6, 21.6 and, of the step under way as it strikes, 31.6; then of 20 ms until one begins at 71.6.
    fault = {"at": "25ms", "instance": "instance-0", "kind": "slow", "factor": 2, "duration": "45ms"}
    result = lived(scenario(requests(tmp_path, (0, 16, 8)), faults=[fault]))
    assert ms(result, "finished_ps") == [71.6 + 2 * 10]
    del fault["duration"]
    assert ms(lived(scenario(requests(tmp_path, (0, 16, 8)), faults=[fault])), "finished_ps") == [31.6 + 4 * 20]
    result = lived(scenario(requests(tmp_path, (0, 16, 4)), faults=[{**fault, "at": "11600us", "factor": 1.5}]))
    assert ms(result, "finished_ps") == [11.6 + 2 * 15]  # the step that begins as it strikes


def test_slownesses_multiply_with_each_other_and_with_the_warm_up(tmp_path: Path) -> None:
    warmup = {"duration": "60ms", "curve": "step", "penalty": 1.5}
    faults = [
        {"at": "20ms", "instance": "instance-1", "kind": "slow", "factor": 2, "duration": "30ms"},  # as it loads
        {"at": "40ms", "instance": "instance-1", "kind": "slow", "factor": 1.1},
    ]
    work = requests(tmp_path, (0, 16, 30), (31, 16, 5))
    result = lived(scenario(work, max_replicas=2, scaling={**SLOWLY, "warmup": warmup}, faults=faults), UP)
    tokens = [31 + 1.6 * 3, 35.8 + 30, 65.8 + 16.5, 82.3 + 16.5, 98.8 + 11]
    assert ms(result, "first_token_ps")[1] == pytest.approx(tokens[0])
    assert ms(result, "finished_ps")[1] == pytest.approx(tokens[4], abs=1e-9)


@pytest.mark.parametrize("retries", [0, 1])
def test_a_crash_loses_the_work_and_the_request_fails_or_is_computed_again(tmp_path: Path, retries: int) -> None:
    crash = {"at": "25ms", "instance": "instance-0", "kind": "crash"}
    given = scenario(requests(tmp_path, (0, 16, 8)), 2, faults=[crash], retries=retries)
    result = lived(given)
    row = rows(result)[0]
    if retries:
        assert (row["outcome"], row["instance"], row["retries"]) == ("completed", 1, 1)
        assert ms(result, "first_token_ps") == [25 + 1.6]  # since it came: what was streamed before is void
        assert ms(result, "finished_ps") == [26.6 + 70]
        assert result.summary()["latency"]["ttft"]["mean"] == 26.6
    else:
        assert (row["outcome"], row["output_tokens"]) == ("failed", 3)
        assert ms(result, "finished_ps") == [25]
        assert "instance-0 crashed" in row["reason"]
    assert states(result, 0) == [(0, "ready"), (25, "stopped")]


def test_a_request_is_sent_again_as_often_as_is_allowed(tmp_path: Path) -> None:
    faults = [
        {"at": f"{at}ms", "instance": f"instance-{at // 10 % 2}", "kind": "crash", "duration": "1ms"}
        for at in (20, 30, 40)
    ]
    result = lived(scenario(requests(tmp_path, (0, 16, 8)), 2, faults=faults, retries=2))
    assert (result.requests["outcome"], result.requests["retries"]) == (["failed"], [2])
    assert ms(result, "finished_ps") == [40]
    result = lived(scenario(requests(tmp_path, (0, 16, 8)), 2, faults=faults, retries=3))
    assert (result.requests["outcome"], result.requests["retries"]) == (["completed"], [3])
    assert ms(result, "finished_ps") == [40 + 1.6 + 70]


def test_a_crashed_instance_comes_back_as_a_new_one_would(tmp_path: Path) -> None:
    crash = {"at": "25ms", "instance": "instance-0", "kind": "crash", "duration": "10ms"}
    scaling = {
        "provisioning": "99ms",
        "model_load": "13ms",
        "warmup": {"duration": "40ms", "curve": "step", "penalty": 2},
    }
    work = requests(tmp_path, (0, 160, 1, 9), (24, 160, 9), (60, 160, 2, 9), (99, 16, 2))
    result = lived(scenario(work, 1, faults=[crash], scaling=scaling))
    back = [(25, "stopped"), (25, "provisioning"), (35, "loading"), (48, "warming"), (88, "ready")]
    assert states(result, 0) == [(0, "ready"), *back]
    assert result.requests["outcome"] == ["completed", "failed", "completed", "completed"]
    assert result.requests["cached_tokens"][2] == 0  # cold
    assert ms(result, "first_token_ps")[2] == 60 + 2 * 16


def test_an_unreachable_instance_loses_its_requests_and_keeps_its_cache(tmp_path: Path) -> None:
    fault = {"at": "25ms", "instance": "instance-0", "kind": "unreachable", "duration": "10ms"}
    work = requests(tmp_path, (0, 160, 1, 9), (24, 160, 9), (30, 16, 2), (60, 160, 2, 9))
    result = lived(scenario(work, 1, faults=[fault]))
    assert states(result, 0) == [(0, "ready"), (25, "unreachable"), (35, "ready")]
    assert result.requests["outcome"] == ["completed", "failed", "completed", "completed"]
    assert ms(result, "routed_ps")[2] == 35  # it waited at the router
    assert result.requests["cached_tokens"][3] == 144
    assert "instance-0 could not be reached" in rows(result)[1]["reason"]


def test_what_is_unreachable_while_it_warms_up_goes_on_warming_up(tmp_path: Path) -> None:
    fault = {"at": "40ms", "instance": "instance-1", "kind": "unreachable", "duration": "10ms"}
    given = scenario(requests(tmp_path, (0, 16, 12)), max_replicas=2, faults=[fault])
    given["scaling"] = {**SLOWLY, "warmup": {"duration": "40ms"}}
    late = [(30, "warming"), (40, "unreachable"), (50, "warming"), (70, "ready")]
    assert states(lived(given, UP), 1)[3:] == late


def test_faults_from_before_the_first_request_are_there_when_it_comes(tmp_path: Path) -> None:
    slow = {"at": "0s", "instance": "instance-0", "kind": "slow", "factor": 2}
    work = requests(tmp_path, (7, 160, 5))
    assert ms(lived(scenario(work, faults=[slow])), "finished_ps") == [7 + 32 + 80]
    assert ms(lived(scenario(work, faults=[{**slow, "duration": "10ms"}])), "finished_ps") == [7 + 32 + 40]
    assert ms(lived(scenario(work, faults=[{**slow, "duration": "7ms"}])), "finished_ps") == [7 + 16 + 40]
    crash = {"at": "5ms", "instance": "instance-0", "kind": "crash", "duration": "12ms"}
    result = lived(scenario(work, faults=[crash]))
    assert ms(result, "routed_ps") == [17]
    assert states(result, 0)[1:] == [(7, "stopped"), (7, "provisioning"), (17, "loading"), (17, "ready")]


def test_faults_on_what_is_not_there_and_after_the_end_leave_no_trace(tmp_path: Path) -> None:
    work = requests(tmp_path, (0, 16, 8))
    faults: list[dict[str, Any]] = [
        {"at": "5ms", "instance": "instance-1", "kind": "crash"},
        {"at": "5ms", "instance": "instance-1", "kind": "slow", "factor": 9},
        {"at": "12ms", "instance": "instance-1", "kind": "unreachable", "duration": "1h"},  # as it is provisioned
        {"at": "2h", "instance": "instance-0", "kind": "crash"},
    ]
    plain, struck = (lived(scenario(work, max_replicas=2, scaling=SLOWLY, faults=some), UP) for some in ([], faults))
    assert struck.requests == plain.requests
    assert struck.states == plain.states


def test_two_faults_at_one_instant_strike_in_their_order(tmp_path: Path) -> None:
    slow = {"at": "25ms", "instance": "instance-0", "kind": "slow", "factor": 2}
    crash = {"at": "25ms", "instance": "instance-0", "kind": "crash", "duration": "10ms"}
    work = requests(tmp_path, (0, 16, 8), (40, 16, 2))
    sound, slower = (lived(scenario(work, faults=faults)) for faults in ([slow, crash], [crash, slow]))
    assert ms(sound, "finished_ps")[1] == 40 + 11.6  # what stands there next is sound
    assert ms(slower, "finished_ps")[1] == 40 + 23.2
    twice = lived(scenario(work, faults=[crash, {**crash, "duration": "20ms"}]))
    assert states(twice, 0)[-2:] == [(45, "loading"), (45, "ready")]


def test_a_crashed_instance_is_replaced_where_the_pool_would_be_too_small(tmp_path: Path) -> None:
    crash = {"at": "25ms", "instance": "instance-0", "kind": "crash"}
    work = requests(tmp_path, (0, 16, 3), (30, 16, 2))
    given = scenario(work, 1, min_replicas=1, max_replicas=2, scaling=SLOWLY, faults=[crash])
    result = lived(given, Told)
    assert states(result, 0)[1:] == [(25, "stopped"), (25, "provisioning"), (32, "loading"), (45, "ready")]
    assert ms(result, "routed_ps") == [0, 45]
    given["cluster"]["min_replicas"] = 0
    given["scaling"]["patience"] = "50ms"
    result = lived(given, Told)
    assert states(result, 0)[1:] == [(25, "stopped")]
    assert result.requests["outcome"][1] == "rejected"
    assert ms(result, "finished_ps")[1] == 80
