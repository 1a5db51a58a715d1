"""Findings about queues: priority inversion, head-of-line blocking, starvation."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from findings_made import drawn, kinds, of_kind, request, result, seen
from recorders import SECOND

import headway
from headway.policies.classes import CLASSES
from headway.results.findings import head_of_line_blocking, priority_inversion, starvation
from headway.results.waits import LONG_FACTOR, LONG_TOKENS, Waits
from headway.types import NO_PRIORITY, Priority

Json = dict[str, Any]


def mixed(**policies: Any) -> Json:
    """More than one instance can do: short realtime requests and long batch ones."""
    tenants = {
        "now": {"weight": 1, "priority": "realtime", "prompt_tokens": 200, "output_tokens": 20},
        "later": {"weight": 1, "priority": "batch", "prompt_tokens": 2000, "output_tokens": 50},
    }
    workload = {"tenants": tenants, "requests": 400, "rate": "60/s"}
    cluster = {"instances": 1, "latency": {"model": "roofline"}}
    return {"workload": workload, "cluster": cluster, "policies": policies}


# --- priority inversion ----------------------------------------------------------------------------------------------


def test_first_come_first_served_inverts_priorities() -> None:
    run = headway.simulate(mixed(scheduler="fcfs"))
    (finding,) = of_kind(run, "priority_inversion")
    assert finding.evidence["slo_class"] == "realtime"
    assert finding.count == finding.evidence["passed"] == run.summary()["pathology"]["priority_inversions"] > 100
    assert finding.evidence["passed_by_a_lower_class"] == finding.count
    assert finding.instances == [0]
    assert finding.title.startswith(f"{finding.count} of {finding.evidence['requests']} realtime requests waited while")
    assert "mostly one of class batch" in finding.title


def test_a_strict_priority_scheduler_inverts_none() -> None:
    run = headway.simulate(mixed(priority="by-class", scheduler={"name": "priority", "aging": 0}))
    assert run.summary()["pathology"]["priority_inversions"] == 0
    assert "priority_inversion" not in kinds(run)


@pytest.mark.parametrize("rate", ["20/s", "80/s"])
def test_a_priority_inversion_is_not_found_under_fcfs_with_a_single_class(rate: str) -> None:
    workload = {"requests": 500, "rate": rate, "prompt_tokens": {"dist": "lognormal", "mean": 1500, "std": 2000}}
    run = headway.simulate({"workload": workload, "cluster": {"instances": 2}, "policies": {"scheduler": "fcfs"}})
    assert run.summary()["pathology"]["priority_inversions"] == 0
    assert "priority_inversion" not in kinds(run)


class EveryThird:
    """One class, but every third request matters more."""

    def prioritise(self, request: Any, cluster: Any) -> Priority:
        return Priority(1.0) if request.id % 3 == 0 else NO_PRIORITY


def test_between_equal_classes_the_score_decides() -> None:
    workload = {"requests": 300, "rate": "60/s", "prompt_tokens": 2000, "output_tokens": 50}
    scenario = {"workload": workload, "cluster": {"instances": 1}}
    (finding,) = of_kind(headway.simulate(scenario, priority=EveryThird(), scheduler="fcfs"), "priority_inversion")
    assert finding.evidence["slo_class"] == "standard"
    assert finding.evidence["passed_by_a_lower_score"] == finding.count > 50
    assert all(row % 3 == 0 for row in finding.requests)
    assert "mostly one with a lower score" in finding.title
    strict = {"name": "priority", "aging": 0}
    assert "priority_inversion" not in kinds(headway.simulate(scenario, priority=EveryThird(), scheduler=strict))


def test_the_figures_of_an_inversion_are_exact() -> None:
    rows = [
        request(0, start=0, first=1, end=2),
        request(1, start=9, first=10, end=11, slo_class="realtime"),  # passed by the next two
        request(2, start=3, first=4, end=5),
        request(2.5, start=5, first=6, end=7, slo_class="batch"),
        request(6, start=8, first=9, end=10, slo_class="realtime"),  # passed by nobody
    ]
    (finding,) = priority_inversion.find(seen(rows))
    assert (finding.count, finding.severity, finding.requests) == (1, 0.5, [1])
    assert (finding.at_ps, finding.until_ps) == (5 * SECOND, 9 * SECOND)
    assert finding.evidence["longest_wait_after_s"] == finding.evidence["mean_wait_after_s"] == 4.0
    assert finding.title == (
        "1 of 2 realtime requests waited while their instance started a less important one, mostly one of class batch; "
        "they then waited up to 4.0 s longer."
    )


def test_who_gives_up_while_others_are_started_was_passed_too() -> None:
    rows = [
        request(0, slo_class="realtime", finished_ps=4 * SECOND, outcome="timed_out"),
        request(1, start=2, first=3, end=5, slo_class="batch"),
    ]
    (finding,) = priority_inversion.find(seen(rows))
    assert finding.requests == [0]


def test_another_instance_or_the_same_instant_is_no_inversion() -> None:
    rows = [
        request(0, start=5, first=6, end=7, slo_class="realtime"),
        request(1, start=2, first=3, end=4, slo_class="batch", instance=1),
        request(1, start=5, first=6, end=7, slo_class="batch"),
        request(0, start=0, first=1, end=2, slo_class="batch"),
    ]
    rows.sort(key=lambda row: row["arrival_ps"])
    assert priority_inversion.find(seen(rows, instances=2)) == []


def test_a_request_of_the_warm_up_is_not_counted_but_may_pass_others() -> None:
    rows = [
        request(0, start=3, first=4, end=5, slo_class="batch"),
        request(1, start=6, first=7, end=8, slo_class="realtime"),
    ]
    assert priority_inversion.find(seen(rows, scenario={"warmup": 1}))[0].requests == [1]
    assert priority_inversion.find(seen(rows, scenario={"warmup": 2})) == []


def importance(row: Json) -> tuple[int, float]:
    name = row["slo_class"] if row["slo_class"] in CLASSES else "standard"
    return -CLASSES.index(name), row["priority"]


@pytest.mark.parametrize("seed", range(60))
def test_inversions_are_those_that_looking_at_all_pairs_finds(seed: int) -> None:
    rng = Random(seed)
    rows = drawn(rng, rng.randrange(1, 40))
    waits = Waits(seen(rows, instances=3).requests, 1000)
    expected: dict[int, int] = {}
    for i, row in enumerate(rows):
        until = max(row.get("started_ps", -1), -1)
        until = until if until >= 0 else row.get("finished_ps", 1000)
        passers = [
            (importance(other), other["started_ps"], j)
            for j, other in enumerate(rows)
            if other["instance"] == row["instance"]
            and not other.get("redirects")
            and not row.get("redirects")
            and row["enqueued_ps"] < other.get("started_ps", -1) < until
            and importance(other) < importance(row)
        ]
        if passers:
            expected[i] = min(passers)[1]  # when the least important, of equals the first, was started
    findings = waits.inversions()
    assert {row: rows[other]["started_ps"] for row, other in findings.items()} == expected


# --- head-of-line blocking -------------------------------------------------------------------------------------------


def test_short_prompts_wait_for_long_ones() -> None:
    tenants = {
        "chat": {"weight": 9, "prompt_tokens": 100, "output_tokens": 20},
        "papers": {"weight": 1, "prompt_tokens": 16000, "output_tokens": 20},
    }
    workload = {"tenants": tenants, "requests": 300, "rate": "10/s"}
    run = headway.simulate({"workload": workload, "cluster": {"instances": 1}, "policies": {"scheduler": "fcfs"}})
    (finding,) = of_kind(run, "head_of_line_blocking")
    assert finding.count == finding.evidence["blocked"] > 30
    assert finding.evidence["share_of_wait"] == run.summary()["pathology"]["head_of_line_blocking"] > 0.3
    assert all(run.requests["tenant"][row] == "chat" for row in finding.requests)


def test_prompts_of_one_length_block_nobody() -> None:
    workload = {"requests": 300, "rate": "30/s", "prompt_tokens": 4000, "output_tokens": 20}
    run = headway.simulate({"workload": workload, "cluster": {"instances": 1}})
    assert run.summary()["latency"]["queue_wait"]["p50"] > 100  # they do wait
    assert run.summary()["pathology"]["head_of_line_blocking"] == 0
    assert "head_of_line_blocking" not in kinds(run)


def test_the_figures_of_blocking_are_exact() -> None:
    rows = [
        request(0, start=1, first=4, end=9, prompt_tokens=8192),
        request(2, start=5, first=6, end=7, prompt_tokens=100),  # waits for 3 s, 2 of them blocked
        request(2, start=6, first=7, end=8, prompt_tokens=2049),  # of a prompt that is not four times as long
    ]
    (finding,) = head_of_line_blocking.find(seen(rows))
    assert (finding.count, finding.requests) == (1, [1])
    assert finding.evidence["blocked_s"] == 2.0
    assert finding.evidence["waited_s"] == 1 + 3 + 4
    assert finding.evidence["share_of_wait"] == 2 / 8
    assert finding.severity == 2 / (4 + 4 + 5)
    assert "up to 2.0 s each; such blocking is 25.0 % of all waiting time" in finding.title


def test_what_was_found_in_the_cache_is_not_computed_and_blocks_nobody() -> None:
    rows = [
        request(0, start=1, first=4, end=9, prompt_tokens=8192, cached_tokens=8000),
        request(2, start=5, first=6, end=7, prompt_tokens=100),
    ]
    assert head_of_line_blocking.find(seen(rows)) == []


@pytest.mark.parametrize("seed", range(60))
def test_blocked_time_is_what_counting_instant_by_instant_finds(seed: int) -> None:
    rng = Random(seed)
    rows = drawn(rng, rng.randrange(1, 40))
    waits = Waits(seen(rows, instances=3).requests, 70)
    expected: dict[int, int] = {}
    for i, row in enumerate(rows):
        until = row.get("started_ps", row.get("finished_ps", 70))
        wanted = LONG_TOKENS
        while wanted < LONG_FACTOR * (row["prompt_tokens"] - row.get("cached_tokens", 0)):
            wanted *= 2
        longer = [
            other
            for j, other in enumerate(rows)
            if j != i
            and other["instance"] == row["instance"]
            and not other.get("redirects")
            and "started_ps" in other
            and other["prompt_tokens"] - other["cached_tokens"] >= wanted
        ]
        instants = range(row["enqueued_ps"], until) if not row.get("redirects") else ()
        blocked = sum(any(each["started_ps"] <= at < each["first_token_ps"] for each in longer) for at in instants)
        if blocked:
            expected[i] = blocked
    assert waits.blocked_ps() == expected


# --- starvation ------------------------------------------------------------------------------------------------------


def test_strict_priorities_starve_the_low_class() -> None:
    run = headway.simulate(mixed(priority="by-class", scheduler={"name": "priority", "aging": 0}))
    (finding,) = of_kind(run, "starvation")
    assert finding.evidence["slo_class"] == "batch"
    assert finding.evidence["shortest_wait_s"] >= 5
    assert finding.evidence["tenant"] == "later" and finding.evidence["tenant_starved"] == finding.count


def test_nobody_starves_where_first_come_is_first_served() -> None:
    run = headway.simulate(mixed(scheduler="fcfs"))
    assert run.summary()["latency"]["queue_wait"]["max"] > 5000  # however long they wait
    assert "starvation" not in kinds(run)


def test_the_figures_of_starvation_are_exact() -> None:
    rows = [request(0, start=0, first=1, end=2), request(0.5, start=20, first=21, end=22, tenant="slow")]
    rows += [request(1 + k, start=1 + k + 0.25, first=2 + k, end=3 + k) for k in range(12)]
    (finding,) = starvation.find(seen(rows))
    assert (finding.count, finding.requests, finding.severity) == (1, [1], starvation.SLIGHTEST)
    assert (finding.at_ps, finding.until_ps) == (SECOND // 2, 20 * SECOND)
    # Thirteen were started before it, and one of them had come before it.
    assert finding.evidence["longest_lost_places"] == 12
    assert finding.evidence["median_wait_s"] == 0.25
    assert finding.evidence["longest_wait_s"] == 19.5
    assert finding.evidence["tenant"] == "slow"


def test_the_usual_wait_counts_requests_that_start_at_the_first_instant() -> None:
    rows = [request(0, start=0, first=1, end=2) for _ in range(13)]
    rows += [request(0.5, start=20, first=21, end=22)]
    rows += [request(1 + k, start=1 + k + 0.25, first=2 + k, end=3 + k) for k in range(12)]
    (finding,) = starvation.find(seen(rows))
    assert finding.evidence["median_wait_s"] == 0


def test_who_waits_as_long_as_most_does_not_starve() -> None:
    rows = [request(0.5, start=20, first=21, end=22)]
    rows += [request(1 + k, start=4 + k, first=5 + k, end=6 + k) for k in range(12)]  # a median of 3 s
    assert starvation.find(seen(rows)) == []


def test_who_was_overtaken_by_few_does_not_starve() -> None:
    rows = [request(0.5, start=20, first=21, end=22)]
    rows += [request(1 + k, start=1.1 + k, first=2 + k, end=3 + k) for k in range(starvation.PLACES - 1)]
    assert starvation.find(seen(rows)) == []
    rows += [request(15, start=15.1, first=16, end=17)]
    assert starvation.find(seen(rows))[0].count == 1


def test_a_run_with_nothing_in_it_has_no_findings() -> None:
    assert kinds(result([])) == set()
