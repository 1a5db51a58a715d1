"""Findings about single instances and about load that begets load: slow ones, hot prefixes, black holes, slow starts,
retry storms."""

from __future__ import annotations

from typing import Any

import pytest
from findings_made import kinds, of_kind, request, result, seen
from recorders import SECOND

import headway
from headway.results import loss
from headway.results.findings import black_hole, first_cause, hot_prefix, retry_storm, slow_instance, slow_start
from headway.results.recorder import ScaleRecord, StateChange
from headway.results.records import Blame
from headway.testing.troubles import NONE, named

Json = dict[str, Any]
SLO: Json = {"slo": {"ttft": "300ms", "tpot": "20ms"}}


def run_of(trouble: str, severity: str) -> headway.Result:
    return headway.simulate(named(trouble).build(severity))


# --- slow instances --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("trouble", "instance"), [("straggler", "instance-1"), ("straggler-prefill", "prefill-1")])
def test_an_instance_that_computes_several_times_slower_is_named(trouble: str, instance: str) -> None:
    finding = of_kind(run_of(trouble, "severe"), "slow_instance")[0]
    assert finding.blames == [Blame("instance", instance, 1.0)]
    assert 2 < finding.evidence["slowness"] < 15  # steps take ten times as long
    assert finding.explains > 0.5


@pytest.mark.parametrize("routing", ["round-robin", "random", "least-loaded"])
def test_instances_that_only_have_more_to_do_are_not_slow(routing: str) -> None:
    overloaded = {"workload": {"requests": 600, "rate": "200/s"}, "cluster": {"instances": 3}} | SLO
    run = headway.simulate(overloaded | {"policies": {"routing": routing}})
    assert run.findings() and "slow_instance" not in kinds(run)


def test_the_ranks_of_a_slow_engine_are_compared_with_those_of_other_engines() -> None:
    chat: Any = {"prompt_tokens": {"dist": "lognormal", "mean": 900, "std": 700}}
    chat |= {"output_tokens": {"dist": "lognormal", "mean": 180, "std": 110}}
    scenario: Any = {"workload": {"requests": 600, "rate": "50/s", **chat}, "cluster": {"instances": 2, "dp": 2}}
    scenario["cluster"] |= {"latency": {"model": "hardware", "host": "500us"}}  # at other speeds the engines saturate
    scenario |= {"slo": {"ttft": "400ms", "tpot": "25ms"}, "policies": {"routing": "round-robin"}}
    scenario |= {"faults": [{"at": "1s", "instance": "instance-1", "kind": "slow", "factor": 4}]}
    run = headway.simulate(scenario, progress=False)
    first = first_cause(run.findings())
    assert first is not None and first.kind == "slow_instance"
    assert first.blames[0].name.startswith("instance-1-rank-")
    assert first.evidence["slowness"] > 3


def test_an_instance_with_longer_prompts_is_not_slow() -> None:
    # The odd ones have eight times the prompt, and alternate with the others: one instance gets all of them.
    lengths = {"dist": "empirical", "values": [250, 2000]}
    workload = {"requests": 400, "rate": "30/s", "prompt_tokens": lengths, "output_tokens": 64}
    run = headway.simulate(
        {"workload": workload, "cluster": {"instances": 2}, "policies": {"routing": "lmetric"}} | SLO
    )
    assert "slow_instance" not in kinds(run)


def test_slowness_is_the_time_per_token_at_the_same_load() -> None:
    rows = []
    for k in range(200):
        slow = k % 4 == 3  # the instance that takes three times as long gets a third as many requests
        begin, factor = k * 0.05, 3 if slow else 1
        times = {"start": begin, "first": begin + 0.1 * factor, "end": begin + 0.9 * factor}
        rows.append(request(begin, **times, instance=int(slow), prompt_tokens=100, output_tokens=9))
    (finding,) = slow_instance.find(seen(rows, instances=2, scenario={"slo": {"e2e": "2s"}}))
    assert finding.instances == [1] and finding.explains == 0.96  # all but the first two that are late
    assert finding.evidence["slowness"] == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    ("prefill_s", "decode_s", "not_work"),
    [(0.05, 2.4, {"preempted_ps": round(1.6 * SECOND), "preemptions": 1}), (2.4, 0.05, {"loaded_tokens": 50})],
)
def test_time_after_preemptions_or_loads_is_not_slowness(prefill_s: float, decode_s: float, not_work: Json) -> None:
    def run(more: Json) -> Any:
        rows = []
        for k in range(200):
            begin, slow = k * 0.05, k % 4 == 3
            prefill, decode = (prefill_s, decode_s) if slow else (0.05, 0.8)
            times = {"start": begin, "first": begin + prefill, "end": begin + prefill + decode}
            rows.append(request(begin, **times, instance=int(slow), prompt_tokens=100, output_tokens=9))
            rows[-1] |= more if slow else {}
        return seen(rows, instances=2, scenario={"slo": {"e2e": "2s"}})

    assert slow_instance.find(run({}))
    assert not slow_instance.find(run(not_work))


# --- hot prefixes ----------------------------------------------------------------------------------------------------


def test_a_popular_prefix_that_heats_one_instance_is_named() -> None:
    run = run_of("hot-prefix", "severe")
    finding = of_kind(run, "hot_prefix")[0]
    assert finding.evidence["prefix_tokens"] == 1024 and finding.blames[0].kind == "prefix"
    spots = of_kind(run, "hot_spot")
    assert finding.explains > sum(spot.explains for spot in spots)  # they yield to it


def test_a_hot_spot_without_cached_prefixes_has_another_reason() -> None:
    busiest = {"workload": {"requests": 400, "rate": "60/s"}, "cluster": {"instances": 2}} | SLO
    run = headway.simulate(busiest | {"policies": {"routing": "always-busiest"}})
    assert of_kind(run, "hot_spot") and not of_kind(run, "hot_prefix")


def test_later_turns_of_sessions_share_no_prefix_with_others() -> None:
    def at(turn: int) -> list[Json]:
        cached = {"prompt_tokens": 100, "cached_tokens": 90, "predicted_tokens": 90, "turn": turn}
        times = {"start": 50, "first": 51, "end": 52}
        return [request(k * 0.1, **times, instance=1, session=f"s{k}", **cached) for k in range(40)]

    scenario = {"slo": {"ttft": "1s"}}
    assert hot_prefix.find(seen(at(0), instances=2, scenario=scenario))[0].count == 30  # while it is hot
    assert hot_prefix.find(seen(at(1), instances=2, scenario=scenario)) == []


# --- black holes -----------------------------------------------------------------------------------------------------


def hole(failing: int, crashes: int, count: int = 60) -> list[Any]:
    """Requests in turn to two instances, of which the second fails the first `failing` that it gets."""
    rows = []
    for k in range(count):
        lost = k % 2 and k // 2 < failing
        rows.append(request(k * 0.1, start=k * 0.1, first=k * 0.1 + 0.01, end=k * 0.1 + 0.05, instance=k % 2))
        if lost:
            rows[-1]["outcome"] = "failed"
    states = [StateChange(0, index, "ready") for index in (0, 1)]
    for crash in range(crashes):
        states += [StateChange((crash + 1) * SECOND, 1, "stopped"), StateChange((crash + 1) * SECOND + 1, 1, "ready")]
    return [rows, states]


def test_an_instance_that_fails_and_still_gets_its_share_is_a_black_hole() -> None:
    rows, states = hole(12, 2)
    (finding,) = black_hole.find(seen(rows, instances=2, states=states))
    assert (finding.instances, finding.count, finding.explains) == ([1], 12, 1.0)
    assert finding.evidence["failure_rate"] == 12 / 30 and finding.evidence["failure_rate_of_peers"] == 0


@pytest.mark.parametrize(("failing", "crashes"), [(9, 2), (12, 1), (0, 3)])
def test_one_crash_or_a_few_lost_requests_make_no_black_hole(failing: int, crashes: int) -> None:
    rows, states = hole(failing, crashes)
    assert black_hole.find(seen(rows, instances=2, states=states)) == []


# --- slow starts -----------------------------------------------------------------------------------------------------


def starting(delay_s: float, late: bool) -> Any:
    """Requests every 0.1 s for 20 s; those from 5 s to 10 s are late. The autoscaler adds a replica at 5 s."""
    waits = [1.0 if late and 50 <= k < 100 else 0.01 for k in range(200)]
    rows = [request(k * 0.1, start=k * 0.1, first=k * 0.1 + wait, end=k * 0.1 + 2) for k, wait in enumerate(waits)]
    change = ScaleRecord(5 * SECOND, "default", 1, 2, instances=[1], delays_ps=[round(delay_s * SECOND)])
    return seen(rows, instances=2, scenario={"slo": {"ttft": "500ms"}}, scaling_events=[change])


def test_requests_that_are_late_while_a_replica_loads_make_a_slow_start() -> None:
    (finding,) = slow_start.find(starting(5, late=True))
    assert finding.count == 50 and finding.explains == 1.0
    assert finding.evidence["longest_s"] == 5 and finding.resource == "replicas"


def test_late_requests_are_counted_although_only_some_are_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "MOST", 25)
    (finding,) = slow_start.find(starting(5, late=True))
    assert finding.count == finding.evidence["late"] == 50


def test_a_replica_that_serves_soon_or_without_late_requests_makes_none() -> None:
    assert slow_start.find(starting(0.5, late=True)) == []
    assert slow_start.find(starting(5, late=False)) == []


def test_an_autoscaler_with_quick_replicas_stays_quiet() -> None:
    assert "slow_start" not in kinds(run_of("slow-start", NONE))


# --- retry storms ----------------------------------------------------------------------------------------------------


def attempts(max_: int) -> Any:
    """Each of 30 requests times out after a second and comes again 0.5 s later, then once more after another second."""
    rows = []
    for k in range(30):
        for begin in (k * 0.1, k * 0.1 + 1.5, k * 0.1 + 3.5):
            rows.append(request(begin, start=begin, first=-1, end=begin + 1, prompt_tokens=10 + k, outcome="timed_out"))
    rows.sort(key=lambda row: row["arrival_ps"])
    workload = {"retry": {"max": max_, "backoff": "500ms"}, "timeout": "1s"}
    return seen(rows, scenario={"workload": workload})


def test_attempts_after_a_failure_are_found_by_their_time() -> None:
    (finding,) = retry_storm.find(attempts(2))
    assert finding.count == 60
    assert finding.explains > 60 / 90  # the others also suffer from them
    (once,) = retry_storm.find(attempts(1))
    assert once.count == 30


def test_clients_that_do_not_retry_make_no_storm() -> None:
    assert retry_storm.find(attempts(0)) == []


def test_the_turns_of_a_session_are_no_retries() -> None:
    def turns(same: bool) -> Any:
        rows = [
            request(k * 0.1, start=k * 0.1, first=99, end=100, session="a", turn=0 if same else k) for k in range(20)
        ]
        return retry_storm.find(seen(rows, scenario={"slo": {"ttft": "1s"}}))

    assert turns(same=False) == []
    assert turns(same=True)[0].count == 19


def test_a_run_without_late_requests_has_none_of_these() -> None:
    quiet = result([request(k, start=k, first=k + 0.1, end=k + 0.2) for k in range(30)], instances=2)
    assert kinds(quiet) == set()
