"""Every mistake in a workload or a trace is one sentence that says where it is."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headway.config.section import read
from headway.errors import HeadwayError
from headway.workload.inspect import inspect
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import read_trace

GOOD: dict[str, Any] = {"requests": 10, "rate": "40/s"}
TRACE: dict[str, Any] = {"format": "mooncake", "path": "t.jsonl"}


def error_of(section: Any, folder: Path | None = None) -> str:
    if folder is not None:
        section = {"trace": section["trace"] | {"path": str(folder / section["trace"]["path"])}}
    with pytest.raises(HeadwayError) as caught:
        list(read(WorkloadSpec, section, "workload").plan(1, "m"))
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    return sentence


@pytest.mark.parametrize(
    ("section", "start"),
    [
        ([], "workload: expected a mapping"),
        ({}, "workload: set 'requests' or 'duration'"),
        ({"requests": 10}, "workload.rate: is missing"),
        ({"rate": "40/s"}, "workload: set 'requests' or 'duration'"),
        (GOOD | {"request": 1}, "workload.request: there is no such key. Did you mean 'requests'?"),
        (GOOD | {"requests": 0}, "workload.requests: must lie between 1 and"),
        (GOOD | {"requests": "many"}, "workload.requests: expected a whole number"),
        (GOOD | {"requests": True}, "workload.requests: expected a whole number"),
        (GOOD | {"rate": 40}, "workload.rate: 40 is not a rate"),
        (GOOD | {"rate": "0/s"}, "workload.rate: '0/s' is not a rate"),
        (GOOD | {"rate": "-1/s"}, "workload.rate: '-1/s' is not a rate"),
        (GOOD | {"rate": "1/fortnight"}, "workload.rate: '1/fortnight' is not a rate"),
        (GOOD | {"duration": 5}, "workload.duration: 5 is not a duration"),
        (GOOD | {"duration": "0s"}, "workload.duration: must be greater than zero"),
        (
            GOOD | {"rate": "1/h", "requests": 1_000_000, "arrival": "constant"},
            "workload.rate: request 2401 would arrive after 100 days; the limit is 100 days. Raise the rate.",
        ),
        (
            GOOD | {"arrival": "poison"},
            "workload.arrival: no arrival process is called 'poison'. Did you mean 'poisson'?",
        ),
        (GOOD | {"arrival": {"process": "weird"}}, "workload.arrival.process: no arrival process is called 'weird'"),
        (GOOD | {"arrival": {"cv": 2}}, "workload.arrival: 'process' is missing"),
        (GOOD | {"arrival": {"process": "gamma", "cv": 0}}, "workload.arrival.cv: must lie between"),
        (GOOD | {"arrival": {"process": "gamma", "cv": -2}}, "workload.arrival.cv: must lie between"),
        (GOOD | {"arrival": {"process": "poisson", "cv": 2}}, "workload.arrival.cv: only the gamma process"),
        (GOOD | {"arrival": {"process": "gamma", "shape": 2}}, "workload.arrival.shape: there is no such key"),
        (GOOD | {"arrival": 3}, "workload.arrival: expected a mapping, got 3"),
        (GOOD | {"prompt_tokens": 0}, "workload.prompt_tokens: a length is a whole number between 1 and"),
        (GOOD | {"prompt_tokens": 1.5}, "workload.prompt_tokens: a length is a whole number"),
        (GOOD | {"prompt_tokens": float("nan")}, "workload.prompt_tokens: a length is a whole number"),
        (GOOD | {"prompt_tokens": "long"}, "workload.prompt_tokens: expected a number or a mapping"),
        (GOOD | {"prompt_tokens": {"mean": 5}}, "workload.prompt_tokens: 'dist' is missing"),
        (
            GOOD | {"prompt_tokens": {"dist": "norml", "mean": 5}},
            "workload.prompt_tokens.dist: no distribution is called",
        ),
        (GOOD | {"prompt_tokens": {"dist": ["normal"]}}, "workload.prompt_tokens.dist: no distribution is called"),
        (GOOD | {"prompt_tokens": {"dist": "constant", "value": -3}}, "workload.prompt_tokens.value: a length"),
        (GOOD | {"output_tokens": {"dist": "normal", "mean": 5}}, "workload.output_tokens: 'std' is missing"),
        (
            GOOD | {"output_tokens": {"dist": "normal", "mean": -5, "std": 1}},
            "workload.output_tokens.mean: must be above 0",
        ),
        (GOOD | {"output_tokens": {"dist": "normal", "mean": 5, "std": -1}}, "workload.output_tokens.std: must lie"),
        (GOOD | {"output_tokens": {"dist": "exponential", "mean": 0}}, "workload.output_tokens.mean: must be above 0"),
        (
            GOOD | {"output_tokens": {"dist": "lognormal", "median": 5, "sigma": 1}},
            "workload.output_tokens.median: there is no",
        ),
        (
            GOOD | {"output_tokens": {"dist": "lognormal", "mean": 5, "std": 1, "sigma": 1}},
            "workload.output_tokens.sigma: there",
        ),
        (
            GOOD | {"output_tokens": {"dist": "exponential", "mean": 9, "min": 0}},
            "workload.output_tokens.min: must lie",
        ),
        (
            GOOD | {"output_tokens": {"dist": "exponential", "mean": 9, "min": 9, "max": 3}},
            "workload.output_tokens.min: 9 is",
        ),
        (GOOD | {"output_tokens": {"dist": "empirical"}}, "workload.output_tokens: an empirical distribution needs"),
        (
            GOOD | {"output_tokens": {"dist": "empirical", "values": []}},
            "workload.output_tokens.values: list at least one",
        ),
        (GOOD | {"output_tokens": {"dist": "empirical", "values": [5, 0]}}, "workload.output_tokens.values: a length"),
        (
            GOOD | {"output_tokens": {"dist": "empirical", "values": [5, 6], "weights": [1]}},
            "workload.output_tokens.weights: 1 weights for 2 values",
        ),
        (
            GOOD | {"output_tokens": {"dist": "empirical", "values": [5, 6], "weights": [1, 0]}},
            "workload.output_tokens.weights: a weight is a positive number, got 0",
        ),
        (
            GOOD | {"output_tokens": {"dist": "empirical", "path": "none.txt"}},
            "workload.output_tokens.path: 'none.txt'",
        ),
        (GOOD | {"max_tokens": 0}, "workload.max_tokens: a length is a whole number"),
        (GOOD | {"prefix": 5}, "workload.prefix: expected a mapping"),
        (GOOD | {"prefix": {"groups": 5}}, "workload.prefix: 'tokens' is missing"),
        (GOOD | {"prefix": {"groups": 0, "tokens": 5}}, "workload.prefix.groups: must lie"),
        (GOOD | {"prefix": {"groups": 5, "tokens": 0}}, "workload.prefix.tokens: must lie"),
        (GOOD | {"prefix": {"groups": 5, "tokens": 5, "share": 1.5}}, "workload.prefix.share: a probability"),
        (
            GOOD | {"prefix": {"groups": 5, "tokens": 5, "popularity": "zip"}},
            "workload.prefix.popularity: no popularity",
        ),
        (
            GOOD | {"prefix": {"groups": 5, "tokens": 5, "popularity": [1, 2]}},
            "workload.prefix.popularity: 2 weights for 5",
        ),
        (GOOD | {"prefix": {"groups": 1, "tokens": 5, "popularity": [-1]}}, "workload.prefix.popularity: a weight is"),
        (GOOD | {"prefix": {"groups": 1, "tokens": 5, "popularity": ["a"]}}, "workload.prefix.popularity: Expected"),
        (
            GOOD | {"prefix": {"groups": 5, "tokens": 5, "popularity": {"dist": "zipf", "s": -1}}},
            "workload.prefix.popularity.s: must lie",
        ),
        (
            GOOD | {"prefix": {"groups": 5, "tokens": 5, "popularity": {"dist": "uniform", "s": 1}}},
            "workload.prefix.popularity.s: only zipf",
        ),
        ({"trace": TRACE, "rate": "40/s"}, "workload.rate: is not valid with a trace. Use workload.trace.speed"),
        ({"trace": TRACE, "requests": 5}, "workload.requests: is not valid with a trace. Use workload.trace.limit"),
        ({"trace": TRACE, "prefix": {}}, "workload.prefix: is not valid with a trace. Remove it"),
        ({"trace": "t.jsonl"}, "workload.trace: expected a mapping"),
        ({"trace": {"format": "mooncake"}}, "workload.trace: 'path' is missing"),
        (
            {"trace": TRACE | {"format": "mooncak"}},
            "workload.trace.format: no trace format is called 'mooncak'. Did you",
        ),
        ({"trace": TRACE | {"speed": 0}}, "workload.trace.speed: must lie"),
        ({"trace": TRACE | {"speed": -1}}, "workload.trace.speed: must lie"),
        ({"trace": TRACE | {"limit": 0}}, "workload.trace.limit: must be at least 1"),
        ({"trace": TRACE | {"block_tokens": 0}}, "workload.trace.block_tokens: must lie"),
        (
            {"trace": TRACE | {"format": "azure", "block_tokens": 16}},
            "workload.trace.block_tokens: the azure format has no",
        ),
        ({"trace": TRACE | {"colour": 1}}, "workload.trace.colour: there is no such key"),
        ({"trace": TRACE}, "workload.trace.path: cannot open 't.jsonl' (No such file"),
        ({"trace": TRACE | {"path": "."}}, ".: the file cannot be read (Is a directory"),
        ({"trace": TRACE | {"replay": "thinking"}}, "workload.trace.replay: expected 'think' or 'timestamps'"),
        ({"trace": TRACE | {"sessions": "guessed"}}, "workload.trace.sessions: expected 'recorded' or 'derived' or"),
        ({"trace": TRACE | {"replay": "think", "sessions": "none"}}, "workload.trace.replay: think needs sessions"),
        ({"trace": TRACE | {"starts": {}}}, "workload.trace.starts: set either a rate or users: {rate: 0.2/s"),
        (
            {"trace": TRACE | {"starts": {"rate": "1/s", "users": 2}}},
            "workload.trace.starts: set either a rate or users",
        ),
        ({"trace": TRACE | {"starts": {"rate": "1"}}}, "workload.trace.starts.rate: '1' is not a rate"),
        (
            {"trace": TRACE | {"starts": {"rate": "1/s", "pause": "1s"}}},
            "workload.trace.starts.pause: is valid with users",
        ),
        ({"trace": TRACE | {"starts": {"rate": "1/s", "arrival": "po"}}}, "workload.trace.starts.arrival: no arrival"),
        ({"trace": TRACE | {"starts": {"users": 0}}}, "workload.trace.starts.users: must lie between 1"),
        ({"trace": TRACE | {"starts": {"users": 2, "pause": 3}}}, "workload.trace.starts.pause: 3 is not a duration"),
        (
            {"trace": TRACE | {"starts": {"users": 2, "arrival": "poisson"}}},
            "workload.trace.starts.arrival: is valid with",
        ),
        (
            {"trace": TRACE | {"starts": {"users": 2}, "replay": "timestamps"}},
            "workload.trace.starts.users: is not valid with replay: timestamps",
        ),
        ({"trace": TRACE | {"transforms": [{"capp": {}}]}}, "workload.trace.transforms[0]: no transform is called"),
    ],
)
def test_a_mistake_in_the_section_is_told_at_its_key(section: Any, start: str) -> None:
    assert error_of(section).startswith(start)


def row(**changed: Any) -> str:
    return json.dumps({"timestamp": 5, "input_length": 600, "output_length": 3, "hash_ids": [0, 1]} | changed)


def lacking(name: str) -> str:
    return json.dumps({key: value for key, value in json.loads(row()).items() if key != name})


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (row(input_length=0, hash_ids=[]), "input_length must lie between 1 and"),
        (row(input_length=-4), "input_length must lie between 1 and"),
        (row(output_length=0), "output_length must lie between 1 and"),
        (row(output_length=10**30), "output_length must lie between 1 and"),
        (row(input_length="600"), "Expected `int`, got `str` - at `$.input_length`"),
        (row(output_length=1.5), "Expected `int`, got `float` - at `$.output_length`"),
        (row(hash_ids=[0]), "hash_ids has 1 entry, but 600 tokens are 2 blocks of 512. No block size"),
        (row(hash_ids=[0, 1, 2]), "hash_ids has 3 entries, but 600 tokens are 2 blocks of 512. No block size"),
        (row(hash_ids=[0, "a"]), "Expected `int`, got `str` - at `$.hash_ids[1]`"),
        (row(hash_ids=None), "Expected `array`, got `null` - at `$.hash_ids`"),
        (row(timestamp=4), "timestamp 4 is earlier than that of a previous request. Sort the file by time."),
        (row(timestamp=-1), "timestamp must be a time in ms since the start between 0 and 100 days, got -1."),
        (row(timestamp="5"), "Expected `int | float`, got `str` - at `$.timestamp`"),
        (
            row(timestamp=1_700_000_000_000),
            "timestamp must be a time in ms since the start between 0 and 100 days, got 17000",
        ),
        (lacking("timestamp"), "Object missing required field `timestamp`"),
        (lacking("input_length"), "Object missing required field `input_length`"),
        (lacking("output_length"), "Object missing required field `output_length`"),
        (lacking("hash_ids"), "Object missing required field `hash_ids`"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("7", "Expected `object`, got `int`"),
        ("{not json", "JSON is malformed"),
        (row()[:20], "Input data was truncated"),
        ("[" * 100_000, ""),
    ],
)
def test_a_bad_mooncake_line_is_told_by_its_number(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "t.jsonl").write_text("\n".join([row(), "", row(), line, row()]))
    sentence = error_of({"trace": TRACE}, tmp_path)
    assert sentence.startswith(f"t.jsonl line 4: {what}")


def test_bytes_that_are_no_text_inside_a_trace_are_told_by_their_line(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_bytes(row().encode() + b"\n" + b'{"timestamp": "\xff\xfe"}\n')
    assert error_of({"trace": TRACE}, tmp_path).startswith("t.jsonl line 2: ")
    (tmp_path / "a.csv").write_bytes(AZURE.encode() + b"\xff\xfe,1,1\n")
    assert error_of({"trace": {"path": "a.csv"}}, tmp_path).startswith("a.csv line 3: is not text")


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("2023-11-16 18:17:04.0000000,0,10", "ContextTokens must be a whole number between 1 and"),
        ("2023-11-16 18:17:04.0000000,5,0", "GeneratedTokens must be a whole number between 1 and"),
        ("2023-11-16 18:17:04.0000000,-5,1", "ContextTokens must be a whole number"),
        (
            "2023-11-16 18:17:04.0000000,five,1",
            "ContextTokens must be a whole number between 1 and 2147483647, got 'five'.",
        ),
        ("2023-11-16 18:17:04.0000000,5", "has 2 values, but the header has 3 columns."),
        (
            "2023-11-16 18:17:03.9799599,5,5",
            "TIMESTAMP 2023-11-16 18:17:03.9799599 is earlier than that of a previous request",
        ),
        ("2023-13-16 18:17:04.0,5,5", "TIMESTAMP '2023-13-16 18:17:04.0' is not a time like"),
        ("yesterday,5,5", "TIMESTAMP 'yesterday' is not a time like"),
        ("2024-11-16 18:17:03.9799600,5,5", "TIMESTAMP 2024-11-16 18:17:03.9799600 is too late: after 366 days"),
    ],
)
def test_a_bad_azure_line_is_told_by_its_number(tmp_path: Path, line: str, what: str) -> None:
    (tmp_path / "a.csv").write_text(AZURE + line)
    assert error_of({"trace": {"format": "azure", "path": "a.csv"}}, tmp_path).startswith(f"a.csv line 3: {what}")


def test_an_azure_header_lacks_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("TIMESTAMP,ContextTokens\n")
    assert error_of({"trace": {"format": "azure", "path": "a.csv"}}, tmp_path) == (
        "a.csv line 1: the header has no column GeneratedTokens. "
        "The file needs TIMESTAMP, ContextTokens, GeneratedTokens."
    )


@pytest.mark.parametrize("format", ["mooncake", "azure", None])
@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0\0", "t.bin line 1: is not text"),
        (b"\0" * 100, "t.bin line 1: is not text"),
        (
            gzip.compress((row() + "\n").encode() * 50, mtime=0)[:60],
            "t.bin line 1: the compressed data is damaged or cut short",
        ),
        (b"\x1f\x8bnonsense" * 10, "t.bin line 1: the compressed data is damaged or cut short"),
    ],
)
def test_a_file_that_is_no_trace_is_told(tmp_path: Path, content: bytes, what: str, format: str | None) -> None:
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(HeadwayError) as caught:
        read_trace(tmp_path / "t.bin", format)
    assert str(caught.value).startswith(what)


@pytest.mark.parametrize("content", [b"", b"\n\n", gzip.compress(b"", mtime=0)])
def test_an_empty_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.jsonl").write_bytes(content)
    assert error_of({"trace": TRACE}, tmp_path) == "t.jsonl: the file holds no requests."
    assert error_of({"trace": {"path": "t.jsonl"}}, tmp_path) == "t.jsonl: the file is empty."


def test_a_damaged_end_is_told_with_its_line_unless_the_limit_ends_before(tmp_path: Path) -> None:
    lines = "".join(
        row(timestamp=5 + number, hash_ids=[number, number * 7919 % 104729]) + "\n" for number in range(20000)
    )
    (tmp_path / "t.jsonl").write_bytes(gzip.compress(lines.encode())[:-5000])
    sentence = error_of({"trace": TRACE}, tmp_path)
    number = int(sentence.removeprefix("t.jsonl line ").split(":")[0])
    assert 100 < number < 20000 and "compressed data is damaged" in sentence
    trace = {"format": "mooncake", "path": str(tmp_path / "t.jsonl"), "limit": 50}
    assert len(list(WorkloadSpec(trace=trace).plan(1, "m"))) == 50


@pytest.mark.parametrize("first", ['{"timestamp": 1, "input_length": 5}', "Timestamp,Request tokens", "hello"])
def test_a_format_that_cannot_be_told_is_asked_for(tmp_path: Path, first: str) -> None:
    (tmp_path / "t.x").write_text(first + "\n")
    with pytest.raises(HeadwayError) as caught:
        inspect(tmp_path / "t.x")
    start = "t.x: cannot detect the format of this file. Set "
    assert str(caught.value).startswith(start + "format to one of headway, mooncake, azure, ")
    assert error_of({"trace": {"path": "t.x"}}, tmp_path).startswith(
        start + "workload.trace.format to one of headway, "
    )


def test_inspect_tells_mistakes_in_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(row())
    for arguments, start in [
        ({"capacities": [0]}, "capacities: must be at least 1 block, or inf"),
        ({"instances": [0]}, "instances: must be at least 1, got 0"),
        ({"format": "csv"}, "format: no trace format is called 'csv'"),
    ]:
        with pytest.raises(HeadwayError) as caught:
            inspect(tmp_path / "t.jsonl", **arguments)  # type: ignore[arg-type]
        assert str(caught.value).startswith(start)
    with pytest.raises(HeadwayError, match=r"none.jsonl: the file cannot be read \(No such file"):
        inspect(tmp_path / "none.jsonl")
