"""The timeline of a run is a file that trace viewers take, and shows exactly what the records say."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from decimal import Decimal
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from told_runs import PREFIXES, RUNS, told_run

from conftest import Run
from headway.errors import HeadwayError
from headway.experiment.run import simulate
from headway.results.result import Result
from headway.results.timeline import timeline, write

Event = dict[str, Any]
# The fields of each phase in the Trace Event Format that we write: those it must have, and those it may.
FIELDS = {
    "X": ({"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}, set()),
    "b": ({"name", "cat", "ph", "ts", "id", "pid", "tid", "args"}, set()),
    "e": ({"name", "cat", "ph", "ts", "id", "pid", "tid"}, set()),
    "i": ({"name", "cat", "ph", "ts", "s", "pid", "tid", "args"}, set()),
    "C": ({"name", "ph", "ts", "pid", "tid", "args"}, set()),
    "s": ({"name", "cat", "ph", "ts", "id", "pid", "tid"}, set()),
    "f": ({"name", "cat", "ph", "ts", "id", "pid", "tid", "bp"}, set()),
    "M": ({"name", "ph", "pid", "tid", "args"}, set()),
}
METADATA = {"process_name", "thread_name", "process_sort_index", "thread_sort_index"}


@cache
def told_events(name: str) -> list[Event]:
    """The events of one of the small runs, parsed once for all tests; nothing changes them."""
    return events(told_run(name))


def events(result: Result) -> list[Event]:
    """Parsed strictly: no number loses a digit, no key is there twice, and nothing is no number."""
    text = b"".join(timeline(result)).decode("utf-8")
    document = json.loads(text, parse_float=Decimal, object_pairs_hook=_unique, parse_constant=_never)
    assert list(document) == ["displayTimeUnit", "otherData", "traceEvents"]
    assert document["displayTimeUnit"] in ("ms", "ns")
    traced: list[Event] = document["traceEvents"]
    return traced


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs)
    return dict(pairs)


def _never(word: str) -> None:
    raise AssertionError(f"{word} is not JSON")


def ps(us: Decimal) -> int:
    assert us == us.quantize(Decimal("0.000001"))
    return int(us * 1_000_000)


def validate(found: list[Event]) -> None:
    """What the format asks for, and what its readers ask for beyond that."""
    pids, tids = set(), {}
    for event in found:
        must, may = FIELDS[event["ph"]]
        assert must <= set(event) <= must | may, event
        assert isinstance(event["name"], str) and event["name"]
        assert all(isinstance(event[key], int) and 0 < event[key] < 2**32 for key in ("pid", "tid"))
        # A thread belongs to one process; that which has the number of its process is for counters and async slices.
        assert tids.setdefault(event["tid"], event["pid"]) == event["pid"]
        if event["ph"] == "M":
            assert event["name"] in METADATA
            pids.add(event["pid"])
            kind = str if event["name"].endswith("_name") else int
            assert [type(value) for value in event["args"].values()] == [kind]
            continue
        assert event["pid"] in pids, "a process is named before it is used"
        assert isinstance(event["ts"], Decimal) and event["ts"] >= 0
        if event["ph"] == "X":
            assert isinstance(event["dur"], Decimal) and event["dur"] > 0
        elif event["ph"] == "i":
            assert event["s"] == "t"
        elif event["ph"] == "C":
            assert event["args"] and all(type(value) is int and value >= 0 for value in event["args"].values())
        elif event["ph"] == "f":
            assert event["bp"] == "e"
        for value in event.get("args", {}).values():
            assert isinstance(value, str | int | Decimal)
            assert not isinstance(value, str) or value.isprintable()
    threads = {event["tid"] for event in found if event["name"] == "thread_name"}
    assert all(event["tid"] in threads for event in found if event["ph"] in "Xisf")
    _validate_pairs(found)


def _validate_pairs(found: list[Event]) -> None:
    """Async slices and arrows have two ends, the first before the second."""
    for first, second in ("be", "sf"):
        begun = {(event["cat"], event["id"], event["name"]): event for event in found if event["ph"] == first}
        ended = {(event["cat"], event["id"], event["name"]): event for event in found if event["ph"] == second}
        assert len(begun) == sum(event["ph"] == first for event in found)
        assert len(ended) == sum(event["ph"] == second for event in found)
        assert set(begun) == set(ended)
        assert all(begun[key]["ts"] < ended[key]["ts"] or first == "s" for key in begun), "a slice takes some time"


def slices(found: list[Event]) -> dict[tuple[int, str], Event]:
    """By request and name."""
    values = [event for event in found if event["ph"] == "X"]
    by_request = {(event["args"]["request"], event["name"]): event for event in values}
    assert len(by_request) == len(values)
    return by_request


@pytest.mark.parametrize("name", RUNS)
def test_the_file_keeps_to_the_trace_event_format(name: str) -> None:
    validate(told_events(name))


@pytest.mark.parametrize("name", RUNS)
def test_every_completed_request_has_its_slices_with_exact_times(name: str) -> None:
    result = told_run(name)
    traced = told_events(name)
    printed = slices(traced)
    waits = {(event["id"], event["ph"]): event for event in traced if event["ph"] in "be" and event["cat"] == "queue"}
    for row in result.requests.rows():
        if row["outcome"] != "completed":
            continue
        number, apart = row["request"], row["prefill_instance"] >= 0
        prefill = printed[number, "prefill"]
        first = row["handed_ps"] if apart else row["first_token_ps"]
        assert (ps(prefill["ts"]), ps(prefill["dur"])) == (row["started_ps"], first - row["started_ps"])
        assert prefill["pid"] == (row["prefill_instance"] if apart else row["instance"]) + 2
        assert prefill["args"] == {
            "request": number,
            "tenant": " ".join(row["tenant"].split()),
            "prompt_tokens": row["prompt_tokens"],
            "cached_tokens": row["cached_tokens"],
        }
        begun = row["transferred_ps"] if apart else first
        if row["finished_ps"] > begun:
            decode = printed[number, "decode"]
            assert (ps(decode["ts"]), ps(decode["dur"])) == (begun, row["finished_ps"] - begun)
            assert decode["pid"] == row["instance"] + 2
            assert decode["args"]["output_tokens"] == row["output_tokens"]
        if row["started_ps"] > row["enqueued_ps"]:
            assert ps(waits[number, "b"]["ts"]) == row["enqueued_ps"]
            assert ps(waits[number, "e"]["ts"]) == row["started_ps"]


@pytest.mark.parametrize("name", RUNS)
def test_slices_of_a_track_never_overlap_even_in_the_nanoseconds_of_a_viewer(name: str) -> None:
    tracks: dict[int, list[tuple[Decimal, Decimal]]] = defaultdict(list)
    for event in told_events(name):
        if event["ph"] == "X":
            tracks[event["tid"]].append((event["ts"], event["dur"]))
    for track in tracks.values():
        for (ts, dur), (after, _) in pairwise(sorted(track)):
            assert ts + dur <= after
            # Perfetto multiplies doubles by a thousand and cuts off what is left, start and duration each by itself.
            assert int(float(ts) * 1000) + int(float(dur) * 1000) <= int(float(after) * 1000)


@pytest.mark.parametrize("name", RUNS)
def test_a_request_takes_the_lowest_free_slot(name: str) -> None:
    traced = told_events(name)
    order = {event["tid"]: event["args"]["sort_index"] for event in traced if event["name"] == "thread_sort_index"}
    stays: dict[tuple[int, int], list[Event]] = defaultdict(list)
    for event in traced:
        if event["ph"] == "X":
            stays[event["pid"], event["args"]["request"]].append(event)
    by_process: dict[int, list[tuple[Decimal, Decimal, int]]] = defaultdict(list)
    for (pid, _), parts in stays.items():
        assert len({event["tid"] for event in parts}) == 1
        slot = order[parts[0]["tid"]]
        by_process[pid].append(
            (min(event["ts"] for event in parts), max(event["ts"] + event["dur"] for event in parts), slot)
        )
    for values in by_process.values():
        for begun, _, slot in values:
            used = {other for start, end, other in values if start < begun < end}
            used |= {other for start, end, other in values if start == begun and other < slot}
            assert set(range(1, slot)) <= used


@pytest.mark.parametrize("name", RUNS)
def test_counters_equal_a_sweep_over_the_requests(name: str) -> None:
    result = told_run(name)
    printed: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for event in told_events(name):
        if event["ph"] == "C" and event["name"] == "requests":
            printed[event["pid"] - 2][ps(event["ts"])] = (event["args"]["running"], event["args"]["waiting"])
    spans = _spans(result)
    for instance, (running, waiting) in spans.items():
        times = sorted({at for span in running + waiting for at in span})
        assert list(printed[instance]) == times
        for at in times:
            assert printed[instance][at] == tuple(sum(a <= at < b for a, b in values) for values in (running, waiting))
    assert set(printed) == set(spans)


def _spans(result: Result) -> dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]]:
    """Of each instance from when to when requests ran there, and waited."""
    traced: dict[int, tuple[list[tuple[int, int]], list[tuple[int, int]]]] = {}
    ended = max((max(row["finished_ps"], row["arrival_ps"]) for row in result.requests.rows()), default=0)
    first = next((row["arrival_ps"] for row in result.requests.rows()), 0)
    ended = max(ended, first + round(result.summary()["duration_s"] * 10**12))
    for row in result.requests.rows():
        if row["enqueued_ps"] < 0 or row["redirects"]:
            continue
        end = row["finished_ps"] if row["finished_ps"] >= 0 else ended
        apart = row["prefill_instance"] >= 0
        running, waiting = traced.setdefault(row["prefill_instance"] if apart else row["instance"], ([], []))
        started = row["started_ps"]
        if (started if started >= 0 else end) > row["enqueued_ps"]:
            waiting.append((row["enqueued_ps"], started if started >= 0 else end))
        if started >= 0:
            running.append((started, row["handed_ps"] if apart and row["handed_ps"] >= 0 else end))
        if row["transferred_ps"] >= 0:
            traced.setdefault(row["instance"], ([], []))[0].append((row["transferred_ps"], end))
    return {instance: spans for instance, spans in traced.items() if spans[0] or spans[1]}


@pytest.mark.parametrize("name", RUNS)
def test_what_happened_to_instances_is_shown_when_it_happened(name: str) -> None:
    result = told_run(name)
    traced = [event for event in told_events(name) if event["ph"] == "i"]

    def shown(category: str) -> Counter[Any]:
        return Counter((event["pid"], event["name"], ps(event["ts"])) for event in traced if event["cat"] == category)

    assert shown("state") == Counter((event.instance + 2, event.state, event.at_ps) for event in result.states)
    assert shown("preemption") == Counter(
        (event.instance + 2, "preempted", event.at_ps) for event in result.preemptions
    )
    assert shown("thrash") == Counter((event.instance + 2, "thrash", event.at_ps) for event in result.thrashes)
    assert shown("finding") == Counter((1, event.kind, event.at_ps) for event in result.findings())
    ways = {True: "scale up", False: "scale down"}
    assert shown("scaling") == Counter(
        (1, ways[event.after > event.before], event.at_ps) for event in result.scaling_events
    )
    faults = result.summary().get("scaling", {}).get("faults", {})
    assert Counter(name for _, name, _ in shown("fault").elements()) == +Counter(
        {f"fault: {kind}": times for kind, times in faults.items()}
    )


def test_memory_and_replicas_are_counted_over_time() -> None:
    result = told_run("autoscaled")
    traced = [event for event in events(result) if event["ph"] == "C"]
    for series in result.series:
        printed = [event for event in traced if event["name"] == "kv_used" and event["pid"] == series.instance + 2]
        assert [event["args"]["blocks"] for event in printed] == series.values
        assert [ps(event["ts"]) for event in printed] == [
            series.start_ps + turn * series.interval_ps for turn in range(len(series.values))
        ]
    replicas = {ps(event["ts"]): event["args"] for event in traced if event["name"] == "replicas"}
    for at, args in replicas.items():
        states: dict[int, str] = {}
        for change in result.states:
            if change.at_ps <= at:
                states[change.instance] = change.state
        assert args["held"] == sum(state != "stopped" for state in states.values())
        assert args["serving"] == sum(state in ("ready", "warming") for state in states.values())
    assert set(replicas) == {change.at_ps for change in result.states}


def test_a_handover_is_an_arrow_from_the_prompt_to_the_answer_with_the_transfer_between() -> None:
    result = told_run("disaggregated")
    traced = events(result)
    printed = slices(traced)
    arrows = {(event["id"], event["ph"]): event for event in traced if event["ph"] in "sf"}
    moves = {
        (event["id"], event["ph"]): event for event in traced if event["ph"] in "be" and event["cat"] == "transfer"
    }
    moved = [row for row in result.requests.rows() if row["transferred_ps"] >= 0]
    assert len(moved) > 100
    for row in moved:
        number = row["request"]
        prefill, begun = printed[number, "prefill"], arrows[number, "s"]
        assert begun["tid"] == prefill["tid"]
        assert int(float(prefill["ts"]) * 1000) <= int(float(begun["ts"]) * 1000)
        assert int(float(begun["ts"]) * 1000) < int(float(prefill["ts"]) * 1000) + int(float(prefill["dur"]) * 1000)
        decode, ended = printed[number, "decode"], arrows[number, "f"]
        assert (ended["tid"], ended["ts"]) == (decode["tid"], decode["ts"])
        assert ps(moves[number, "b"]["ts"]) == row["transfer_ps"]
        assert ps(moves[number, "e"]["ts"]) == row["transferred_ps"]
        assert moves[number, "b"]["pid"] == row["prefill_instance"] + 2


def test_what_waits_at_the_router_and_what_is_turned_away_is_shown_there() -> None:
    flow = {"name": "bands", "saturation": "concurrency", "max_inflight": 4}
    result = simulate(PREFIXES, flow=flow)
    traced = events(result)
    printed = {
        (event["id"], event["ph"]): ps(event["ts"])
        for event in traced
        if event["ph"] in "be" and event["cat"] == "router"
    }
    waited = [row for row in result.requests.rows() if row["routed_ps"] > row["admitted_ps"]]
    assert len(waited) > 50
    for row in waited:
        assert printed[row["request"], "b"] == row["admitted_ps"]
        assert printed[row["request"], "e"] == row["routed_ps"]
    deepest = max(
        event["args"]["waiting"] for event in traced if event["ph"] == "C" and event["name"] == "router queue"
    )
    times = [row["admitted_ps"] for row in waited]
    assert deepest == max(sum(row["admitted_ps"] <= at < row["routed_ps"] for row in waited) for at in times)
    admission = {"name": "token-bucket", "rate": 8, "burst": 5, "on_empty": "delay", "max_wait_s": 4}
    late = simulate(PREFIXES, admission=admission)
    held = {(event["id"], event["ph"]): ps(event["ts"]) for event in events(late) if event.get("cat") == "admission"}
    put_off = [row for row in late.requests.rows() if row["admitted_ps"] > row["arrival_ps"]]
    assert len(put_off) > 20 and len(held) == 2 * len(put_off)
    for row in put_off:
        assert (held[row["request"], "b"], held[row["request"], "e"]) == (row["arrival_ps"], row["admitted_ps"])
    refused = told_run("all rejected")
    turned = [event["args"]["request"] for event in events(refused) if event.get("cat") == "refused"]
    assert turned == [row["request"] for row in refused.requests.rows() if row["outcome"] == "rejected"]


def test_names_with_odd_signs_stay_valid() -> None:
    tenants = {'a"b\\c': {}, "tab\there": {}, "Zürich": {}}
    scenario = PREFIXES | {"workload": PREFIXES["workload"] | {"requests": 30, "tenants": tenants}}
    traced = events(simulate(scenario))
    validate(traced)
    assert {event["args"]["tenant"] for event in traced if event["ph"] == "X"} == {'a"b\\c', "tab here", "Zürich"}


def test_the_same_run_gives_the_same_bytes_also_from_its_folder(tmp_path: Path) -> None:
    result = told_run("tiers")
    result.save(tmp_path / "run")
    once = b"".join(timeline(result))
    assert b"".join(timeline(Result.load(tmp_path / "run"))) == once
    assert b"".join(timeline(simulate_again("tiers"))) == once


def simulate_again(name: str) -> Result:
    return RUNS[name]()


def test_the_verb_writes_the_file_and_says_where(tmp_path: Path, headway: Run) -> None:
    result = told_run("prefixes")
    result.save(tmp_path / "run")
    completed = headway("timeline", str(tmp_path / "run"), "-o", str(tmp_path / "t.json"))
    assert completed.returncode == 0, completed.stderr
    assert (tmp_path / "t.json").read_bytes() == b"".join(timeline(result))
    beside = headway("timeline", str(tmp_path / "run"), "--json")
    assert json.loads(beside.stdout) == {"timeline": str(tmp_path / "run" / "timeline.json")}
    wrong = headway("timeline", str(tmp_path / "run"), "-o", str(tmp_path / "no" / "t.json"))
    assert wrong.returncode == 2 and "cannot be written" in wrong.stderr


def test_a_file_that_cannot_be_written_is_an_error_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="cannot be written"):
        write(told_run("empty"), tmp_path / "none" / "t.json")
