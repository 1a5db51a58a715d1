"""A trace's shape and reuse, against a brute-force cache written from the rule alone."""

from __future__ import annotations

import json
from io import StringIO
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from headway.report.workload_tables import report, snippet
from headway.workload import reuse
from headway.workload.inspect import describe, inspect
from headway.workload.traces import weka
from headway.workload.traces.record import Info, Options, Reader, Record
from headway.workload.traces.table import Trace


def brute_force(
    prompts: list[list[int]], instances: int, capacity: int | None, order: reuse.Order = "first-to-last"
) -> float:
    """Each cache is a list in order of use, the most recent last."""
    caches: list[list[int]] = [[] for _ in range(instances)]
    hits = 0
    for number, blocks in enumerate(prompts):
        cache = caches[number % instances]
        for block in blocks:
            if block not in cache:
                break
            hits += 1
        for block in blocks if order == "first-to-last" else reversed(blocks):
            if block in cache:
                cache.remove(block)
            cache.append(block)
            while capacity is not None and len(cache) > capacity:
                cache.pop(0)
    return hits / sum(map(len, prompts))


def write(folder: Path, prompts: list[list[int]], stamps: list[float] | None = None) -> Path:
    path = folder / "t.jsonl"
    with path.open("w") as file:
        for number, ids in enumerate(prompts):
            at = stamps[number] if stamps else number
            row = {"timestamp": at, "input_length": 512 * len(ids), "output_length": 1, "hash_ids": ids}
            file.write(json.dumps(row) + "\n")
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=25),
    capacity=st.none() | st.integers(1, 12),
    instances=st.integers(1, 4),
    order=st.sampled_from(reuse.ORDERS),
)
def test_reuse_follows_the_rule(
    tmp_path: Path, prompts: list[list[int]], capacity: int | None, instances: int, order: reuse.Order
) -> None:
    figures = inspect(write(tmp_path, prompts), capacities=[capacity], instances=[instances], order=order)["reuse"]
    assert figures == [
        {
            "instances": instances,
            "capacity": capacity,
            "block_hit_ratio": pytest.approx(brute_force(prompts, instances, capacity, order)),
            "placement": "round-robin",
            "order": order,
        }
    ]


@st.composite
def prompts_of_runs(draw: st.DrawFn) -> list[list[reuse.Run]]:
    """Fresh, or an earlier one cut inside a run and gone on with; a prompt may have a block twice."""
    run = st.tuples(st.integers(-30, 30), st.integers(1, 9))
    figures: list[list[reuse.Run]] = []
    for _ in range(draw(st.integers(1, 25))):
        runs: list[reuse.Run] = []
        if figures and draw(st.booleans()):
            runs = draw(st.sampled_from(figures))
            runs = runs[: draw(st.integers(1, len(runs)))]
            first, count = runs.pop()
            runs.append((first, draw(st.integers(1, count + 2))))
        figures.append(runs + draw(st.lists(run, min_size=not runs, max_size=3)))
    return figures


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    runs=prompts_of_runs(),
    capacities=st.lists(st.none() | st.integers(1, 40), min_size=1, max_size=4),
    order=st.sampled_from(reuse.ORDERS),
    bits=st.sampled_from([1, 3, 14]),
    short=st.sampled_from([0, 1024]),
)
def test_caches_of_every_size_hit_what_one_block_at_a_time_does(
    runs: list[list[reuse.Run]],
    capacities: list[int | None],
    order: reuse.Order,
    bits: int,
    short: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In either order, with runs that lie across the lists of stretches, and with the log written anew or not."""
    monkeypatch.setattr(reuse, "BUCKET_BITS", bits)
    monkeypatch.setattr(reuse, "SHORT", short)
    prompts = [[block for first, count in runs_of for block in range(first, first + count)] for runs_of in runs]
    totals = reuse.hits(zip(runs, map(len, prompts), strict=True), repeat(0), capacities, 1, order)
    each = [brute_force(prompts, 1, capacity, order) for capacity in capacities]
    assert [blocks / totals.referenced for blocks in totals.blocks] == each
    assert totals.tokens == max(totals.blocks) and totals.distinct == len(set(chain.from_iterable(prompts)))


def test_a_request_does_not_hit_itself_and_stops_at_the_first_miss(tmp_path: Path) -> None:
    path = write(tmp_path, [[1, 2, 3], [1, 2, 3], [9, 2, 3]])
    assert inspect(path)["reuse"][0]["block_hit_ratio"] == 3 / 9
    # a cache of two keeps the tail of a prompt, whose head is gone; or its head, where the tail goes first
    assert inspect(path, capacities=[2])["reuse"][0]["block_hit_ratio"] == 0
    assert inspect(path, capacities=[2], order="tail-first")["reuse"][0]["block_hit_ratio"] == 2 / 9


def test_sessions_continue_the_owner_of_the_deepest_match_but_not_a_shared_root(tmp_path: Path) -> None:
    prompts = [[0, 10 * number + 1] for number in range(20)]  # twenty users under one system prompt
    prompts += [[0, 1, 2], [0, 1, 2, 3], [0, 11, 12]]
    figures = inspect(write(tmp_path, prompts))["sessions"]
    assert figures["count"] == 20
    assert figures["turns"]["max"] == 3
    assert figures["multi_turn_share"] == 2 / 20
    assert figures["requests_in_multi_turn_share"] == 5 / 23


def test_shape_of_even_arrivals(tmp_path: Path) -> None:
    figures = inspect(write(tmp_path, [[number] for number in range(601)], [500.0 * number for number in range(601)]))
    assert figures["requests"] == 601
    assert figures["span_s"] == 300
    assert figures["rate_per_s"] == pytest.approx(601 / 300)
    assert figures["arrivals"]["cv"] == 0
    assert figures["arrivals"]["idc"] == {"1s": 0, "10s": 0, "60s": 0}
    assert figures["arrivals"]["peak_to_mean_60s"] == 1
    assert figures["blocks"] == {"tokens": 512, "distinct": 601, "referenced": 601}
    assert sum(count for _, count in figures["prompt_tokens"]["histogram"]) == 601


def test_a_single_request_has_a_shape_too(tmp_path: Path) -> None:
    figures = inspect(write(tmp_path, [[1, 2]]), capacities=[1, None], instances=[1, 8])
    assert figures["rate_per_s"] is None and figures["arrivals"]["cv"] is None
    assert [entry["block_hit_ratio"] for entry in figures["reuse"]] == [0, 0, 0, 0]
    json.dumps(figures, allow_nan=False)


HASHES = st.integers(-(2**40), 2**40).map(lambda number: number * 7919)  # no two follow each other


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), capacity=st.none() | st.integers(1, 12))
def test_ids_may_be_hashes(tmp_path: Path, data: st.DataObject, capacity: int | None) -> None:
    ids = data.draw(st.lists(HASHES, min_size=1, max_size=8, unique=True))
    prompts = data.draw(
        st.lists(st.lists(st.sampled_from(ids), min_size=1, max_size=6), min_size=1, max_size=25), label="prompts"
    )
    figures = inspect(write(tmp_path, prompts), capacities=[capacity], instances=[2])
    assert figures["reuse"][0]["block_hit_ratio"] == pytest.approx(brute_force(prompts, 2, capacity))
    assert figures["blocks"]["distinct"] == len({block for blocks in prompts for block in blocks})


def records(*rows: Record, **info: Any) -> Trace:
    known = Info("made", block_tokens=16, whole_blocks=True, **info)
    return Trace.load(Reader(known, iter(rows)))


def test_sessions_that_stay_with_a_cache_reuse_what_one_cache_would() -> None:
    trace = records(
        *(Record(16 * turn, 1, 0, [(0, turn)], session=name) for turn in (1, 2, 3) for name in "abcde"),
        scope="session",
        sessions=True,
        clock="session",
    )
    figures = describe(trace, [None], [1, 2, 3])
    assert figures["ideal_reuse"] == {"block_hit_ratio": 0.5, "token_hit_ratio": 0.5, "request_hit_ratio": 2 / 3}
    assert figures["blocks"] == {"tokens": 16, "distinct": 15, "referenced": 30}
    assert [row["block_hit_ratio"] for row in figures["sticky_reuse"]] == [0.5, 0.5]
    assert [row["placement"] for row in figures["sticky_reuse"]] == ["sticky", "sticky"]
    ratios = [row["block_hit_ratio"] for row in figures["reuse"]]
    assert ratios[0] == 0.5 and ratios[1] < 0.5 and ratios[2] < 0.5


def test_recorded_sessions_are_counted_with_their_gaps_and_think_times() -> None:
    second = 10**12
    trace = records(
        Record(16, 1, 0, [(0, 1)], session="a"),
        Record(16, 1, 1 * second, [(9, 1)]),
        Record(32, 1, 5 * second, [(0, 2)], session="a", delay_ps=3 * second),
        sessions=True,
    )
    figures = describe(trace, [None], [1])["sessions"]
    assert figures["source"] == "recorded" and figures["count"] == 1
    assert figures["gap_s"]["p50"] == 5 and figures["think_s"]["max"] == 3
    assert figures["requests_in_multi_turn_share"] == 2 / 3


def test_who_sends_what_is_told_where_the_trace_knows() -> None:
    trace = records(
        Record(100, 1, 0, tenant="acme", kind="chat"),
        Record(300, 3, 1, tenant="acme", kind="chat"),
        Record(50, 9, 2, kind="chat"),
    )
    figures = describe(trace, [None], [1])
    assert [(row["name"], row["requests"]) for row in figures["tenants"]] == [("acme", 2), (None, 1)]
    assert figures["tenants"][0]["prompt_tokens"]["mean"] == 200
    assert [row["name"] for row in figures["kinds"]] == ["chat"]
    assert figures["models"] == []


def test_without_a_common_clock_there_is_no_rate() -> None:
    trace = records(Record(100, 1, 5, session="a"), Record(100, 1, 0, session="b"), clock="session", sessions=True)
    figures = describe(trace, [None], [1])
    assert figures["arrivals"] is None and figures["span_s"] is None and figures["rate_per_s"] is None
    assert "The sessions of this trace have no common clock" in table_text(figures)
    assert "starts: {rate: 0.2/s" in snippet(figures, "x.jsonl")


def test_a_report_fits_a_terminal_whatever_the_names() -> None:
    rows = (Record(10**6, 10**5, at, tenant=f"[bold]{'very' * 30}-{at}", kind="chat") for at in range(30))
    text = table_text(describe(records(*rows), [None], [1]))
    assert max(map(len, text.splitlines())) <= 80
    assert "18 more" in text and "[bold]" in text and "1,000,000" in text


def table_text(figures: dict[str, Any]) -> str:
    console = Console(width=80, file=StringIO())
    console.print(report(figures, "made"))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_format_without_content_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n")
    figures = inspect(path, capacities=[10])
    assert figures["reuse"] == [] and figures["blocks"] is None and figures["sessions"] is None
    assert "does not describe content" in figures["notes"][0]


WEKA = Path(__file__).resolve().parents[3] / "shared" / "traces" / "agentic-coding-weka" / "sessions_compact.jsonl.gz"


@pytest.mark.full
@pytest.mark.skipif(not WEKA.exists(), reason="the folder of public traces, ../shared/traces, is not here")
def test_agentic_sessions_have_their_published_figures_and_lose_reuse_under_round_robin() -> None:
    trace = Trace.load(weka.read(WEKA, Options()))
    figures = describe(trace, [None], [1, 2, 4, 8, 16])
    assert figures["requests"] == 49_334
    assert figures["blocks"] == {"tokens": 64, "distinct": 3_450_959, "referenced": 94_310_647}
    assert round(figures["ideal_reuse"]["block_hit_ratio"], 4) == 0.9634
    assert round(figures["ideal_reuse"]["token_hit_ratio"], 4) == 0.9632
    assert figures["sessions"]["count"] == 710 and figures["sessions"]["source"] == "recorded"
    turns = [figures["sessions"]["turns"][at] for at in ("p50", "p90", "p99", "max")]
    assert turns == pytest.approx((45.5, 157, 341, 561), abs=0.5)
    ratios = [row["block_hit_ratio"] for row in figures["reuse"]]
    assert ratios == sorted(ratios, reverse=True) and len(set(ratios)) == len(ratios)
    assert {row["block_hit_ratio"] for row in figures["sticky_reuse"]} == {ratios[0]}
