"""The parts of a request's time add up to its whole time, and name what the request waited for."""

from __future__ import annotations

from typing import Any

import pytest

import headway
from headway.results.findings.observed import Observed
from headway.results.records import Batch
from headway.results.time_split import PARTS

LOAD: dict[str, Any] = {
    "requests": 150,
    "rate": "60/s",
    "prompt_tokens": {"dist": "normal", "mean": 2000, "std": 800, "min": 50, "max": 9000},
    "output_tokens": {"dist": "normal", "mean": 120, "std": 60, "min": 2, "max": 400},
}
APART = {"architecture": "disaggregated", "prefill": {"instances": 2}, "decode": {"instances": 2}}
TIERS = {"gpu_blocks": 1500, "tiers": {"cpu": {"blocks": 20000}}}
# For each cluster: the part in which its requests spend most time, apart from decode.
CLUSTERS: dict[str, tuple[dict[str, Any], str]] = {
    "a small cache": ({"instances": 2, "kv": {"gpu_blocks": 1000}}, "queue.kv"),
    "small batches": ({"instances": 2, "max_batch_size": 4}, "queue.slots"),
    "one instance for the prompts of all": ({"instances": 1, "max_batch_tokens": 512}, "queue.prompt"),
    "tiers": ({"instances": 2, "kv": TIERS}, "queue.kv"),
    "swaps": ({"instances": 2, "kv": {**TIERS, "preemption": "swap"}}, "queue.kv"),
    "a slow link": ({**APART, "transfer": {"bandwidth": "1GB/s"}}, "transfer"),
    "a limit on handovers": ({**APART, "transfer": {"bandwidth": "1GB/s", "max_incoming": 2}}, "queue.handover"),
}
ENDS: dict[str, dict[str, Any]] = {"all end": {}, "clients give up": {"timeout": "3s"}, "the run is cut": {}}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("name", CLUSTERS)
def test_the_parts_add_up_and_the_longest_names_the_cause(name: str, end: str) -> None:
    cluster, longest = CLUSTERS[name]
    scenario: dict[str, Any] = {"workload": {**LOAD, **ENDS[end]}, "cluster": cluster}
    if end == "the run is cut":
        scenario["horizon"] = "2s"
    result = headway.simulate(scenario)
    run = Observed(result)
    for row in range(len(run.requests)):
        parts, finished = run.split.of(row), run.requests.finished_ps[row]
        whole = (finished if finished >= 0 else run.ended_ps) - run.requests.arrival_ps[row]
        assert sum(parts.values()) == whole
        assert all(part in PARTS and time > 0 for part, time in parts.items())
    if end == "all end":  # the begin of a transfer that never ends is not recorded
        total = run.split.total(range(len(run.requests)))
        total.pop("decode", None)
        assert max(total, key=total.__getitem__) == longest


@pytest.mark.parametrize("name", ["a small cache", "tiers", "a slow link"])
def test_a_request_without_a_place_in_the_batch_waits(name: str) -> None:
    result = headway.simulate({"workload": LOAD, "cluster": CLUSTERS[name][0]}, trace="full")
    rows = list(result.requests.rows())
    entries: dict[int, list[tuple[int, int]]] = {row: [] for row in range(len(rows))}
    for event in result.events:
        if isinstance(event, Batch):
            for row in event.entered:
                entries[row].append((event.at_ps, event.instance))
    early: dict[int, list[int]] = {}  # preemptions before the first token
    for each in result.preemptions:
        if each.at_ps < rows[each.request]["first_token_ps"]:
            early.setdefault(each.request, []).append(each.at_ps)
    waited = 0
    for row, each in enumerate(rows):
        if row not in early:
            assert entries[row][0][0] == each["started_ps"] + each["loading_ps"] + each["ready_ps"]
            assert each["interrupted_ps"] == 0
        elif not each["loading_ps"]:
            again = (next(at for at, _ in entries[row] if at >= out) - out for out in early[row])
            assert each["interrupted_ps"] == sum(again)
        if each["prefill_instance"] >= 0:
            assert each["joined_ps"] == next(at for at, instance in entries[row] if instance == each["instance"])
        waited += each["ready_ps"] + each["interrupted_ps"] + max(0, each["joined_ps"] - each["transferred_ps"])
    assert waited > 0


def test_a_retry_begins_with_no_time_in_loads_and_preemptions() -> None:
    crash = {"at": "4s", "kind": "crash", "instance": "instance-0", "duration": "1s"}
    scenario = {"workload": LOAD, "cluster": CLUSTERS["tiers"][0], "faults": [crash], "retries": 1}
    result = headway.simulate(scenario)
    run = Observed(result)
    assert sum(run.requests.retries) > 0 and sum(run.requests.interrupted_ps) > 0
    for row in range(len(run.requests)):
        parts = run.split.of(row)
        assert sum(parts.values()) == run.requests.finished_ps[row] - run.requests.arrival_ps[row]
        assert all(time > 0 for time in parts.values())


def test_the_words_say_for_what_late_requests_waited() -> None:
    cluster = {"instances": 2, "max_batch_size": 4}
    text = headway.summarize(headway.simulate({"workload": LOAD, "cluster": cluster, "slo": {"ttft": "1s"}}))
    assert "% was for a place in a full batch." in text
    assert "Engine: raise max_batch_size from 4 to 8" in text


def test_a_run_without_waits_says_nothing_of_them() -> None:
    calm = {**LOAD, "requests": 20, "rate": "1/s"}
    text = headway.summarize(headway.simulate({"workload": calm, "cluster": {"instances": 2}, "slo": {"ttft": "1ms"}}))
    assert "Of their wait at instances" not in text
