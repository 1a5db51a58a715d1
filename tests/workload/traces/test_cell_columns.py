"""Columns of cells: read at once, they have the values that their cells have one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from headway.workload.traces.cell_columns import read_present, read_texts, read_times, read_token_counts
from headway.workload.traces.cells import BadRow, cell_text, read_time, read_tokens


def outcome(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except BadRow as problem:
        return str(problem)


@pytest.mark.parametrize(
    "cells",
    [["12", "7", "007"], ["12", "7.0"], ["12", ""], ["12", " 7 "], ["12", "0"], ["12", "-7"], ["5", "99999999999"],
     ["١٢"], ["1" * 30], [3, 4], [3, True], [3, None], [3, 2.0], [-3, 4], [10**20], ["3", 4], []],
)  # fmt: skip
def test_a_column_of_lengths_is_read_as_its_cells_are(cells: list[Any]) -> None:
    alone = outcome(lambda: [read_tokens(cell, 1) for cell in cells])
    assert outcome(lambda: list(read_token_counts(cells, 1))) == alone


@pytest.mark.parametrize(
    "cells",
    [
        ["2026-01-31T12:00:00Z", "2026-02-01 00:00:59", "2026-02-01T00:00:00.25", "2026-02-01T00:00:00.123456789012Z"],
        ["2026-01-31T12:00:00Z", "2026-01-31T12:00:00+01:00"],
        ["2026-01-31T12:00:00Z", "2026-02-30T12:00:00Z"],
        ["2026-01-31T12:00:00Z", "2026-01-31T12:00:60Z"],
        ["1969-12-31T23:59:59.5Z"],
        ["2026-01-31T12:00:00Z", "1769860800"],
        ["1769860800", "1769860801"],
        ["1769860800", "1769860801000"],
        ["0", "5"],
        ["0.5", "5"],
        [0, 99],
        [0, 1769860800],
        [-5, 5],
        [0.5, 2],
        ["", "5"],
        [None],
        [10**20],
        [],
    ],
)
@pytest.mark.parametrize("unit", [None, "s", "ms", "excel"])
def test_a_column_of_times_is_read_as_its_cells_are(cells: list[Any], unit: str | None) -> None:
    alone = outcome(lambda: [read_time(cell, unit, False) for cell in cells])
    assert outcome(lambda: list(read_times(cells, unit, False))) == alone


@pytest.mark.parametrize(
    "cells", [["a", " b ", "longer name"], ["a", "", "NULL", "n/a", "-", "none!"], ["Zoë"], [1, None, "x", 2.5], []]
)
def test_a_column_of_texts_is_read_as_its_cells_are(cells: Sequence[Any]) -> None:
    assert read_texts(cells) == list(map(cell_text, cells))


def test_a_control_character_in_a_column_of_texts_is_an_error() -> None:
    with pytest.raises(BadRow, match=r"has control characters: 'a\\x07'"):
        read_texts(["fine", "a\x07"])


def test_empty_cells_leave_gaps() -> None:
    assert read_present(["5", "", "7", "NaN"], lambda cells: read_token_counts(cells, 1)) == [5, None, 7, None]
    assert read_present(["", ""], lambda cells: read_token_counts(cells, 1)) == [None, None]
