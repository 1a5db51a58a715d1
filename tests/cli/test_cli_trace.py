"""`headway trace`: one file made of another, whole or not at all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT, Run
from headway import cli, inspect_trace, plan
from headway.errors import HeadwayError
from headway.workload.traces import open_trace
from headway.workload.traces.record import Record


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Ten requests of a conversation that grows by a block a turn, in ticks of 2 s."""
    rows = [
        {
            "timestamp": 2000 * (number // 2),
            "input_length": 512 * (number + 1),
            "output_length": 10,
            "hash_ids": list(range(number + 1)),
        }
        for number in range(10)
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def records(file: Path, format: str | None = None) -> list[Record]:
    return list(open_trace(file, format).records)


def trace(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = cli.status(["trace", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_a_verb_says_on_stdout_what_it_wrote(headway: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.mooncake.jsonl"
    done = headway("trace", "cap", str(source), str(out), "--max-turns", "4", "--limit", "9")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"wrote 4 of 9 requests to {out} in mooncake format\n"
    assert not done.stderr
    assert records(out) == records(source)[:4]


def test_json_is_a_small_report(capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    code, said, _ = trace(capsys, "slice", source, out, "--start", "2s", "--end", "6s", "--to", "azure", "--json")
    assert code == 0
    assert json.loads(said) == {
        "in": str(source),
        "out": str(out),
        "read_format": "mooncake",
        "format": "azure",
        "read": 7,  # it stops at the first request after the end
        "written": 4,
        "lost": ["the blocks of prompts"],
        "notes": [],
    }


def test_what_the_target_cannot_express_is_said_once_on_stderr(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    code, _, error = trace(capsys, "convert", source, tmp_path / "out.csv", "--to", "azure")
    assert code == 0
    assert error == "headway: out.csv: the azure format cannot express the blocks of prompts.\n"


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("x.mooncake.jsonl", "mooncake"),
        ("x.azure.csv", "azure"),
        ("x.jsonl", "headway"),
        ("x.JSONL.gz", "headway"),
        ("x.headway.jsonl.gz", "headway"),
    ],
)
def test_the_format_to_write_is_told_by_the_name_where_that_is_safe(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path, name: str, format: str
) -> None:
    code, said, _ = trace(capsys, "convert", source, tmp_path / name, "--json")
    assert code == 0
    assert json.loads(said)["format"] == format
    found = records(tmp_path / name, format)
    assert [record.prompt_tokens for record in found] == [512 * turn for turn in range(1, 11)]


def test_every_transform_is_a_verb_and_they_follow_on_one_another(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    steps: list[tuple[Any, ...]] = [
        ("dequantise", "--grid", "2s", "--seed", "1"),
        ("scale", "--rate", "2", "--prompt-tokens", "0.5"),
        ("slice", "--requests", "2:8"),
        ("filter", "--min-prompt-tokens", "1000", "--max-output-tokens", "10"),
        ("anonymise", "--seed", "secret", "--keep-models"),
        ("assign", "--tenant", "a", "--tenant", "b:2.5:batch"),
        ("cap", "--max-turns", "3"),
    ]
    at = source
    for number, (verb, *options) in enumerate(steps):
        then = tmp_path / f"{number}.jsonl"
        code, _, error = trace(capsys, verb, at, then, *options)
        assert code == 0, error
        at = then
    assert [record.prompt_tokens for record in records(at)] == [1024, 1280, 1536]
    assert {(record.tenant, record.slo_class) for record in records(at)} <= {("a", None), ("b", "batch")}
    merged = tmp_path / "merged.jsonl"
    code, said, _ = trace(capsys, "merge", at, source, merged, "--offset", "1m", "--json")
    assert (code, json.loads(said)["written"]) == (0, 13)
    assert [record.prompt_tokens for record in records(merged)][:4] == [1024, 1280, 1536, 512]


def test_two_pieces_of_one_trace_merge_to_the_whole(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    first, second, whole = (tmp_path / f"{name}.mooncake.jsonl" for name in ("first", "second", "whole"))
    assert trace(capsys, "slice", source, first, "--end", "4s")[0] == 0
    assert trace(capsys, "slice", source, second, "--start", "4s")[0] == 0
    assert trace(capsys, "merge", first, second, whole, "--offset", "4s", "--one-trace")[0] == 0
    assert records(whole) == records(source)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cap", "IN", "OUT", "--max-turns", "0"), "cap.max_turns: expected a whole number of at least 1, got 0."),
        (("cap", "IN", "OUT"), "--max-turns"),
        (("scale", "IN", "OUT"), "scale: has nothing to scale"),
        (("scale", "IN", "OUT", "--rate", "fast"), "scale.rate: 'fast' is not a factor"),
        (("slice", "IN", "OUT", "--requests", "3-4"), "--requests: '3-4' is not a range. Write start:end"),
        (("slice", "IN", "OUT", "--start", "1h"), "slice: this transform removes every request"),
        (("filter", "IN", "OUT", "--model", "x"), "filter: this transform removes every request"),
        (("convert", "IN", "OUT", "--to", "mooncak"), "--to: no trace format is called 'mooncak'."),
        (("convert", "IN", "OUT", "--to", "weka"), "--to: the weka format is read-only"),
        (("convert", "IN", "OUT", "--limit", "0"), "--limit: must be at least 1, got 0."),
        (("convert", "IN", "FOLDER/x.txt"), "--to: the file name 'x.txt' does not show the format"),
        (("convert", "IN", "FOLDER"), "exists and is not a file"),
        (("convert", "IN", "FOLDER/no/x.jsonl"), "does not exist. Create it first."),
        (("convert", "IN", "IN"), "is the source file. Name another file to write."),
        (("convert", "LINK", "IN", "--from", "mooncake"), "is the source file. Name another file to write."),
        (("merge", "OUT", "IN", "IN"), "is the source file. Name another file to write."),
        (("convert", "FOLDER/none.jsonl", "OUT"), "none.jsonl"),
        (("dequantise", "EVEN", "OUT"), "dequantise.grid: the time stamps of this trace lie on no grid"),
        (("starts", "IN", "OUT", "--rate", "1/s"), "starts: this trace already has a common clock"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_no_file(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    out, link, even = folder / "out.jsonl", tmp_path / "link.jsonl", tmp_path / "even.jsonl"
    link.symlink_to(source)
    rows = source.read_text().splitlines(keepends=True)
    even.write_text("".join(rows[::2]))
    names = {"IN": source, "OUT": out, "FOLDER": folder, "LINK": link, "EVEN": even}
    words = [str(names.get(word, word)) for word in arguments]
    words = [word.replace("FOLDER", str(folder)) for word in words]
    code, said, error = trace(capsys, *words)
    assert (code, said) == (2, "")
    assert message in error
    assert error.count("\n") == 1
    assert not list(folder.iterdir())
    assert source.read_text() == "".join(rows)


def test_a_trace_that_breaks_off_leaves_what_was_there_before(
    capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path
) -> None:
    with source.open("a") as file:
        file.write('{"timestamp": 90000, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    out = tmp_path / "out.jsonl"
    out.write_text("mine\n")
    code, _, error = trace(capsys, "anonymise", source, out)
    assert code == 2
    assert "in.jsonl line 11" in error
    assert out.read_text() == "mine\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_a_link_is_written_through(capsys: pytest.CaptureFixture[str], source: Path, tmp_path: Path) -> None:
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    real.touch()
    link.symlink_to(real)
    assert trace(capsys, "convert", source, link)[0] == 0
    assert link.is_symlink()
    assert len(records(real)) == 10


def test_real_traces_are_transformed_in_a_few_seconds(headway: Run, traces: Path, tmp_path: Path) -> None:
    source = traces / "mooncake" / "conversation_trace.jsonl.gz"
    done = headway("trace", "cap", str(source), str(tmp_path / "capped.jsonl.gz"), "--max-turns", "8", "--json")
    assert json.loads(done.stdout)["written"] == 11_712


def test_inspect_takes_the_order_in_which_a_prompt_is_used(capsys: pytest.CaptureFixture[str], source: Path) -> None:
    asked = ("inspect", source, "--capacity", "5", "--instances", "1")
    rows = []
    for order in ((), ("--order", "first-to-last"), ("--order", "tail-first")):
        code, said, _ = trace(capsys, *asked, *order, "--json")
        assert code == 0
        rows.extend(json.loads(said)["reuse"])
    assert [row["order"] for row in rows] == ["first-to-last", "first-to-last", "tail-first"]
    # Prompts of 1 to 10 blocks: of those beyond the fifth a cache of five keeps the tail, or the head.
    assert [row["block_hit_ratio"] for row in rows] == [15 / 55, 15 / 55, 35 / 55]
    assert "in order of arrival, tail first;" in trace(capsys, *asked, "--order", "tail-first")[1]
    assert "in order of arrival;" in trace(capsys, *asked)[1]
    code, said, error = trace(capsys, *asked, "--order", "tail")
    assert code == 2 and not said and "tail-first" in error
    with pytest.raises(HeadwayError, match="there is no order 'tail_last'"):
        inspect_trace(source, order="tail_last")  # type: ignore[arg-type]


TABLE = "ts_ms,in_tok,out_tok,conv\n" + "".join(f"{1000 * at},{100 + at},9,c{at % 3}\n" for at in range(12))
MAP = "arrival=ts_ms:ms,prompt=in_tok,output=out_tok,session=conv"


def test_a_table_is_converted_by_its_mapping_and_compared(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE)
    done = headway("trace", "convert", "my.csv", "mine.jsonl", "--map", MAP, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "wrote 12 requests to mine.jsonl in headway format\n")
    compared = headway("compare", "mine.jsonl", "--policies", "random,lmetric", "--json", cwd=tmp_path)
    document = json.loads(compared.stdout)
    assert document["scenario"] == "mine.jsonl"
    assert [each["summary"]["requests"]["completed"] for each in document["policies"]] == [12, 12]


def test_a_guess_is_shown_and_used_only_if_the_user_agrees(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE)
    unasked = headway("trace", "convert", "my.csv", "mine.jsonl", cwd=tmp_path)
    assert unasked.returncode == 2 and not (tmp_path / "mine.jsonl").exists()
    assert unasked.stderr.splitlines() == [
        f"headway: my.csv: columns guessed: {MAP}",
        f"headway: not a terminal: pass --yes, or --map {MAP}.",
    ]
    agreed = headway("trace", "convert", "my.csv", "mine.jsonl", "--yes", cwd=tmp_path)
    assert agreed.returncode == 0 and (tmp_path / "mine.jsonl").exists()
    looked = headway("trace", "inspect", "my.csv", "--yes", cwd=tmp_path)
    assert looked.stdout.splitlines()[-1] == f'workload: {{trace: {{format: columns, path: my.csv, columns: "{MAP}"}}}}'


def test_bad_rows_of_a_table_are_skipped_if_asked(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE + "99,-1,5,x\n")
    refused = headway("trace", "convert", "my.csv", "mine.jsonl", "--map", MAP, cwd=tmp_path)
    assert refused.returncode == 2 and "1 of 13 rows is bad: line 14: prompt (in_tok) '-1' is not" in refused.stderr
    skipped = headway("trace", "convert", "my.csv", "mine.jsonl", "--map", MAP, "--skip-bad", cwd=tmp_path)
    assert skipped.returncode == 0 and "bad rows are skipped: 1 (line 14: prompt" in skipped.stderr
    looked = headway("trace", "inspect", "my.csv", "--map", MAP, "--skip-bad", cwd=tmp_path)
    (tmp_path / "s.yaml").write_text(looked.stdout.splitlines()[-1] + "\n")
    assert headway("run", "s.yaml", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    "verb",
    [
        ("run",),
        ("compare", "--policies", "random,round-robin", "--workers", "1"),
        ("sweep", "--vary", "cluster.instances=1,2", "--workers", "1"),
        ("controls",),
    ],
    ids=lambda verb: verb[0],
)
def test_a_run_says_how_many_bad_rows_it_skipped(headway: Run, tmp_path: Path, verb: tuple[str, ...]) -> None:
    (tmp_path / "my.csv").write_text(TABLE + "99,-1,5,x\n")
    (tmp_path / "s.yaml").write_text(f'workload: {{trace: {{path: my.csv, columns: "{MAP}", skip_bad: true}}}}\n')
    done = headway(verb[0], "s.yaml", *verb[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stderr.splitlines() if "bad rows" in line]
    assert line.startswith("headway: my.csv: bad rows are skipped: 1 (line 14: prompt (in_tok) '-1' is not")
    (tmp_path / "my.csv").write_text(TABLE)
    assert "bad rows" not in headway(verb[0], "s.yaml", *verb[1:], cwd=tmp_path).stderr


def test_a_plan_says_how_many_bad_rows_it_skipped(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE + "99,-1,5,x\n")
    trace = {"path": str(tmp_path / "my.csv"), "columns": MAP, "skip_bad": True}
    answer = plan({"workload": {"trace": trace}}, "ttft_p99<=10s", seeds=1, points=0, workers=1)
    assert any(note.startswith("my.csv: bad rows are skipped: 1 (line 14") for note in answer.notes)


def test_the_controls_replay_a_table_by_its_columns(headway: Run, tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text(TABLE)
    (tmp_path / "s.yaml").write_text(f'workload: {{trace: {{path: my.csv, columns: "{MAP}"}}}}\n')
    done = headway("controls", "s.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "capped" in [each["name"] for each in json.loads(done.stdout)["controls"]]


def test_a_slow_trace_has_a_rate_above_zero(headway: Run, tmp_path: Path) -> None:
    rows = "".join(f"{300 * at},9,1\n" for at in range(24))
    (tmp_path / "my.csv").write_text(f"ts,in,out\n{rows}")
    looked = headway("trace", "inspect", "my.csv", "--yes", cwd=tmp_path)
    assert " 0.0035 requests/s over 6,900 s" in looked.stdout and "at most 0.00 per" not in looked.stdout


@pytest.mark.full
def test_the_page_on_traces_has_the_hits_that_its_commands_print(headway: Run, traces: Path, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8").partition("| Blocks | first-to-last |")[2]
    rows = re.findall(r"^\| ([\d,]+|unlimited) \| ([\d.]+) % \| ([\d.]+) % \|$", page, re.MULTILINE)[:5]
    assert len(rows) == 5
    sample = traces / "agentic-coding-weka" / "raw-sample"
    assert (
        headway("trace", "starts", str(sample), "w.jsonl.gz", "--rate", "1/s", "--seed", "3", cwd=tmp_path).returncode
        == 0
    )
    for column, order in enumerate(("first-to-last", "tail-first"), 1):
        options = ("--capacity", "1500,2500,3500,4500,inf", "--order", order, "--json")
        reuse = json.loads(headway("trace", "inspect", "w.jsonl.gz", *options, cwd=tmp_path).stdout)["reuse"]
        assert [f"{100 * row['block_hit_ratio']:.1f}" for row in reuse if row["instances"] == 1] == [
            row[column] for row in rows
        ]


def test_a_run_says_that_one_model_answers_requests_for_several(headway: Run, tmp_path: Path) -> None:
    table = tmp_path / "two.csv"
    table.write_text("ts,in,out,m\n0,100,10,a\n1,100,10,b\n")
    mapping = "arrival=ts,prompt=in,output=out"
    for columns, noted in ((mapping, False), (f"{mapping},model=m", True)):
        converted = tmp_path / f"{noted}.headway.jsonl"
        assert headway("trace", "convert", str(table), str(converted), "--map", columns).returncode == 0
        done = headway("run", str(converted), "--json")
        assert done.returncode == 0
        assert ("The requests name 2 models (a, b), but every instance serves" in done.stderr) is noted
