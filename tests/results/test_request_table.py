from __future__ import annotations

import pickle
import sys

import pytest
from recorders import record

from headway.errors import HeadwayError
from headway.results import lines, recorder
from headway.results.table import COLUMNS, Row, Table

ROWS = [
    {"arrival_ps": 1, "started_ps": 2, "first_token_ps": 3, "finished_ps": 4, "outcome": "completed", "instance": 1},
    {"arrival_ps": 5, "outcome": "rejected", "reason": "too long", "prompt_tokens": 7},
]


def test_columns_are_equally_long_lists_in_order_of_arrival() -> None:
    table = Table.of(record(ROWS))
    assert len(table) == 2
    assert tuple(table) == tuple(table.keys()) == COLUMNS
    assert {len(column) for column in dict(table).values()} == {2}
    assert table["request"] == [0, 1]
    assert table["arrival_ps"] == [1, 5]
    assert table["finished_ps"] == [4, -1]
    assert table["outcome"] == ["completed", "rejected"]
    assert table["reason"] == ["", "too long"]
    assert "instance" in table and "colour" not in table


def test_there_is_one_list_of_columns() -> None:
    assert lines.Row is Row
    assert [name for name in COLUMNS if name in recorder.COLUMNS] == list(recorder.COLUMNS)
    assert set(COLUMNS) - set(recorder.COLUMNS) == {"request", "reason"}


def test_rows_are_plain_mappings() -> None:
    rejected = list(Table.of(record(ROWS)).rows())[1]
    assert rejected == {
        "request": 1, "tenant": "default", "slo_class": "standard", "session": "", "turn": 0,
        "kind": "completion", "model": "",
        "adapter": "",
        "arrival_ps": 5, "admitted_ps": -1, "routed_ps": -1, "enqueued_ps": -1,
        "started_ps": -1, "first_token_ps": -1, "finished_ps": -1, "instance": -1,
        "outcome": "rejected", "reason": "too long", "prompt_tokens": 7, "output_tokens": 0, "cached_tokens": 0,
        "predicted_tokens": 0, "preemptions": 0, "loaded_tokens": 0,
        "prefill_instance": -1, "handed_ps": -1, "transfer_ps": -1, "transferred_ps": -1,
        "retries": 0, "redirects": 0, "priority": 0.0, "loaded_from": "", "preempted_ps": 0, "loading_ps": 0,
        "ready_ps": 0, "interrupted_ps": 0, "joined_ps": -1,
    }  # fmt: skip


def test_a_table_travels_between_processes() -> None:
    table = Table.of(record(ROWS))
    assert pickle.loads(pickle.dumps(table)) == table


def test_an_unknown_column_names_the_nearest() -> None:
    with pytest.raises(KeyError, match="arrival_ps"):
        Table.of(record(ROWS))["arival_ps"]


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_missing_data_frame_library_names_the_extra(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(HeadwayError, match=r"headway\[data\]"):
        getattr(Table.of(record(ROWS)), f"to_{library}")()


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_a_data_frame_has_the_same_columns(library: str) -> None:
    pytest.importorskip(library)
    frame = getattr(Table.of(record(ROWS)), f"to_{library}")()
    assert tuple(frame.columns) == COLUMNS
    assert list(frame["arrival_ps"]) == [1, 5]
