"""The mapping of a table of one's own: which column has which field."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway import HeadwayError, simulate
from headway.workload.traces import open_trace
from headway.workload.traces.columns import guess_columns, parse_columns, write_columns
from headway.workload.traces.record import Options

PLAIN = "arrival=ts,prompt=in,output=out"


def write(folder: Path, text: str, name: str = "my.csv") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ("arrival=ts,prompt=in", "--map: output has no column. Add output=COLUMN."),
        ("arrival=ts,promt=in,output=out", "--map: no field is called 'promt'. Did you mean 'prompt'?"),
        ("arrival=ts:h,prompt=in,output=out", "--map: 'h' is not a unit of arrival. Use s, ms, us, ns, ps or excel."),
        ("arrival", "--map: write field=column, separated by commas"),
        (f"{PLAIN},prompt=x", "--map: prompt is mapped twice."),
        ("arrival=ts,prompt=inn,output=out", "my.csv: no column is called 'inn' (for prompt). Did you mean 'in'?"),
    ],
)
def test_a_wrong_mapping_is_one_sentence(mapping: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(HeadwayError) as error:
        file = write(tmp_path, "ts,in,out\n0,9,1\n")
        open_trace(file, options=Options(columns=parse_columns(mapping, "--map")))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("Time,Prompt Tokens,Completion_Tokens,x", "arrival=Time,prompt=Prompt Tokens,output=Completion_Tokens"),
        ("ts_ms,inputLength,outTok,conv-id", "arrival=ts_ms:ms,prompt=inputLength,output=outTok,session=conv-id"),
        ("a,b,c", None),
    ],
)  # fmt: skip
def test_columns_with_usual_names_are_guessed(header: str, expected: str | None, tmp_path: Path) -> None:
    guess = guess_columns(write(tmp_path, f"{header}\n" + "1," * header.count(",") + "1\n"))
    assert (None if guess is None else write_columns(guess)) == expected


def test_a_file_of_unknown_format_is_told_what_its_columns_look_like(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match=r"columns=.arrival=time,prompt=prompt_tokens,output=output_tokens"):
        open_trace(write(tmp_path, "time,prompt_tokens,output_tokens\n0,1,1\n"))


def test_a_scenario_names_the_columns_of_its_trace(tmp_path: Path) -> None:
    file = write(tmp_path, "ts,in,out,org\n" + "".join(f"{at},100,8,acme\n" for at in range(5)))
    named = {"arrival": "ts", "prompt": "in", "output": "out", "tenant": "org"}
    result = simulate({"workload": {"trace": {"path": str(file), "columns": named}}, "cluster": {"instances": 1}})
    assert result.summary()["requests"]["completed"] == 5 and set(result.requests["tenant"]) == {"acme"}
