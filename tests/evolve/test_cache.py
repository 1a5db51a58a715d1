"""The cache: whole records or none with several writers, and no records of another version."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.evolve.cache import Cache, Key, Record

KEY = Key("0123456789abcdef", "fedcba9876543210", 7)
RECORD = Record({"latency.ttft.mean": 1.25, "latency.e2e.mean": None})


def test_a_record_is_found_by_policies_scenario_and_seed(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "kept"):
        cache = Cache(folder)
        assert cache.find(KEY) is None
        cache.keep(KEY, RECORD)
        assert cache.find(KEY) == RECORD
        for other in (
            Key("x" * 16, KEY.scenario, 7),
            Key(KEY.policies, "x" * 16, 7),
            Key(KEY.policies, KEY.scenario, 8),
        ):
            assert cache.find(other) is None
        assert (cache.hits, cache.misses) == (1, 4)


def test_a_folder_outlives_the_process_and_holds_the_same_bytes(tmp_path: Path) -> None:
    Cache(tmp_path / "one").keep(KEY, RECORD)
    Cache(tmp_path / "two").keep(KEY, RECORD)
    assert Cache(tmp_path / "one").find(KEY) == RECORD
    assert (tmp_path / "one" / KEY.file).read_bytes() == (tmp_path / "two" / KEY.file).read_bytes()


def test_a_record_without_a_figure_that_is_asked_for_is_none_until_it_is_completed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.keep(KEY, RECORD)
    assert cache.find(KEY, ("slo.goodput_ratio",)) is None
    assert cache.find(KEY, words=True) is None
    Cache(tmp_path).keep(KEY, Record({"slo.goodput_ratio": 0.5}, told="words"))
    both = cache.find(KEY, ("slo.goodput_ratio", "latency.ttft.mean"), words=True)
    assert both is not None and both.told == "words" and len(both.figures) == 3


def test_an_error_answers_whatever_is_asked() -> None:
    cache = Cache()
    cache.keep(KEY, Record(error="it divides by zero."))
    assert cache.find(KEY, ("slo.goodput_ratio",), words=True) == Record(error="it divides by zero.")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format":1,"headway":"0","record":{}}', b"\xff\xfe"])
def test_what_is_broken_or_of_another_version_is_not_there(tmp_path: Path, content: bytes) -> None:
    Cache(tmp_path).keep(KEY, RECORD)
    (tmp_path / KEY.file).write_bytes(content)
    cache = Cache(tmp_path)
    assert cache.find(KEY) is None
    cache.keep(KEY, RECORD)
    assert Cache(tmp_path).find(KEY) == RECORD


def write_again_and_again(folder: Path) -> None:
    cache = Cache(folder)
    for turn in range(100):
        key = Key("p" * 16, "s" * 16, turn % 5)
        known = cache.find(key)
        assert known is None or known.figures["a"] == 0.5, known
        Cache(folder).keep(key, Record({f"f{n}": n / 3 for n in range(400)} | {"a": 0.5}))


def test_several_processes_write_the_same_folder_and_leave_whole_records_alone(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_again_and_again, args=(tmp_path,)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    files = sorted(file for file in tmp_path.rglob("*") if file.is_file())
    assert [file.name for file in files] == [f"{'p' * 16}-{'s' * 16}-{seed}.json" for seed in range(5)]
    for file in files:
        assert len(json.loads(file.read_bytes())["record"]["figures"]) == 401


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HeadwayError, match="cannot be written"):
        Cache(tmp_path / "file" / "cache")
