"""A table of one's own: which columns have what, in the forms that real files have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headway import HeadwayError, convert_trace, simulate
from headway.workload.spec import WorkloadSpec
from headway.workload.traces import open_trace, sorting, table_files
from headway.workload.traces.columns import guess_columns, parse_columns, write_columns
from headway.workload.traces.record import Options, Record

PLAIN = "arrival=ts,prompt=in,output=out"
MS = 10**9
S = 10**12


def write(folder: Path, text: str, name: str = "my.csv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def read(file: Path, mapping: str = PLAIN, **options: Any) -> list[Record]:
    return list(open_trace(file, options=Options(columns=parse_columns(mapping, "--map"), **options)).records)


def rows(file: Path, mapping: str = PLAIN, **options: Any) -> list[tuple[int | None, int, int]]:
    return [(each.at_ps, each.prompt_tokens, each.output_tokens) for each in read(file, mapping, **options)]


THREE = [(0, 100, 10), (1500 * MS, 200, 20), (2 * S, 300, 30)]


@pytest.mark.parametrize(
    ("text", "mapping"),
    [
        ("ts,in,out\n0,100,10\n1.5,200,20\n2,300,30\n", PLAIN),
        ("ts;in;out\n0;100;10\n1,5;200;20\n2;300;30\n", PLAIN),  # decimal commas
        ("\ufeffts\tin\tout\r\n0\t100\t10\r\n1.5\t200\t20\r\n2\t300\t30\r\n", PLAIN),  # a BOM, tabs, Windows lines
        ('ts,in,out\n"7,0",100,10\n"8,5","200",20\n\n9,300,30\n', PLAIN),  # quotes, an empty line
        ("ts,in,out\n5000,100,10\n6500,200,20\n7000,300,30\n", "arrival=ts:ms,prompt=in,output=out"),
        ("ts,in,out\n1700000000,100,10\n1700000001.5,200,20\n1700000002,300,30\n", PLAIN),  # seconds since 1970
        ("ts,in,out\n1700000000000,100,10\n1700000001500,200,20\n1700000002000,300,30\n", PLAIN),  # milliseconds
        ("ts,in,out\n1700000000000000000,100,10\n1700000001500000000,200,20\n1700000002000000000,300,30\n", PLAIN),
        ("ts,in,out\n2026-01-01T00:00:00Z,100,10\n2026-01-01 00:00:01.5,200,20\n2026-01-01T01:00:02+01:00,300,30",
         PLAIN),
        ("ts,in,out\n1767225600000,100,10\n2026-01-01T00:00:01.5Z,200,20\n1767225602000,300,30\n", PLAIN),  # mixed
        ("ts,in,out\n2,300,30\n0,100,10\n1.5,200,20\n", PLAIN),  # not in order
        ("x,out,ts,in\n,10.0,0,100\n?,20,1.5,200\n,30,2,300.0\n", PLAIN),
    ],
)  # fmt: skip
def test_times_and_numbers_are_read_in_the_forms_that_files_have(text: str, mapping: str, tmp_path: Path) -> None:
    assert rows(write(tmp_path, text), mapping) == THREE


def test_json_lines_may_be_nested_and_packed(tmp_path: Path) -> None:
    lines = "".join(json.dumps({"t": at / S, "usage": {"in": a, "out": b}, "more": None}) + "\n" for at, a, b in THREE)
    mapping = "arrival=t,prompt=usage.in,output=usage.out"
    (tmp_path / "my.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert rows(tmp_path / "my.jsonl.gz", mapping) == THREE
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: pip install zstandard")
    (tmp_path / "my.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))
    assert rows(tmp_path / "my.jsonl.zst", mapping) == THREE


def test_parquet_has_times_and_numbers_of_its_own(tmp_path: Path) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed: pip install 'headway[data]'")
    stamps = ["2026-01-01T00:00:00", "2026-01-01T00:00:01.5", "2026-01-01T00:00:02"]
    frame = polars.DataFrame({"ts": stamps, "in": [100, 200, 300], "out": [10.0, 20.0, 30.0], "x": [1, 2, 3]})
    frame.with_columns(polars.col("ts").str.to_datetime()).write_parquet(tmp_path / "my.parquet")
    assert rows(tmp_path / "my.parquet") == THREE


def test_other_fields_are_read_and_empty_cells_are_none(tmp_path: Path) -> None:
    text = "ts,in,out,conv,org,tier,m,cap,rid\n0,9,1,a,acme,batch,llama,50,r1\n1,9,1,,NULL,,,,\n"
    mapping = f"{PLAIN},session=conv,tenant=org,class=tier,model=m,max_tokens=cap,id=rid"
    first, second = read(write(tmp_path, text), mapping)
    assert (first.session, first.tenant, first.slo_class, first.model, first.max_tokens, first.id) == (
        "a", "acme", "batch", "llama", 50, "r1"
    )  # fmt: skip
    others = (second.session, second.tenant, second.slo_class, second.model, second.max_tokens, second.id)
    assert others == (None,) * 6


def test_a_turn_begins_with_the_turns_before_it_if_it_is_long_enough(tmp_path: Path) -> None:
    text = "ts,in,out,conv\n0,64,32,a\n1,200,16,a\n2,40,8,a\n3,64,32,b\n"
    blocks = [each.blocks for each in read(write(tmp_path, text), f"{PLAIN},session=conv")]
    ids = [[first + step for first, count in runs or () for step in range(count)] for runs in blocks]
    assert [len(each) for each in ids] == [4, 12, 2, 4]
    assert ids[1][:4] == ids[0] and len(set(ids[1])) == 12  # 96 tokens of the first turn are 6 blocks, 4 of the prompt
    assert not set(ids[2]) & set(ids[1])  # it is shorter than what came before, so it is another text
    assert not set(ids[3]) & set(ids[0])


def test_prompts_of_one_prefix_share_what_the_shortest_of_them_has(tmp_path: Path) -> None:
    text = "ts,in,out,sys\n0,70,1,x\n1,200,1,x\n2,200,1,y\n3,50,1,y\n4,30,1,\n"
    mapping = f"{PLAIN},prefix=sys"
    reader = open_trace(write(tmp_path, text), options=Options(columns=parse_columns(mapping, "--map")))
    records = list(reader.records)
    ids = [[first + step for first, count in each.blocks or () for step in range(count)] for each in records]
    assert ids[0][:4] == ids[1][:4] and ids[0][0] != ids[2][0] and ids[2][:3] == ids[3]
    assert not set(ids[1][4:]) & set(ids[0])
    assert any("assumed" in note for note in reader.info.extra["notes"])


def test_bad_rows_are_counted_and_named_and_skipped_if_asked(tmp_path: Path) -> None:
    bad = ["-1,5,5", "x,5,5", "1,-5,5", "1,5,", "1,5.5,5", "1,5"]
    file = write(tmp_path, "ts,in,out\n" + "".join(f"0,9,1\n{row}\n" for row in bad))
    with pytest.raises(HeadwayError) as error:
        rows(file)
    said = str(error.value)
    assert said.startswith(
        "my.csv: 6 of 12 rows are bad: line 3: arrival (ts) is negative; line 5: arrival (ts) 'x' is "
    )
    assert said.endswith("; and 1 more. Mend them, or skip them: pass skip_bad=True.")
    assert rows(file, skip_bad=True) == [(0, 9, 1)] * 6


def test_dates_and_times_from_0_do_not_mix(tmp_path: Path) -> None:
    file = write(tmp_path, "ts,in,out\n2026-01-01T00:00:00Z,9,1\n5,9,1\n")
    with pytest.raises(HeadwayError, match="line 3: arrival is a date in some rows, and a time from 0 in others"):
        rows(file)
    assert rows(file, skip_bad=True) == [(0, 9, 1)]


def test_a_unit_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    file = write(tmp_path, "ts,in,out\n0,9,1\n20000000,9,1\n")
    with pytest.raises(HeadwayError, match=r"the last arrival is after 231 days.*Check the unit of arrival"):
        rows(file)
    assert rows(file, "arrival=ts:ms,prompt=in,output=out")[1][0] == 20000 * S


@pytest.mark.parametrize(
    ("mapping", "unit"), [("arrival=ts:s,prompt=in,output=out", "ms"), ("arrival=ts:ms,prompt=in,output=out", "us")]
)
def test_dates_after_2100_are_an_error_that_names_the_unit_that_fits(mapping: str, unit: str, tmp_path: Path) -> None:
    first = 1_763_000_000_000 * (1 if unit == "ms" else 1000)
    file = write(tmp_path, f"ts,in,out\n{first},9,1\n{first + 6},9,1\n")
    fits = f"all arrivals are after 2100. Check the unit of arrival. {unit} fits: write arrival=ts:{unit}."
    with pytest.raises(HeadwayError, match=fits):
        rows(file, mapping)
    assert len(rows(file, f"arrival=ts:{unit},prompt=in,output=out")) == 2


@pytest.mark.parametrize(
    ("ask", "format", "remedy"),
    [
        ("format", None, 'Pass columns="{}", with your columns in place of COLUMN. Otherwise set '),
        ("format", "columns", 'Pass columns="{}", with your columns in place of COLUMN.'),
        ("workload.trace.format", None, 'Set workload.trace.columns: "{}", with your columns in place of COLUMN. Oth'),
        ("arrival.format", None, "Convert it with headway trace convert --map {}, with your columns in place of"),
    ],
)
def test_a_table_without_usual_names_is_an_error_that_names_its_columns(
    ask: str, format: str | None, remedy: str, tmp_path: Path
) -> None:
    file = write(tmp_path, "ts;eingabe;ausgabe;gespraech\n0;9;1;a\n")
    with pytest.raises(HeadwayError) as error:
        open_trace(file, format, ask=ask)
    said = str(error.value)
    columns = "No column has a usual name of prompt and output; the columns are ts, eingabe, ausgabe, gespraech. "
    assert columns + remedy.format("arrival=ts,prompt=COLUMN,output=COLUMN") in said
    assert said.partition("to one of headway")[0].count("COLUMN") == 3  # the remedy for tables comes first


def test_short_names_of_columns_are_guessed(tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, "ts,in,out,conv\n0,9,1,a\n"))
    assert guess is not None and write_columns(guess) == f"{PLAIN},session=conv"


def test_a_scenario_names_its_own_key_for_bad_rows(tmp_path: Path) -> None:
    trace = {"path": str(write(tmp_path, "ts,in,out\n0,9,1\n1,-5,1\n")), "columns": PLAIN}
    with pytest.raises(HeadwayError, match=r"Mend them, or skip them: set workload.trace.skip_bad: true\.$"):
        list(WorkloadSpec(trace=trace).plan(1, "m"))
    assert len(list(WorkloadSpec(trace={**trace, "skip_bad": True}).plan(1, "m"))) == 1


def test_large_files_in_any_order_are_sorted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "ROWS", 7)
    numbers = [(7 * place) % 100 for place in range(100)]
    file = write(tmp_path, "ts,in,out\n" + "".join(f"{at},{at + 1},1\n" for at in numbers))
    assert rows(file) == [(at * S, at + 1, 1) for at in range(100)]


TALK = "ts,in,out,conv,lat_ms\n0,100,10,a,2500\n4,120,10,a,1000\n4.5,150,10,a,\n9,50,5,b,10\n9.5,200,10,a,500\n"


def test_durations_of_answers_give_the_think_times_of_sessions(tmp_path: Path) -> None:
    table = write(tmp_path, TALK)
    records = read(table, f"{PLAIN},session=conv,duration=lat_ms:ms")
    # The second request comes 1.5 s after the first answer, the third before the second answer has ended.
    assert [each.delay_ps for each in records] == [None, 1500 * MS, 0, None, None]
    opened = open_trace(table, options=Options(columns=parse_columns(f"{PLAIN},session=conv", "--map")))
    assert not opened.info.think_times and "recorded times" in opened.info.extra["notes"][-1]


def test_sessions_without_durations_are_replayed_by_their_recorded_times(tmp_path: Path) -> None:
    write(tmp_path, TALK)
    given = {"workload": {"trace": {"path": str(tmp_path / "my.csv"), "columns": f"{PLAIN},session=conv"}}}
    assert [at / S for at in simulate(given).requests["arrival_ps"]] == [0, 4, 4.5, 9, 9.5]
    convert_trace(tmp_path / "my.csv", tmp_path / "own.jsonl", columns=f"{PLAIN},session=conv")
    converted = {"workload": {"trace": {"path": str(tmp_path / "own.jsonl")}}}
    assert [at / S for at in simulate(converted).requests["arrival_ps"]] == [0, 4, 4.5, 9, 9.5]
    given["workload"]["trace"]["columns"] += ",duration=lat_ms:ms"
    first_answer = simulate(given).requests["finished_ps"][0]
    second = next(at for at in simulate(given).requests["arrival_ps"] if at)
    assert second == first_answer + 1500 * MS


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "a\tb"])
def test_names_with_control_characters_are_refused(name: str, tmp_path: Path) -> None:
    table = write(tmp_path, f'ts,in,out,org\n0,100,10,"{name}"\n')
    with pytest.raises(HeadwayError, match=r"tenant \(org\) has control characters") as told:
        read(table, f"{PLAIN},tenant=org")
    assert "\x1b" not in str(told.value)


def test_progress_counts_the_rows_that_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "BATCH", 2)
    stages: list[tuple[str, int]] = []
    file = write(tmp_path, "ts,in,out\n1,5,5\n2,5,5\n0,5,5\n")
    assert len(read(file, stage=lambda unit, finished: stages.append((unit, finished)))) == 3
    assert stages == [("rows checked", 2), ("rows checked", 3)] * 2  # the third row is not in order
