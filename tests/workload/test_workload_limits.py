"""Figures at and beyond what the planner can hold: told in a sentence, never a hang nor a wrong number."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from headway.config.section import read
from headway.errors import HeadwayError
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import read_trace

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
BASE = {"requests": 3, "rate": "1/s"}


def error_of(section: Any) -> str:
    with pytest.raises(HeadwayError) as error:
        list(islice(read(WorkloadSpec, section, "workload").plan(1), 5))
    return str(error.value)


@pytest.mark.parametrize(
    ("section", "what"),
    [
        ({"duration": "1s", "rate": "1e12/s"}, "1e12/s for 1s is more than 1000000000 requests"),
        ({"duration": "2s", "rate": "600_000_000/s"}, "more than 1000000000 requests"),
        (
            BASE | {"prompt_tokens": {"dist": "empirical", "values": [1, 2, 3], "weights": [1e308] * 3}},
            "workload.prompt_tokens.weights: the sum of the weights is too large",
        ),
        (
            BASE | {"prefix": {"groups": 3, "tokens": 8, "popularity": [1e308] * 3}},
            "workload.prefix.popularity: the sum of the weights is too large",
        ),
        (
            BASE | {"prompt_tokens": {"dist": "lognormal", "mean": 1e-200, "std": 1}},
            "workload.prompt_tokens.std: must be at most 1e+12 times the mean (1e-200), got 1.",
        ),
        (BASE | {"prompt_tokens": 10**400}, "got a number of too many digits."),
        (BASE | {"prompt_tokens": {"dist": "constant", "value": 10**400}}, "workload.prompt_tokens.value"),
        (BASE | {"prompt_tokens": {"dist": "normal", "mean": 10**400, "std": 1}}, "workload.prompt_tokens.mean"),
        (BASE | {"prompt_tokens": {"dist": "normal", "mean": 9, "std": 1, "max": 10**400}}, "too many digits."),
        (BASE | {"prompt_tokens": {"dist": "empirical", "values": [10**400]}}, "too many digits."),
        (BASE | {"prefix": {"groups": 2, "tokens": 8, "popularity": [10**400, 1]}}, "workload.prefix.popularity"),
    ],
)
def test_figures_too_large_are_told(section: Any, what: str) -> None:
    assert what in error_of(section)


@pytest.mark.parametrize("arrival", ["poisson", "constant", {"process": "gamma", "cv": 100}])
def test_many_requests_in_one_microsecond_come_to_an_end(arrival: Any) -> None:
    section = {"duration": "1us", "rate": "1_000_000_000/s", "arrival": arrival}
    assert len(list(islice(read(WorkloadSpec, section, "workload").plan(1), 10**6))) < 10**6


def test_a_stamp_that_leaves_the_run_no_room_is_told_at_its_line(tmp_path: Path) -> None:
    row = '{"timestamp": %d, "input_length": 5, "output_length": 5, "hash_ids": [1]}\n'
    (tmp_path / "t.jsonl").write_text(row % 0 + row % 9223372036)
    with pytest.raises(
        HeadwayError, match=r"^t\.jsonl line 2: timestamp must be a time in ms since the start between 0 and 100 days"
    ):
        read_trace(tmp_path / "t.jsonl")


def azure(folder: Path, *rows: str) -> Path:
    file = folder / "a.csv"
    file.write_text(HEADER + "".join(f"{row}\n" for row in rows))
    return file


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ('2023-11-16 18:17:03,"1,234",10', "line 2: ContextTokens must be a whole number .*, got '1,234'"),
        ("2023-11-16 18:17:03,1,234,10", "line 2: has 4 values, but the header has 3 columns"),
        ("2023-11-16 18:17:03,1", "line 2: has 2 values, but the header has 3 columns"),
        ('2023-11-16 18:17:03,"12,10', "line 2: the quotes of this line do not match"),
        ("2023-11-16 18:17:03+25:99,1,2", "line 2: TIMESTAMP .* is not a time"),
        ("2023-11-16 18:17:03+05:60,1,2", "line 2: TIMESTAMP .* is not a time"),
    ],
)
def test_a_row_that_is_not_what_the_header_says(tmp_path: Path, row: str, what: str) -> None:
    with pytest.raises(HeadwayError, match=what):
        read_trace(azure(tmp_path, row), "azure")


def test_quoted_cells_are_read(tmp_path: Path) -> None:
    trace = read_trace(azure(tmp_path, '"2023-11-16 18:17:03", "12","10"', '2023-11-16 18:17:04+00:00,5,"6"'))
    assert list(trace.prompt_tokens) == [12, 5] and list(trace.output_tokens) == [10, 6]
