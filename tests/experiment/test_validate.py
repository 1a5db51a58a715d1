"""`headway validate`: the errors of a simulated run against a recorded one."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import headway as package
from conftest import ROOT, Run
from headway.errors import HeadwayError
from headway.report import validation
from headway.results.recorded import COLUMNS, read_recorded
from headway.types import PS_PER_SECOND

ENGINE = ROOT.parent / "shared" / "validation" / "llmservingsim" / "rtx4090_llama-3.1-8b_vllm-0.19.0" / "requests.jsonl"
SCENARIO: dict[str, Any] = {
    "workload": {"requests": 40, "rate": "20/s", "prompt_tokens": 300, "output_tokens": 12},
    "cluster": {"instances": 1, "gpu": "h200", "latency": {"model": "hardware"}},
}
Row = dict[str, Any]


@pytest.fixture(scope="module")
def run() -> package.Result:
    return package.simulate(SCENARIO)


def rows(result: package.Result, slower: float = 1.0) -> list[Row]:
    """Return a run as rows of an engine's log, with every latency multiplied by a factor."""
    names = ("arrival_ps", "first_token_ps", "finished_ps", "prompt_tokens", "output_tokens")
    outcome = []
    for arrival, first, last, prompt, output in zip(*map(result.requests.column, names), strict=True):
        after = [(arrival + (when - arrival) * slower) / PS_PER_SECOND for when in (arrival, first, last)]
        outcome.append(dict(zip(COLUMNS, (*after, prompt, output), strict=True)))
    return outcome


def as_csv(file: Path, given: list[Row]) -> Path:
    with file.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(given[0]))
        writer.writeheader()
        writer.writerows(given)
    return file


def as_jsonl(file: Path, given: list[Row]) -> Path:
    file.write_text("".join(f"{json.dumps(row)}\n" for row in given), encoding="utf-8")
    return file


def test_a_run_against_itself_has_no_error_and_the_figures_of_its_summary(run: package.Result, tmp_path: Path) -> None:
    run.save(tmp_path / "run")
    result = package.validate(run, tmp_path / "run")
    for kind, statistics in result.latency.items():
        for name, each in statistics.items():
            assert each["error"] == 0
            assert each["simulated_ms"] == run.summary()["latency"][kind][name]
    assert result.requests == {"simulated": (40, 40), "recorded": (40, 40)} and not result.notes


@pytest.mark.parametrize("write", [as_csv, as_jsonl])
def test_an_engine_that_is_a_quarter_slower_is_told_so(
    write: Callable[[Path, list[Row]], Path], run: package.Result, tmp_path: Path
) -> None:
    file = write(tmp_path / f"engine.{'csv' if write is as_csv else 'jsonl'}", rows(run, 1.25)[::-1])
    result = package.validate(run, file)
    errors = [each["error"] for statistics in result.latency.values() for each in statistics.values()]
    assert errors == pytest.approx([-0.2] * 15, abs=1e-6)


def test_the_warm_up_is_left_out_of_both_and_lost_requests_are_said(tmp_path: Path) -> None:
    result = package.simulate({**SCENARIO, "warmup": 10})
    settings = rows(result)
    settings[0]["last_token"] = settings[0]["first_token"] + 1e6  # of the warm-up
    settings[20]["first_token"] = settings[20]["last_token"] = None
    outcome = package.validate(result, as_jsonl(tmp_path / "engine.jsonl", settings))
    assert outcome.requests == {"simulated": (30, 30), "recorded": (29, 30)}
    assert outcome.notes == ["1 recorded requests got no answer. The comparison leaves them out."]
    assert outcome.worst is not None and abs(outcome.worst[2]) < 0.5


def test_the_order_of_the_rows_changes_no_result(tmp_path: Path) -> None:
    run = package.simulate({**SCENARIO, "warmup": 10})
    recorded = rows(run)
    for row in recorded:
        row["arrival"] = int(row["arrival"])  # several requests arrive at one instant
    first = package.validate(run, as_jsonl(tmp_path / "engine.jsonl", recorded))
    for seed in range(5):
        Random(seed).shuffle(recorded)
        again = package.validate(run, as_jsonl(tmp_path / "engine.jsonl", recorded))
        assert (again.latency, again.times, again.notes) == (first.latency, first.times, first.notes)


@pytest.mark.parametrize("name", ["bench-{}", "{}"])
def test_the_warm_up_is_found_by_request_id_even_if_the_engine_received_requests_in_another_order(
    name: str, tmp_path: Path
) -> None:
    result = package.simulate({**SCENARIO, "warmup": 10})
    recorded = [row | {"request_id": name.format(at)} for at, row in enumerate(rows(result))]
    late = recorded[3]  # of the warm-up
    for key in ("arrival", "first_token", "last_token"):
        late[key] += 1e3
    outcome = package.validate(result, as_csv(tmp_path / "engine.csv", recorded[::-1]))
    assert all(each["error"] == pytest.approx(0) for kind in outcome.latency.values() for each in kind.values())


def test_ids_of_the_replayed_trace_match_the_requests(tmp_path: Path) -> None:
    lines = []
    for at in range(20):
        prompt = 300 + 16 * at
        blocks = [2 * at, 2 * at + 1][: (prompt + 511) // 512]
        name = f"{'xyz'[at % 3]}{at * 7 % 20}"
        keys = {"timestamp": at * 50, "input_length": prompt, "output_length": 12, "hash_ids": blocks}
        lines.append(keys | {"request_id": name})
    trace = as_jsonl(tmp_path / "trace.jsonl", lines)
    result = package.simulate({**SCENARIO, "workload": {"trace": {"path": str(trace)}}, "warmup": 5})
    recorded = [row | {"id": line["request_id"]} for row, line in zip(rows(result), lines, strict=True)]
    for row in recorded[:5]:
        row.update({key: row[key] + 1e3 for key in ("arrival", "first_token", "last_token")})
    outcome = package.validate(result, as_jsonl(tmp_path / "engine.jsonl", recorded[::-1]))
    assert all(each["error"] == pytest.approx(0) for kind in outcome.latency.values() for each in kind.values())


@pytest.mark.parametrize("arrival", ["arrival", "arrival_ts", "arrival_time"])
def test_the_time_to_the_first_token_counts_from_the_arrival_and_from_the_queueing(
    arrival: str, run: package.Result, tmp_path: Path
) -> None:
    recorded = []
    for row in rows(run):
        row["queued_ts"] = row.pop("arrival")
        recorded.append({arrival: row["queued_ts"] - 0.25, **row})
    outcome = package.validate(run, as_csv(tmp_path / "engine.csv", recorded))
    assert list(outcome.latency) == ["ttft", "ttft_queued", "tpot", "e2e"]
    for name, each in outcome.latency["ttft_queued"].items():
        assert each["error"] == pytest.approx(0, abs=1e-6)
        after = outcome.latency["ttft"][name]
        assert after["recorded_ms"] == pytest.approx(each["recorded_ms"] + 250)
        assert after["simulated_ms"] == each["simulated_ms"]  # nothing delays a request before its instance
    assert "TTFT queued" in validation.page(outcome)


def test_a_simulated_request_is_queued_when_it_reaches_its_instance(tmp_path: Path) -> None:
    result = package.simulate(
        {**SCENARIO, "policies": {"flow": {"name": "bands", "saturation": "concurrency", "max_inflight": 1}}}
    )
    columns = result.requests.column
    waits = [queued - arrival for arrival, queued in zip(columns("arrival_ps"), columns("enqueued_ps"), strict=True)]
    assert max(waits) > 0
    result.save(tmp_path / "run")
    outcome = package.validate(result, tmp_path / "run")
    apart = outcome.latency["ttft"]["mean"]["simulated_ms"] - outcome.latency["ttft_queued"]["mean"]["simulated_ms"]
    assert apart == pytest.approx(sum(waits) / len(waits) / 1e9)


@pytest.mark.parametrize("clock", ["arrival_time", "queued_ts"])
def test_a_column_with_another_clock_is_ignored(clock: str, run: package.Result, tmp_path: Path) -> None:
    recorded = []
    for row in rows(run):
        if clock == "arrival_time":  # as in vLLM's log
            row["queued_ts"] = row.pop("arrival")
        recorded.append(row | {clock: row["first_token"] + 1.7e9})
    outcome = package.validate(run, as_csv(tmp_path / "engine.csv", recorded))
    assert list(outcome.latency) == ["ttft", "tpot", "e2e"]
    assert outcome.latency["ttft"]["mean"]["error"] == pytest.approx(0, abs=1e-6)


def test_other_requests_are_noticed(run: package.Result, tmp_path: Path) -> None:
    fewer = package.validate(run, as_csv(tmp_path / "fewer.csv", rows(run)[:30]))
    assert fewer.notes == ["The runs have different requests: 40 simulated, 30 recorded."]
    longer = [row | {"output_tokens": 13} for row in rows(run)]
    assert (
        "480 output tokens simulated, 520 recorded"
        in package.validate(run, as_csv(tmp_path / "longer.csv", longer)).notes[0]
    )


@pytest.mark.skipif(not ENGINE.exists(), reason="the engine's run is not beside this checkout")
def test_the_log_of_an_engine_is_read_by_the_clock_that_its_tokens_have() -> None:
    result = read_recorded(ENGINE)
    assert len(result) == 300
    assert all(each.ttft_ps is not None and 0 < each.ttft_ps < 1000 * PS_PER_SECOND for each in result)


def changed(**values: Any) -> Callable[[list[Row]], list[Row]]:
    return lambda given: [given[0] | values, *given[1:]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda given: [{key: row[key] for key in row if key not in ("arrival", "last_token")} for row in given],
            "the columns 'arrival' and 'last_token' are missing; a recorded run needs arrival, first_token,",
        ),
        (changed(first_token="soon"), "line 2, first_token: must be a number, got 'soon'."),
        (changed(first_token="-5"), "line 2, first_token: -5 s is before the arrival at"),
        (changed(last_token="0.001"), "is before the first token at"),
        (changed(output_tokens="0"), "line 2, output_tokens: must be a whole number of tokens, 1 or more, got '0'."),
        (changed(prompt_tokens="1.5"), "line 2, prompt_tokens: must be a whole number of tokens"),
        (lambda given: [row | {"first_token": ""} for row in given], "contains no answered request"),
    ],
)
def test_a_recording_that_cannot_be_gets_one_sentence(
    change: Callable[[list[Row]], list[Row]], sentence: str, run: package.Result, tmp_path: Path
) -> None:
    file = as_csv(tmp_path / "engine.csv", change(rows(run)))
    with pytest.raises(HeadwayError) as caught:
        package.validate(run, file)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_a_line_that_is_no_json_is_named(run: package.Result, tmp_path: Path) -> None:
    file = as_jsonl(tmp_path / "engine.jsonl", rows(run)[:1])
    file.write_text(file.read_text() + "[1]\n")
    with pytest.raises(HeadwayError, match="line 2 is not a JSON object"):
        package.validate(run, file)


def test_the_page_draws_both_distributions_and_escapes_names(run: package.Result, tmp_path: Path) -> None:
    file = as_csv(tmp_path / "<b>engine.csv", rows(run, 1.25))
    text = validation.page(package.validate(run, file))
    for kind in ("ttft", "tpot", "e2e"):
        assert f'data-chart="chart-{kind}"' in text
    assert '"policy":"simulated"' in text and '"policy":"recorded"' in text and "<b>engine" not in text


def test_the_command_prints_a_table_writes_the_page_and_gives_json(
    run: package.Result, tmp_path: Path, headway: Run
) -> None:
    run.save(tmp_path / "run")
    as_csv(tmp_path / "engine.csv", rows(run, 1.25))
    process = headway("validate", "run", "--against", "engine.csv", "--html", "page.html", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("-20.0 %") == 16 and "Largest error: " in process.stdout
    assert max(map(len, process.stdout.splitlines())) <= 80
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
    document = headway("validate", "run", "--against", "engine.csv", "--json", cwd=tmp_path)
    assert json.loads(document.stdout)["latency"]["e2e"]["p99"]["error"] == pytest.approx(-0.2, abs=1e-6)
    wrong = headway("validate", "run", "--against", "none.csv", cwd=tmp_path)
    assert wrong.returncode != 0 and wrong.stderr == "headway: none.csv: cannot be read: No such file or directory.\n"
