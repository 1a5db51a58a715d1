"""BurstGPT CSV of all versions, by column name."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.workload.traces import FORMATS, detect, open_trace
from headway.workload.traces.record import Record

V1 = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,0,1087,Conversation log
118.5,GPT-4,417,276,693,API log
"""
V3 = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,71,10,ChatGPT,472,18,490,Conversation log
30.5,71,2,ChatGPT,500,20,520,Conversation log
31,,1.25,GPT-4,417,276,693,API log
32,71,,ChatGPT,600,0,600,Conversation log
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "b.csv"
    path.write_text(text)
    return path


def test_the_first_versions_are_read_and_failures_are_counted_not_replayed(tmp_path: Path) -> None:
    path = write(tmp_path, V1)
    assert detect(path) == "burstgpt"
    reader = open_trace(path)
    assert list(reader.records) == [
        Record(472, 18, 0, model="ChatGPT", kind="chat"),
        Record(417, 276, 113_500_000_000_000, model="GPT-4", kind="completion"),
    ]
    assert (
        reader.info.extra["failures"] == 1
        and "are skipped: 1" in reader.info.extra["notes"][0]
        and not reader.info.sessions
    )


def test_the_third_version_has_sessions_and_how_long_answers_took(tmp_path: Path) -> None:
    reader = open_trace(write(tmp_path, V3))
    record, two, three = reader.records
    assert reader.info.sessions
    assert (record.session, record.delay_ps, record.extra) == ("71", None, {"elapsed_s": 10.0})
    assert (two.session, two.delay_ps) == ("71", 15_500_000_000_000)
    assert (three.session, three.delay_ps, three.extra) == (None, None, {"elapsed_s": 1.25})


@pytest.mark.parametrize("text", [V1, V3])
def test_what_is_written_reads_back(tmp_path: Path, text: str) -> None:
    reader = open_trace(write(tmp_path, text))
    source = list(reader.records)
    writer = FORMATS["burstgpt"].write
    assert writer is not None
    assert writer(tmp_path / "out.csv", reader.info, source) == []
    assert list(open_trace(tmp_path / "out.csv").records) == source


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("118.5,GPT", "noon,GPT", "line 4: Timestamp must be a time in seconds, got 'noon'."),
        ("118.5,GPT", "-1,GPT", "line 4: Timestamp must be a time in seconds, got '-1'."),
        (
            "118.5,GPT",
            "2,GPT",
            "line 4: Timestamp 2 is earlier than that of a previous request. Sort the file by time.",
        ),
        ("118.5,GPT", "99999999,GPT", "line 4: Timestamp 99999999 is too late: after 1157 days"),
        (",417,", ",0,", "line 4: Request tokens must be a whole number between 1"),
        (",276,", ",x,", "line 4: Response tokens must be a whole number between 0"),
        (",276,693,", ",276,", "line 4: has 5 values, but the header has 6 columns."),
    ],
)
def test_a_bad_row_is_told_by_line_and_column(tmp_path: Path, old: str, new: str, what: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        list(open_trace(write(tmp_path, V1.replace(old, new))).records)
    assert str(caught.value).startswith(f"b.csv {what}")


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"line 1: the header has no column Model\. The file needs Timestamp, Model"):
        list(open_trace(write(tmp_path, V1.replace("Model", "Engine")), "burstgpt").records)
