"""Instances that come and go, to the picosecond: how long each state lasts, how fast they are in it, and what becomes
of the requests when they go."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import headway
from lived import Told, lived, ms, requests, rows, scenario, states

UP = partial(Told, (10, 2))
SLOWLY = {"interval": "10ms", "provisioning": "7ms", "model_load": "13ms"}


# --- up ----------------------------------------------------------------------------------------------------------


def test_an_instance_is_ready_after_provisioning_and_loading_and_warming(tmp_path: Path) -> None:
    given = scenario(
        requests(tmp_path, (0, 16, 12)), max_replicas=2, scaling={**SLOWLY, "warmup": {"duration": "40ms"}}
    )
    result = lived(given, UP)
    warming = [(10, "provisioning"), (17, "loading"), (30, "warming"), (70, "ready")]
    assert states(result, 1) == [(0, "stopped"), *warming]
    assert states(result, 0) == [(0, "ready")]
    (event,) = result.scaling_events
    assert (event.at_ps, event.before, event.after, event.reason) == (10**10, 1, 2, "as told")
    (end,) = ms(result, "finished_ps")
    assert result.summary()["scaling"]["replica_seconds"] == pytest.approx((end + end - 10) / 1000)


def test_a_scaling_record_has_what_the_autoscaler_saw_and_the_delays_that_followed(tmp_path: Path) -> None:
    given = scenario(
        requests(tmp_path, (0, 16, 12)), max_replicas=2, scaling={**SLOWLY, "warmup": {"duration": "40ms"}}
    )
    (event,) = lived(given, UP).scaling_events
    assert (event.instances, event.delays_ps, event.warm_ps) == ([1], [20 * 10**9], [70 * 10**9])
    assert event.metrics is not None
    assert (event.metrics.replicas, event.metrics.inflight) == (1, 1)


def test_a_scaling_record_says_how_long_the_drain_took_and_what_never_came_to_serve(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 12)), max_replicas=2, scaling=SLOWLY)
    given["scaling"]["interval"] = "5ms"
    up, down = lived(given, partial(Told, (5, 2), (10, 1))).scaling_events
    assert (up.instances, up.delays_ps, up.warm_ps) == ([1], [-1], [-1])  # drained while it was provisioning
    assert (down.instances, down.delays_ps, down.warm_ps) == ([1], [0], [])


def test_without_delays_it_serves_at_the_instant_of_the_decision(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 5), (10.5, 16, 5)), max_replicas=2, scaling={"interval": "10ms"})
    result = lived(given, UP)
    assert states(result, 1) == [(0, "stopped"), (10, "provisioning"), (10, "loading"), (10, "ready")]
    assert result.requests["instance"] == [0, 1]
    assert ms(result, "first_token_ps") == [1.6, 12.1]


def test_what_comes_at_the_instant_at_which_an_instance_gets_ready_is_routed_before(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 5), (30, 16, 5), (30.5, 16, 5)), max_replicas=2, scaling=SLOWLY)
    assert lived(given, UP).requests["instance"] == [0, 0, 1]


FACTORS: dict[str, list[float]] = {  # of each quarter, at its middle, in whole thousandths
    "linear": [1.875, 1.625, 1.375, 1.125],
    "exponential": [1.688, 1.281, 1.117, 1.051],
    "step": [2, 2, 2, 2],
}
TOKENS: dict[str, list[float]] = {  # when they come: each step takes the factor in force when it begins
    "linear": [34, 52.75, 66.5, 77.75, 87.75],
    "exponential": [33.7008, 50.5808, 61.7508, 72.2608, 82.2608],
    "step": [34.2, 54.2, 74.2, 84.2, 94.2],
}


@pytest.mark.parametrize("curve", TOKENS)
@pytest.mark.parametrize("tokens", [2, 3, 4, 5])
def test_a_step_takes_the_factor_of_the_warm_up_in_force_when_it_begins(
    tmp_path: Path, curve: str, tokens: int
) -> None:
    at = 31.0
    for number, came in enumerate(TOKENS[curve]):  # the figures above, once more
        quarter = int((at - 30) // 10)
        factor = FACTORS[curve][quarter] if quarter < 4 else 1
        assert came == pytest.approx(at + factor * (10 if number else 1.6), abs=1e-9)
        at = came
    warmup = {"duration": "40ms", "curve": curve, "penalty": 2, "pieces": 4}
    work = requests(tmp_path, (0, 16, 12), (31, 16, tokens))
    result = lived(scenario(work, max_replicas=2, scaling={**SLOWLY, "warmup": warmup}), UP)
    assert result.requests["instance"] == [0, 1]
    assert ms(result, "first_token_ps")[1] == TOKENS[curve][0]
    assert ms(result, "finished_ps")[1] == TOKENS[curve][tokens - 1]


def test_warming_up_is_over_to_the_picosecond(tmp_path: Path) -> None:
    """The step that begins as the warm-up ends is as fast as any; one that begins a picosecond before is not."""
    warmup = {"duration": "20ms", "curve": "step", "penalty": 3}
    # The prompt is computed in 4.8 ms, the next two tokens in 30 ms each; so the warm-up ends at 50 ms in the first.
    for at, end in ((45.2, 45.2 + 4.8 + 10), (45.1999, 45.1999 + 4.8 + 30)):
        work = requests(tmp_path, (0, 16, 12), (at, 16, 2))
        result = lived(scenario(work, max_replicas=2, scaling={**SLOWLY, "warmup": warmup}), UP)
        assert ms(result, "finished_ps")[1] == pytest.approx(end, abs=1e-9)


def test_the_cache_of_a_new_replica_is_cold_also_where_another_stood(tmp_path: Path) -> None:
    """Up at 10 ms, down at 70 ms, up again at 100 ms, in the same place; the same prompt comes before and after."""
    work = requests(
        tmp_path, (0, 160, 30), (15, 160, 2, 9), (45, 160, 2, 9), (105, 160, 2, 9), (145, 160, 2, 9), (250, 16, 2)
    )
    given = scenario(work, max_replicas=2, scaling={"interval": "10ms"})
    result = lived(given, lambda: Told((10, 2), (70, 1), (100, 2)))
    assert result.requests["instance"][:5] == [0, 1, 1, 1, 1]
    assert [name for _, name in states(result, 1)] == [
        *("stopped", "provisioning", "loading", "ready", "draining", "stopped"),
        *("provisioning", "loading", "ready"),
    ]
    assert result.requests["cached_tokens"][:5] == [0, 0, 144, 0, 144]


# --- down --------------------------------------------------------------------------------------------------------

DOWN = partial(Told, (10, 1))
BUSY = ((0, 16, 30), (1, 16, 8), (2, 16, 30))  # the second goes to instance-1 alone


def test_draining_waits_for_the_last_request(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, *BUSY, (15, 16, 2)), 2, min_replicas=1, scaling={"interval": "10ms"})
    result = lived(given, DOWN)
    assert result.requests["outcome"] == ["completed"] * 4
    assert result.requests["instance"] == [0, 1, 0, 0]  # who has the fewest goes; what comes then goes to the other
    assert states(result, 1) == [(0, "ready"), (10, "draining"), (1 + 1.6 + 70, "stopped")]


def test_draining_waits_until_its_timeout_and_what_is_left_is_lost(tmp_path: Path) -> None:
    drain = {"mode": "wait", "timeout": "30ms"}
    given = scenario(requests(tmp_path, *BUSY), 2, min_replicas=1, scaling={"interval": "10ms", "drain": drain})
    result = lived(given, DOWN)
    assert states(result, 1)[1:] == [(10, "draining"), (40, "stopped")]
    assert result.requests["outcome"] == ["completed", "failed", "completed"]
    assert result.requests["output_tokens"][1] == 4  # at 2.6, 12.6, 22.6, 32.6
    result = lived({**given, "retries": 1}, DOWN)
    assert result.requests["outcome"] == ["completed"] * 3
    assert result.requests["retries"] == [0, 1, 0]
    given["scaling"]["drain"] = {"mode": "wait", "timeout": "0s"}
    assert states(lived(given, DOWN), 1)[1:] == [(10, "draining"), (10, "stopped")]


@pytest.mark.parametrize("retries", [0, 1])
def test_draining_at_once_loses_the_work(tmp_path: Path, retries: int) -> None:
    given = scenario(requests(tmp_path, *BUSY), 2, min_replicas=1, retries=retries)
    given["scaling"] = {"interval": "10ms", "drain": {"mode": "immediate"}}
    result = lived(given, DOWN)
    assert states(result, 1)[1:] == [(10, "draining"), (10, "stopped")]
    row = rows(result)[1]
    if retries:
        assert (row["outcome"], row["retries"], row["instance"]) == ("completed", 1, 0)
        assert row["first_token_ps"] > 10 * 10**9
    else:
        assert (row["outcome"], row["finished_ps"], row["output_tokens"]) == ("failed", 10 * 10**9, 1)


def test_what_is_redirected_keeps_its_tokens_and_has_the_rest_computed_elsewhere(tmp_path: Path) -> None:
    """Its tokens come at 1.6, 11.6 and 21.6 ms; at 25 ms the step under way is lost. The other instance is busy until
    27 ms; then it computes the 16 tokens of the prompt and the three in 1.9 ms, and with that the fourth comes."""
    given = scenario(requests(tmp_path, (0, 270, 1), (0, 16, 8)), 2, min_replicas=1)
    given["scaling"] = {"interval": "25ms", "drain": {"mode": "redirect"}}
    result = lived(given, partial(Told, (25, 1)))  # of two with a request each the last goes
    row = rows(result)[1]
    assert (row["outcome"], row["redirects"], row["output_tokens"]) == ("completed", 1, 8)
    assert (row["instance"], row.get("retries", 0)) == (0, 0)
    assert ms(result, "first_token_ps") == [27, 1.6]
    assert ms(result, "finished_ps") == [27, 27 + 1.9 + 4 * 10]
    gaps = result.summary()["latency"]["itl"]
    assert (gaps["max"], gaps["min"]) == (10, pytest.approx(28.9 - 21.6))
    assert [one["output_tokens"] for one in result.summary()["instances"]] == [1 + 5, 3]  # where they were generated
    assert states(result, 1)[1:] == [(25, "draining"), (25, "stopped")]


class Last:
    """The last of those that serve."""

    def route(self, request: Any, cluster: Any) -> Any:
        from headway import Route

        return Route(cluster.instances[-1].id)


@pytest.mark.parametrize("drain", ["wait", "immediate", "redirect"])
@pytest.mark.parametrize("retries", [0, 2])
def test_every_request_has_one_outcome_however_instances_drain(tmp_path: Path, drain: str, retries: int) -> None:
    work = requests(tmp_path, *((at * 3, 40, 1 + at % 9) for at in range(60)))
    given = scenario(work, 2, min_replicas=0, max_replicas=4, max_batch_size=4, retries=retries)
    given["scaling"] = {**SLOWLY, "drain": {"mode": drain}}
    result = lived(given, lambda: Told((20, 4), (40, 1), (60, 0), (80, 3), (110, 1), (150, 4), (160, 0), (170, 2)))
    found = result.summary()["requests"]
    assert found["arrived"] == 60 == sum(found[name] for name in ("completed", "failed"))
    if drain == "redirect":
        assert found["completed"] == 60
        assert sum(result.requests["redirects"]) > 0
    elif drain == "wait":
        assert found["completed"] == 60
    else:
        assert (found["failed"] > 0) == (retries == 0) or sum(result.requests["retries"]) > 0


def test_who_is_not_up_yet_or_cannot_be_reached_goes_first(tmp_path: Path) -> None:
    unreachable = {"at": "5ms", "instance": "instance-0", "kind": "unreachable"}
    given = scenario(requests(tmp_path, (0, 16, 12)), 3, min_replicas=0, max_replicas=4, faults=[unreachable])
    given["scaling"] = SLOWLY
    result = lived(given, lambda: Told((10, 4), (20, 3), (40, 2), (50, 1)), routing=Last())
    assert result.requests["instance"] == [2]
    assert states(result, 3) == [(0, "stopped"), (10, "provisioning"), (17, "loading"), (20, "stopped")]
    assert states(result, 0) == [(0, "ready"), (5, "unreachable"), (40, "draining"), (40, "stopped")]
    assert states(result, 1) == [(0, "ready"), (50, "draining"), (50, "stopped")]  # it is idle
    assert states(result, 2) == [(0, "ready")]


def test_what_drains_still_has_its_place_and_counts_against_the_most(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 9), (1, 16, 6), (20, 16, 9)), 2, min_replicas=1, max_replicas=2)
    given["scaling"] = {"interval": "10ms"}
    result = lived(given, lambda: Told((10, 1), (20, 2)))
    # Instance 1 drains until 52.6 ms, and only the check after that finds a place.
    assert states(result, 1)[1:5] == [(10, "draining"), (52.6, "stopped"), (60, "provisioning"), (60, "loading")]
    assert [(event.at_ps / 10**9, event.after) for event in result.scaling_events] == [(10, 1), (60, 2)]


# --- nobody there ------------------------------------------------------------------------------------------------


def test_scaled_to_zero_and_back_requests_wait_at_the_router(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 1), (15, 16, 2), (21, 16, 2)), 1, min_replicas=0, scaling=SLOWLY)
    result = lived(given, lambda: Told((10, 0), (30, 1)))
    up = [(10, "stopped"), (30, "provisioning"), (37, "loading"), (50, "ready")]
    assert states(result, 0) == [(0, "ready"), (10, "draining"), *up]
    assert ms(result, "routed_ps") == [0, 50, 50]
    assert ms(result, "first_token_ps")[1:] == [53.2, 53.2]
    assert result.requests["outcome"] == ["completed"] * 3


def test_who_waits_for_an_instance_for_too_long_is_turned_away(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 1), (15, 16, 2), (31, 16, 2)), 1, min_replicas=0)
    given["scaling"] = {**SLOWLY, "patience": "20ms"}
    result = lived(given, lambda: Told((10, 0), (30, 1)))
    assert result.requests["outcome"] == ["completed", "rejected", "completed"]
    assert ms(result, "finished_ps")[1] == 35
    assert rows(result)[1]["reason"] == "503: no instance came up within 20ms"


def test_whose_patience_ends_as_an_instance_comes_up_is_turned_away(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 1), (15, 16, 2)), 1, min_replicas=0)
    given["scaling"] = {**SLOWLY, "patience": "35ms"}
    result = lived(given, lambda: Told((10, 0), (30, 1)))
    assert ms(result, "finished_ps")[1] == 50
    assert result.requests["outcome"][1] == "rejected"


def test_clients_give_up_while_they_wait_for_an_instance(tmp_path: Path) -> None:
    work = {**requests(tmp_path, (0, 16, 1), (15, 16, 2), (40, 16, 2)), "timeout": "20ms"}
    given = scenario(work, 1, min_replicas=0, scaling=SLOWLY)
    result = lived(given, lambda: Told((10, 0), (30, 1)))
    assert result.requests["outcome"] == ["completed", "timed_out", "timed_out"]
    assert ms(result, "finished_ps")[1:] == [35, 61.6]  # the third with its step that is under way at 60 ms


def test_a_redirected_request_waits_with_the_tokens_it_has_and_may_give_up(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 8)), 1, min_replicas=0)
    given["scaling"] = {**SLOWLY, "drain": {"mode": "redirect"}}
    make = partial(Told, (20, 0), (30, 1))
    result = lived(given, make)
    assert ms(result, "finished_ps") == [50 + 1.8 + 50]  # two tokens of eight had come
    given["scaling"]["patience"] = "10ms"
    row = rows(lived(given, make))[0]
    assert (row["outcome"], row["output_tokens"], row["finished_ps"]) == ("rejected", 2, 30 * 10**9)
    given["workload"]["timeout"] = "25ms"
    row = rows(lived(given, make))[0]
    assert (row["outcome"], row["output_tokens"], row["finished_ps"]) == ("timed_out", 2, 25 * 10**9)


def test_what_waits_in_the_queue_of_the_router_waits_no_longer_than_others_for_an_instance(tmp_path: Path) -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 1}
    crash = {"at": "10ms", "instance": "instance-0", "kind": "crash"}
    given = scenario(requests(tmp_path, (0, 160, 5), (1, 160, 5), (12, 160, 5)), faults=[crash])
    given |= {"policies": {"routing": "least-loaded", "flow": flow}, "scaling": {"patience": "50ms"}}
    for routers in (None, {"count": 2}):
        result = lived({**given, "routers": routers})
        assert result.requests["outcome"][0] == "failed"
        assert result.requests["outcome"][2] == "rejected"
        if routers is None:
            assert result.requests["outcome"] == ["failed", "rejected", "rejected"]
            assert ms(result, "finished_ps") == [10, 60, 62]
            assert rows(result)[1]["reason"] == "503: no instance came up within 50ms"
    given["faults"][0]["duration"] = "20ms"
    result = lived(given)
    assert result.requests["outcome"] == ["failed", "completed", "completed"]
    assert ms(result, "routed_ps")[1] == 30


@pytest.mark.parametrize("horizon", [5, 12, 20, 40, 75])
def test_the_horizon_may_fall_into_any_state(tmp_path: Path, horizon: int) -> None:
    given = scenario(requests(tmp_path, *BUSY), 2, min_replicas=0, max_replicas=3, horizon=f"{horizon}ms")
    given["scaling"] = {**SLOWLY, "warmup": {"duration": "40ms"}}
    result = lived(given, lambda: Told((10, 3), (50, 1)))
    last = {5: ["ready", "ready", "stopped"], 12: ["ready", "ready", "provisioning"], 20: ["ready", "ready", "loading"]}
    last |= {40: ["ready", "ready", "warming"], 75: ["ready", "stopped", "stopped"]}
    assert [states(result, place)[-1][1] for place in range(3)] == last[horizon]
    held = {5: 10, 12: 26, 20: 50, 40: 110, 75: 75 + 72.6 + 40}[horizon]
    assert result.summary()["scaling"]["replica_seconds"] == pytest.approx(held / 1000)


def test_provisioning_may_take_hours_and_the_run_does_not_wait_for_it(tmp_path: Path) -> None:
    scaling = {"interval": "10ms", "provisioning": "5h", "model_load": "30m"}
    result = lived(scenario(requests(tmp_path, (0, 16, 8)), max_replicas=3, scaling=scaling), partial(Told, (10, 3)))
    assert [states(result, place)[-1] for place in (1, 2)] == [(10, "provisioning")] * 2
    assert result.summary()["duration_s"] == 0.0716


def test_without_an_interval_and_without_triggers_nothing_is_scaled(tmp_path: Path) -> None:
    given = scenario(requests(tmp_path, (0, 16, 8)), max_replicas=2, scaling={"interval": None})
    result = lived(given, partial(Told, (0, 2)))
    assert result.scaling_events == []
    assert states(result, 1) == [(0, "stopped")]


def test_a_pool_of_at_most_one_may_come_and_go(tmp_path: Path) -> None:
    work = requests(tmp_path, *((at * 40, 16, 3) for at in range(10)))
    given = scenario(work, 1, min_replicas=0, max_replicas=1, scaling={**SLOWLY, "drain": {"mode": "redirect"}})
    result = lived(given, lambda: Told(*((at, at // 30 % 2) for at in range(0, 600, 30))))
    assert result.requests["outcome"] == ["completed"] * 10
    assert len(result.scaling_events) > 8


def test_who_waits_in_vain_at_the_router_counts_as_a_miss_that_the_autoscaler_sees() -> None:
    """One replica serves a third of the load in time; the others leave the queue before they are sent."""
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 8, "ttl": "500ms"}
    given = {
        "workload": {"duration": "2m", "rate": "20/s", "prompt_tokens": 80, "output_tokens": 100},
        "cluster": {"instances": 1, "max_replicas": 6, "max_batch_size": 8, "latency": {"model": "fixed"}},
        "policies": {"routing": "least-loaded", "scaling": "slo-driven", "flow": flow},
        "scaling": {"interval": "5s"},
        "slo": {"ttft": "2s"},
    }
    summary = headway.simulate(given).summary()
    assert summary["requests"]["timed_out"] > 0
    assert summary["scaling"]["pools"][0]["max_replicas"] >= 3
