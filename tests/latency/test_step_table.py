"""`table`: measured steps are met, what lies between them is interpolated, and nothing larger is ever faster."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headway
from conftest import ROOT
from drawing import draws
from headway.errors import HeadwayError
from headway.experiment.notes import note_unmeasured
from headway.latency import build, read_gpu, read_model
from headway.latency.base import FOREVER, scale_model
from headway.latency.step_models.step_table import StepTable
from headway.scenario.scenario import Scenario

EIGHT_B = read_model("llama-3.1-8b", "model")
H200 = read_gpu("h200", "gpu")
STEPS = ROOT.parent / "shared" / "calibration" / "h200" / "steps.csv"
MS = 10**9
HEAD = "batch,decode_kv_tokens,n_prefill,new_tokens,past_context,median_ms\n"
ROWS = [
    {"decodes": 1, "context": 0, "time": "4ms"},
    {"decodes": 1, "context": 1000, "time": "5ms"},
    {"decodes": 1, "context": 2000, "time": "7ms"},
    {"decodes": 5, "context": 0, "time": "8ms"},
    {"decodes": 5, "context": 2000, "time": "12ms"},
    {"prefill": 100, "time": "10ms"},
    {"prefill": 100, "past": 1000, "time": "11ms"},
    {"prefill": 300, "time": "20ms"},
    {"prefill": 300, "past": 1000, "time": "23ms"},
]


def table(**keys: Any) -> StepTable:
    found = build({"model": "table", **keys}, EIGHT_B, H200, 1)
    assert isinstance(found, StepTable)
    return found


@pytest.mark.parametrize(
    ("step", "run"),
    [
        ((1, 1000, ()), (5 * MS, 2 * MS // 1000, 1000)),  # a measured step; the next piece begins 1000 tokens on
        ((1, 500, ()), (4 * MS + MS // 2, MS // 1000, 500)),
        ((1, 4000, ()), (11 * MS, 2 * MS // 1000, FOREVER)),  # beyond: the slope over the last half
        ((3, 1000, ()), (7 * MS + MS // 2, 3 * 2 * MS // 1000, 334)),  # halfway from 5 ms to 10 ms
        ((9, 0, ()), (12 * MS, 9 * 3 * MS // 1000, 112)),  # as from 1 to 5; 15 ms at 1000
        ((0, 0, [(200, 0)]), (15 * MS, 200 * 2 * MS // 1000, 5)),
        ((0, 0, [(200, 500)]), (16 * MS, 200 * 2 * MS // 1000, 3)),
        ((0, 0, [(50, 0)]), (10 * MS, 50 * MS // 1000, 20)),  # below the least: as the least
        ((0, 0, [(100, 1000), (200, 0)]), (21 * MS, 100 * MS // 1000 + 200 * 2 * MS // 1000, 5)),
        ((1, 500, [(99, 0)]), (10 * MS + MS // 2, MS // 1000 + 99 * MS // 1000, 11)),  # 100 tokens, and the context
    ],
)
def test_a_step_is_interpolated_as_by_hand(step: tuple[int, int, list[tuple[int, int]]], run: tuple[int, ...]) -> None:
    assert table(rows=ROWS).run(*step) == run


def test_the_host_is_added_and_a_slow_engine_takes_so_many_times_as_long() -> None:
    plain, hosted = table(rows=ROWS), table(rows=ROWS, host="2ms")
    assert hosted.run(1, 500, ())[0] == plain.run(1, 500, ())[0] + 2 * MS
    slow = scale_model(hosted, Fraction(3, 2))
    assert slow.run(1, 500, ()) == (9 * MS + 3 * MS // 4, 3 * MS // 2000, 500)


measured = st.lists(st.tuples(st.integers(1, 64), st.integers(0, 5000), st.integers(1, 10**10)), max_size=12)


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    """Any steps, most of them faster than a smaller one."""
    least = ((1, 0, draw(st.integers(1, 10**10))), (1, 900, draw(st.integers(1, 10**10))), (40, 3000, 5 * 10**9))
    return StepTable((*least, *draw(measured)), (*least, *draw(measured)))


@draws(25)
@given(
    tables(), st.integers(0, 80), st.integers(0, 9000), st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9000)))
)
def test_along_a_run_every_step_is_what_a_single_step_gives(
    model: StepTable, decodes: int, context: int, chunks: list[tuple[int, int]]
) -> None:
    decodes = decodes if chunks else max(1, decodes)
    first, increment, k_max = model.run(decodes, context, chunks)
    assert first >= 1 and increment >= 0 and k_max >= 1
    for j in (j for j in (0, 1, k_max // 2, k_max - 1) if j < k_max):
        moved = [(tokens, past + j * tokens) for tokens, past in chunks]
        assert model.run(decodes, context + j * decodes, moved)[0] == first + j * increment


pieces = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 9000)), max_size=3)
growth = st.sampled_from((0, 0, 1, 2, 7, 400))


@draws(25)
@given(tables(), st.integers(0, 80), st.integers(0, 9000), pieces, st.data())
def test_more_never_costs_less_by_as_much_as_a_picosecond(
    model: StepTable, decodes: int, context: int, chunks: list[tuple[int, int]], data: st.DataObject
) -> None:
    """More decodes, more context, longer chunks, longer pasts, further chunks, one of these or all at once."""
    decodes = decodes if chunks else max(1, decodes)
    larger = [(tokens + data.draw(growth), past + data.draw(growth)) for tokens, past in chunks] + data.draw(pieces)
    many, far = decodes + data.draw(growth), context + data.draw(growth)
    assert model.run(many, far, larger)[0] >= model.run(decodes, context, chunks)[0]


@draws(25)
@given(tables(), st.integers(1, 80), st.integers(0, 9000))
def test_one_more_never_costs_less_where_slopes_are_near_to_a_picosecond(
    model: StepTable, count: int, place: int
) -> None:
    """Small times make slopes of 0 to 3 ps, where rounding them would show most."""
    small = StepTable(*(tuple((a, b, 1 + ps % 9000) for a, b, ps in rows) for rows in (model.decode, model.prefill)))
    decode, chunk = small.run(count, place, ())[0], small.run(0, 0, [(count, place)])[0]
    assert small.run(count + 1, place, ())[0] >= decode
    assert small.run(count, place + 1, ())[0] >= decode
    assert small.run(0, 0, [(count + 1, place)])[0] >= chunk
    assert small.run(0, 0, [(count, place + 1)])[0] >= chunk


def test_a_file_of_steps_is_met_at_its_steps() -> None:
    if not STEPS.is_file():
        pytest.skip("the measurements are not beside this checkout (../shared/calibration)")
    model = table(file=str(STEPS))
    with STEPS.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["shape"] == EIGHT_B.name and row["mode"] == "graph"]
    errors: dict[str, list[float]] = {"decode": [], "prefill": [], "mixed": []}
    for row in rows:
        chunks = [(int(row["new_tokens"]), round(float(row["past_context"] or 0)))] if row["n_prefill"] == "1" else []
        if len(chunks) == int(row["n_prefill"]):
            ms = model.run(int(row["batch"]), int(row["decode_kv_tokens"]), chunks)[0] / MS
            errors[row["phase"]].append(abs(ms / float(row["median_ms"]) - 1))
    for phase, median, p90 in (("decode", 0.001, 0.02), ("prefill", 0.001, 0.005), ("mixed", 0.03, 0.08)):
        found = sorted(errors[phase])
        assert len(found) > 40 and found[len(found) // 2] < median and found[len(found) * 9 // 10] < p90, phase


def test_the_same_rows_in_a_file_and_in_the_scenario_give_the_same(tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    lines = [
        f"{row.get('decodes', 0)},{row.get('context', 0)},{int('prefill' in row)},{row.get('prefill', 0)},"
        f"{row.get('past', '')},{str(row['time']).removesuffix('ms')}\n"
        for row in ROWS
    ]
    file.write_text(HEAD + "".join(lines) + "4,100,1,20,0,99\n0,0,2,20,0,99\n")  # neither a mixed step nor two chunks
    one, other = table(file=str(file)), table(rows=ROWS)
    assert (one.decode, one.prefill) == (other.decode, other.prefill)
    scenario = {
        "workload": {"requests": 20, "rate": "20/s", "prompt_tokens": 300, "output_tokens": 20},
        "cluster": {"latency": {"model": "table", "rows": ROWS}},
    }
    leapt = headway.simulate(scenario).requests["finished_ps"]
    assert leapt == headway.simulate({**scenario, "leap": False}).requests["finished_ps"]


def test_steps_beyond_the_table_are_noted() -> None:
    def said(**cluster: Any) -> str | None:
        workload = {"requests": 1, "rate": "1/s"}
        latency = {"model": "table", "rows": ROWS}
        return note_unmeasured(Scenario.load({"workload": workload, "cluster": {**cluster, "latency": latency}}))

    assert said(max_batch_tokens=300, max_batch_size=5) is None
    assert "at most 300 prompt tokens and 5 decodes" in str(said(max_batch_tokens=301, max_batch_size=5))
    assert "are extrapolated." in str(said(max_batch_tokens=300, max_batch_size=6))


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({}, "cluster.latency: set either 'file', a CSV file of measured steps, or 'rows'."),
        ({"file": "a.csv", "rows": ROWS}, "cluster.latency: set either 'file'"),
        ({"file": "no/steps.csv"}, "no/steps.csv: cannot be read: No such file or directory."),
        ({"file": 7}, "cluster.latency.file: expected the path of a CSV file, got 7."),
        ({"rows": "many"}, "cluster.latency.rows: expected a list of rows"),
        ({"rows": [{"decodes": 1}]}, "cluster.latency.rows[0]: 'time' is missing."),
        ({"rows": [{"decodes": 1, "time": 4}]}, "cluster.latency.rows[0].time: 4 is not a duration"),
        ({"rows": [{"decodes": 1, "time": "0s"}]}, "rows[0].time: must be at least 1ps"),
        ({"rows": [{"decodes": -1, "time": "1s"}]}, "rows[0].decodes: must lie between 0 and 1,000,000,000, got -1."),
        ({"rows": [{"time": "1s"}]}, "rows[0]: set either 'decodes' and 'context', or 'prefill' and 'past'."),
        ({"rows": [{"decodes": 1, "past": 3, "time": "1s"}]}, "rows[0]: set either 'decodes' and 'context'"),
        ({"rows": ROWS[:3] + ROWS[5:]}, "rows: too few decode steps. The table needs at least two numbers"),
        ({"rows": ROWS[:5]}, "rows: too few steps of one prefill chunk."),
        ({"rows": [*ROWS[:5], ROWS[5], ROWS[7]]}, "one of them with two pasts."),
        ({"rows": ROWS * 201}, "1,005 decode steps are too many. The limit is 1,000."),
        ({"rows": ROWS, "host": 3}, "cluster.latency.host: 3 is not a duration"),
    ],
)
def test_a_wrong_table_is_told(keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(HeadwayError) as error:
        table(**keys)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("batch,median_ms\n1,2\n", "has no column 'decode_kv_tokens', 'n_prefill', 'new_tokens' and 'past_context'"),
        (HEAD + "1,5,0,0,,fast\n", "line 2, median_ms: must be a number above zero, got 'fast'."),
        (HEAD + "1.5,5,0,0,,4\n", "line 2, batch: must be a whole number, got '1.5'."),
        (HEAD + "0,0,0,0,,4\n", "line 2: a step needs decodes ('batch') or chunks ('n_prefill' and 'new_tokens')."),
        (HEAD + "0,0,1,8,-4,4\n", "line 2, past_context: must be a number, zero or more, got '-4'."),
        (HEAD + "1,5,0,0,,1e30\n", "line 2, median_ms: must lie between 1ps and 100d"),
        (HEAD, "too few decode steps."),
        ("shape," + HEAD + "mine,1,5,0,0,,4\n", "cluster.latency.shape: "),
    ],
)
def test_a_wrong_file_of_steps_is_told(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    with pytest.raises(HeadwayError) as error:
        table(file=str(file))
    assert sentence in str(error.value)
