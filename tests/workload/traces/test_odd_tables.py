"""Tables as they come out of logs, spreadsheets and databases: each is read right, or one sentence says what is wrong.

Nothing is read in a way that its writer may not have meant: a number with two meanings is an error.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import resource
import sys
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from alone import alone
from conftest import Run
from headway import convert_trace
from headway.errors import HeadwayError
from headway.workload.traces import csv_table, open_trace, own_table, sorting, table_contents
from headway.workload.traces.columns import parse_columns
from headway.workload.traces.record import Options

PLAIN = "arrival=ts,prompt=in,output=out"
S = 10**12
HEAD = "ts,in,out\n"


def read(file: Path, mapping: str = PLAIN, **options: Any) -> list[tuple[float, int, int]]:
    """The rows of a table: seconds since the first arrival, tokens of the prompt, tokens of the answer."""
    reader = open_trace(file, options=Options(columns=parse_columns(mapping, "--map"), **options))
    return [((each.at_ps or 0) / S, each.prompt_tokens, each.output_tokens) for each in reader.records]


def wrong(file: Path, mapping: str = PLAIN, **options: Any) -> str:
    """The one sentence that says why a table cannot be read."""
    with pytest.raises(HeadwayError) as error:
        read(file, mapping, **options)
    sentence = str(error.value)
    assert "\n" not in sentence and file.name in sentence and len(sentence) < 700
    return sentence


def write(folder: Path, content: str | bytes, name: str = "my.csv") -> Path:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


# --- ten files --------------------------------------------------------------------------------------------------------

GERMAN = """\
Zeitpunkt;Sitzung;Eingabe-Token;Ausgabe-Token;Dauer
31.12.2025 23:59:58,250;a1;1200;85;1,75
31.12.2025 23:59:59,750;a1;1290;40;0,9
01.01.2026 00:00:00,000;b7;"980";12;0,25
"""
SPREADSHEET = "sep=;\r\nBeginn;ein;aus\r\n01.01.2026 08:05;120;30\r\n01.01.2026 08:06;130;31\r\n"
MIXED = HEAD + "1767225600000,10,1\n2026-01-01T00:00:01.500Z,20,2\n1767225602,30,3\n2026-01-01 01:00:03+01,40,4\n"
NESTED = (
    '{"at": "2026-01-01T00:00:00.5Z", "usage": {"in": 5, "out": 1}, "user": "Zoë"}\n'
    '{"at": 1767225601.5, "usage": {"in": 7.0, "out": "2"}, "user": null}\n'
)


def test_german_dates_and_decimal_commas(tmp_path: Path) -> None:
    mapping = "arrival=Zeitpunkt,prompt=Eingabe-Token,output=Ausgabe-Token,session=Sitzung"
    assert read(write(tmp_path, GERMAN), mapping) == [(0, 1200, 85), (1.5, 1290, 40), (1.75, 980, 12)]


def test_a_spreadsheet_with_a_line_for_its_separator_in_two_encodings(tmp_path: Path) -> None:
    mapping = "arrival=Beginn,prompt=ein,output=aus"
    for encoding in ("utf-8-sig", "utf-16"):
        assert read(write(tmp_path, SPREADSHEET.encode(encoding)), mapping) == [(0, 120, 30), (60, 130, 31)]


def test_epochs_in_several_units_mixed_with_dates_and_zones(tmp_path: Path) -> None:
    assert read(write(tmp_path, MIXED)) == [(0, 10, 1), (1.5, 20, 2), (2, 30, 3), (3, 40, 4)]


def test_a_log_in_nested_json_lines_whose_name_hides_its_compression(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'headway[data]'")
    mapping = "arrival=at,prompt=usage.in,output=usage.out,tenant=user"
    for pack in (bytes, gzip.compress, zstandard.ZstdCompressor().compress):
        assert read(write(tmp_path, pack(NESTED.encode()), "log.txt"), mapping) == [(0, 5, 1), (1, 7, 2)]


def test_empty_cells_are_named_with_their_lines(tmp_path: Path) -> None:
    file = write(tmp_path, HEAD + "0,5,5\n1,,5\n,5,5\n2,5,NULL\n\n3,6,6\n")
    assert wrong(file) == (
        "my.csv: 3 of 5 rows are bad: line 3: prompt (in) is empty; line 4: arrival (ts) is empty; "
        "line 5: output (out) is empty. Mend them, or skip them: pass skip_bad=True."
    )
    assert read(file, skip_bad=True) == [(0, 5, 5), (3, 6, 6)]


def test_negative_and_broken_lengths_are_named_with_their_lines(tmp_path: Path) -> None:
    file = write(tmp_path, HEAD + "0,-5,5\n1,5,0\n2,2.5,5\n3,many,5\n4,99999999999,5\n5,1e999999999,5\n6,5,5\n")
    sentence = wrong(file)
    assert "6 of 7 rows are bad: line 2: prompt (in) '-5' is not a whole number from 1 to 2,147,483,647" in sentence
    assert "line 3: output (out) '0' is not" in sentence and "and 1 more. Mend them" in sentence


def test_times_in_any_order_are_sorted(tmp_path: Path) -> None:
    assert read(write(tmp_path, HEAD + "9,3,1\n7.5,1,1\n8,2,1\n")) == [(0, 1, 1), (0.5, 2, 1), (1.5, 3, 1)]


def test_texts_with_commas_quotes_and_line_breaks_keep_their_rows(tmp_path: Path) -> None:
    text = (
        'id,prompt_text,ts,in,out\n1,"Hi, ""you""\n\nsecond line",0,5,1\n2,5" disk,1,6,1\n3,'
        + "x" * 200_000
        + ",2,7,1\n"
    )
    assert read(write(tmp_path, text)) == [(0, 5, 1), (1, 6, 1), (2, 7, 1)]
    assert "line 5: prompt (in) 'x' is not" in wrong(write(tmp_path, text.replace(",1,6,", ",1,x,")))


def test_a_parquet_file_with_zones_nulls_and_floats(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install 'headway[data]'")
    at = [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC), None]
    table = polars.DataFrame({"ts": at, "in": [5.0, 6.0, 7.0], "out": [1, 2, None]})
    table.with_columns(polars.col("ts").dt.convert_time_zone("Asia/Tokyo")).write_parquet(tmp_path / "my.parquet")
    assert "1 of 3 rows is bad: row 3: arrival (ts) is empty" in wrong(tmp_path / "my.parquet")
    assert read(tmp_path / "my.parquet", skip_bad=True) == [(0, 5, 1), (1.5, 6, 2)]
    spans = polars.DataFrame({"ts": [timedelta(seconds=2), timedelta(seconds=3)], "in": [5, 6], "out": [1, 2]})
    spans.write_parquet(tmp_path / "spans.parquet")
    assert read(tmp_path / "spans.parquet") == [(0, 5, 1), (1, 6, 2)]


def rows_in_any_order(count: int) -> Iterator[str]:
    rng = Random(1)
    yield "when;conv;org;in_tok;out_tok;system\n"
    for number in range(count):
        second = number // 100 + rng.randrange(20_000)
        when = f"2026-01-{1 + second // 86400:02d}T{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        lengths = f"{rng.randrange(20, 4000)};{rng.randrange(1, 900)}"
        yield f"{when};c{rng.randrange(count)};o{number % 9};{lengths};s{number % 99}\n"


def peak_mib(source: str, rows_in_memory: int) -> int:
    """Peak memory of a process that converts a table, in MiB."""
    sorting.ROWS = table_contents.REMEMBERED = rows_in_memory  # type: ignore[misc]
    mapping = "arrival=when,session=conv,tenant=org,prompt=in_tok,output=out_tok,prefix=system"
    convert_trace(source, f"{source}.headway.jsonl.gz", columns=mapping)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform != "darwin" else 1 << 20)


def grown(folder: Path, counts: tuple[int, int], rows_in_memory: int) -> int:
    """How much more memory the larger of two tables needs, in MiB."""
    peaks = []
    for count in counts:
        file = folder / f"{count}.csv"
        with file.open("w", encoding="utf-8") as target:
            target.writelines(rows_in_any_order(count))
        peaks.append(alone(peak_mib, str(file), rows_in_memory))
    return peaks[1] - peaks[0]


@pytest.mark.full
def test_memory_does_not_grow_with_a_table_in_any_order(tmp_path: Path) -> None:
    assert grown(tmp_path, (5_000, 50_000), rows_in_memory=2_000) < 8  # the larger table has 2.6 MB more


@pytest.mark.long
def test_a_gigabyte_of_rows_needs_no_more_memory_than_a_tenth_of_it(tmp_path: Path) -> None:
    assert grown(tmp_path, (2_200_000, 22_000_000), rows_in_memory=200_000) < 64


# --- forms of numbers and times ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "tokens"),
    [("1e3", 1000), ("1000.0", 1000), (" 1000 ", 1000), ("1,234,567", 1234567), ("1.234.567", 1234567),
     ("1.234,0", 1234), ("1,234.0", 1234), ("12 000", 12000), ("12\u202f000", 12000), ("12'000", 12000)],
)  # fmt: skip
def test_a_number_of_tokens_may_have_separators_whose_meaning_is_clear(cell: str, tokens: int, tmp_path: Path) -> None:
    assert read(write(tmp_path, f"ts\tin\tout\n0\t{cell}\t1\n")) == [(0, tokens, 1)]


@pytest.mark.parametrize(
    ("cell", "meanings"), [("12.000", "12 or 12000"), ("12,000", "12 or 12000"), ("1,234", "1234")]
)
def test_a_number_of_tokens_with_two_meanings_is_an_error(cell: str, meanings: str, tmp_path: Path) -> None:
    assert f"'{cell}' may mean {meanings}; write it without" in wrong(write(tmp_path, f"ts\tin\tout\n0\t{cell}\t1\n"))


def test_a_comma_in_a_time_separates_decimals_unless_it_also_separates_cells(tmp_path: Path) -> None:
    assert read(write(tmp_path, "ts;in;out\n1,000;1;1\n2,500;2;2\n")) == [(0, 1, 1), (1.5, 2, 2)]
    assert "arrival (ts) '2,500' may mean 2.500 or 2500" in wrong(write(tmp_path, HEAD + '1,1,1\n"2,500",2,2\n'))


@pytest.mark.parametrize(
    "time",
    ["2026-01-31T12:00:00Z", "2026-01-31 12:00:00.000000+00:00", "2026-01-31 13:00:00 +0100", "2026-01-31 13:00+01",
     "2026/01/31 12:00:00 UTC", "31.1.2026 12:00", "2026-01-31T12:00:00,000", "1769860800", "1769860800000000"],
)  # fmt: skip
def test_one_time_in_many_forms(time: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"ts;in;out\n2026-01-31T11:59:59Z;1;1\n{time};2;2\n")
    assert read(file) == [(0, 1, 1), (1, 2, 2)]


@pytest.mark.parametrize("time", ["1/31/2026 3:04 PM", "2026-02-30 00:00:00", "yesterday", "2026-01-31 25:00", "1e400"])
def test_a_time_that_is_unclear_is_shown_beside_one_that_is_clear(time: str, tmp_path: Path) -> None:
    sentence = wrong(write(tmp_path, f"ts;in;out\n{time};1;1\n"))
    assert (
        f"line 2: arrival (ts) '{time}' is neither a number nor a date and time such as 2026-01-31T12:00:00Z"
        in sentence
    )


def test_dates_of_excel_are_noticed_and_read_if_the_unit_says_so(tmp_path: Path) -> None:
    file = write(tmp_path, HEAD + "46023.5,10,5\n46023.50001157407,11,5\n46024.5,12,5\n")
    assert "look like Excel dates. Write arrival=ts:excel; or arrival=ts:s if they are seconds." in wrong(file)
    assert read(file, "arrival=ts:excel,prompt=in,output=out") == [(0, 10, 5), (1, 11, 5), (86400, 12, 5)]
    assert read(file, "arrival=ts:s,prompt=in,output=out")[2] == (1.0, 12, 5)


# --- files ------------------------------------------------------------------------------------------------------------


def zipped(content: bytes) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("sheet1.xml", content)
    return archive.getvalue()


TABLE = (HEAD + "".join(f"{at},5,5\n" for at in range(3000))).encode()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", r"my\.csv: the file is empty\.$"),
        (b"\n \n", r"my\.csv: the file is empty\.$"),
        (HEAD.encode(), r"my\.csv: the table has a header, but no rows\.$"),
        (b"ts\n0\n", r"my\.csv line 1: expected a header with columns, got 'ts'\.$"),
        (b"ts,in,in,out\n0,1,2,3\n", r"my\.csv: two columns are called 'in'\. Rename one of them\.$"),
        (b"ts,in,out,x\n0,5,5,M\xfcller\n", r"my\.csv: is not text in UTF-8\. .*iconv -f LATIN1 -t UTF-8\.$"),
        (b"ts,in,out,M\xfcller\n0,5,5,1\n", r"my\.csv: is not text in UTF-8\."),
        ("ts,in,out\n0,5,5\n".encode("utf-16-le"), r"my\.csv: is not text\."),
        (b"ts,in,out\n0,5\0,5\n", r"line 2: prompt \(in\) '5\\x00' is not a whole number"),
        (b'ts,in,out,x\n0,5,5,"a\n1,5,5,b\n', r"my\.csv line 3: the quotes do not match \(unexpected end of data\)\.$"),
        (b'ts,in,out,x\n0,5,5,"a"b\n1,5,5,b\n', r"my\.csv line 2: the quotes do not match"),
        (b'[{"ts":0,"in":5,"out":5}]', r"my\.csv: is a JSON array\. Write one object per line"),
        (zipped(TABLE), r"my\.csv: is a zip archive or an Excel file\. .*save the sheet as CSV\.$"),
        (bz2.compress(TABLE), r"my\.csv: is compressed with bzip2\. Use gzip or zstd\.$"),
        (lzma.compress(TABLE), r"my\.csv: is compressed with xz\. Use gzip or zstd\.$"),
        (gzip.compress(TABLE)[:-200], r"my\.csv line \d+: the compressed data is damaged or cut short"),
        (b"ts,in,out\n0,5\n1,5,5,9\n", r"line 2: has 2 values, but the header has 3 columns; line 3: has 4 values"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_table_is_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    assert re.search(sentence, wrong(write(tmp_path, content)))


def test_a_zstd_file_of_several_frames_is_read_whole_and_a_cut_one_is_noticed(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: pip install 'headway[data]'")
    frames = zstandard.ZstdCompressor().compress(TABLE) + zstandard.ZstdCompressor().compress(b"3000,5,5\n")
    assert len(read(write(tmp_path, frames, "my.gz"))) == 3001
    assert "the compressed data is damaged or cut short" in wrong(write(tmp_path, frames[:-3], "my.csv.zst"))
    assert "the compressed data is damaged or cut short" in wrong(write(tmp_path, frames[:8] + b"\xff" * 99, "my.zst"))


@pytest.mark.parametrize(
    "text",
    ["ts,in,out\r0,5,1\r1,6,2\r", "ts|in|out\r\n0|5|1\r\n1|6|2\r\n", "\n\nts,in,out\n0,5,1\n\n1,6,2\n",
     "ts,in,out,\n0,5,1,\n1,6,2,\n", '"a,b,c,d";ts;in;out\n9;0;5;1\n9;1;6;2\n', "a,a,ts,in,out\n1,2,0,5,1\n,,1,6,2\n"],
)  # fmt: skip
def test_lines_separators_and_other_columns_do_not_matter(text: str, tmp_path: Path) -> None:
    assert read(write(tmp_path, text)) == [(0, 5, 1), (1, 6, 2)]


def test_a_line_without_end_and_a_quote_without_end_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(csv_table, "MAX_LINE", 1 << 12)
    monkeypatch.setattr(csv_table, "MAX_CELL", 1 << 12)
    request.addfinalizer(partial(csv.field_size_limit, csv.field_size_limit()))
    assert "has a line of more than" in wrong(write(tmp_path, HEAD + "0,5," + "5" * 9000))
    rows = "".join(f"{at},5,5,b\n" for at in range(999))
    assert "the quotes do not match (field larger than" in wrong(write(tmp_path, f'ts,in,out,x\n0,5,5,"a\n{rows}'))


def test_a_column_of_unique_values_is_no_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_table, "MAX_PREFIXES", 9)
    file = write(tmp_path, "ts,in,out,id\n" + "".join(f"{at},5,5,r{at}\n" for at in range(20)))
    assert "prefix (id) has more than 9 values. Map a column that names shared beginnings" in wrong(
        file, f"{PLAIN},prefix=id"
    )


def test_many_sorted_pieces_are_merged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "ROWS", 5)
    monkeypatch.setattr(sorting, "BLOCK", 2)
    times = [(7 * place) % 100 for place in range(100)]
    file = write(tmp_path, HEAD + "".join(f"{at},{at + 1},1\n" for at in times))
    assert read(file) == [(at, at + 1, 1) for at in range(100)]


def test_a_table_whose_columns_cannot_be_guessed_is_told_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(
        HeadwayError, match=r"If it is a table of your own, .* the columns are Zeit, ein, aus\. Pass columns="
    ):
        open_trace(write(tmp_path, "Zeit;ein;aus\n0;1;1\n"))


def test_commands_print_the_sentence_and_nothing_else(tmp_path: Path, headway: Run) -> None:
    file = write(tmp_path, HEAD + "0,5,-5\n")
    for command in (("convert", str(file), "x.jsonl"), ("inspect", str(file))):
        done = headway("trace", *command, "--map", PLAIN, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("headway: my.csv: 1 of 1 rows is bad: line 2: output (out) '-5' is not a whole")
    assert not (tmp_path / "x.jsonl").exists()
