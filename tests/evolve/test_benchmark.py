"""The benchmark: which cases it has, what a salt changes, its rows, and the file of a leaderboard."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from conftest import ROOT, TRACES, Run
from headway.config import documents
from headway.errors import HeadwayError
from headway.evolve import Bundle, Suite
from headway.evolve.benchmark import (
    SUITE,
    Benchmark,
    Row,
    add_to_leaderboard,
    bench,
    benchmark_suite,
    candidates,
)

REAL = [entry["workload"] for entry in documents.parse_yaml(documents.presets("benchmarks")[SUITE], SUITE)["held_out"]]


def test_without_traces_it_has_the_held_out_part_of_the_suite_and_names_what_it_skips() -> None:
    suite, skipped = benchmark_suite()
    assert skipped == REAL
    assert suite.cases("held_out") == Suite.load(SUITE).cases("held_out")
    assert len({case.name for case in suite.cases("held_out")}) == 6


def test_a_folder_without_a_trace_skips_that_workload(tmp_path: Path) -> None:
    assert benchmark_suite(tmp_path)[1] == REAL
    with pytest.raises(HeadwayError, match="not a folder"):
        benchmark_suite(tmp_path / "missing")


@pytest.mark.skipif(not TRACES.is_dir(), reason="the real traces are not beside this checkout (../shared/traces)")
def test_with_the_public_traces_nothing_is_skipped_and_a_salt_moves_the_windows() -> None:
    plain, skipped = benchmark_suite(TRACES, quick=True)
    assert not skipped
    assert {case.name for case in plain.cases("held_out")} >= set(REAL)
    salted, _ = benchmark_suite(TRACES, "secret", quick=True)
    windows = [
        next(case.scenario["workload"]["trace"] for case in suite.cases("held_out") if case.name == REAL[0])
        for suite in (plain, salted)
    ]
    assert windows[0] != windows[1]


def test_a_salt_replaces_every_seed_and_is_the_same_each_time() -> None:
    plain, salted, again = (benchmark_suite(salt=salt)[0].cases("held_out") for salt in (None, "secret", "secret"))
    assert salted == again
    assert len(plain) == len(salted)
    assert not {case.seed for case in plain} & {case.seed for case in salted}


def test_quick_has_two_replicates_of_each_workload() -> None:
    names = [case.name for case in benchmark_suite(quick=True)[0].cases("held_out")]
    assert {names.count(name) for name in names} == {2}


def test_policies_are_names_sources_and_all_builtins_but_oracles() -> None:
    assert [name for name, _ in candidates(["lmetric", "examples/policies/published_evolved.py"])] == [
        "lmetric",
        "published_evolved",
    ]
    names = {name for name, _ in candidates(["all"])}
    assert {"least-delay", "unified", "kv-aware-spill"} <= names
    with pytest.raises(HeadwayError, match="at least one policy"):
        candidates([])
    with pytest.raises(HeadwayError, match="unheard-of"):
        candidates(["unheard-of"])


def row(name: str, score: float) -> Row:
    return Row(name, score, None, None, {"ttft": score}, {"documents": score})


def test_a_leaderboard_keeps_the_latest_row_of_each_policy_best_first(tmp_path: Path) -> None:
    file = tmp_path / "board.json"
    add_to_leaderboard(Benchmark(SUITE, None, 5, [], [row("a", 0.1), row("b", 0.2)]), file)
    board = add_to_leaderboard(Benchmark(SUITE, None, 5, [], [row("a", 0.3), row("c", 0.25)]), file)
    assert [(one.policy, one.score) for one in board.rows] == [("a", 0.3), ("c", 0.25), ("b", 0.2)]
    before = file.read_bytes()
    with pytest.raises(HeadwayError, match="another suite, salt or set of traces"):
        add_to_leaderboard(Benchmark(SUITE, "secret", 5, [], [row("d", 1.0)]), file)
    assert file.read_bytes() == before
    file.write_text("{}")
    with pytest.raises(HeadwayError, match="is not a leaderboard"):
        add_to_leaderboard(Benchmark(SUITE, None, 5, [], [row("a", 0.1)]), file)


@pytest.mark.full
def test_the_baseline_scores_zero_and_a_policy_that_fails_has_its_error() -> None:
    broken = "def score(request, instance, cluster):\n    return 1 / (instance.index - 1)\n"
    found = bench(
        [
            ("baseline", Bundle.of("baseline", routing=benchmark_suite()[0].baseline["routing"])),
            ("broken", Bundle.of("broken", routing={"name": "code", "source": broken})),
        ],
        quick=True,
        workers=2,
        progress=False,
    )
    first, last = found.rows
    assert (first.policy, first.score, first.error) == ("baseline", 0.0, None)
    assert last.policy == "broken" and last.score == -10 and last.error


def test_the_command_rejects_an_unknown_policy(headway: Run) -> None:
    done = headway("bench", "unheard-of", "--quick")
    assert done.returncode == 2 and "unheard-of" in done.stderr


def test_the_page_shows_the_leaderboard() -> None:
    board = msgspec.json.decode((ROOT / "benchmarks" / "leaderboard.json").read_bytes(), type=Benchmark)
    page = (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    for one in board.rows:
        assert one.low is not None and one.high is not None
        assert f"| {one.policy} | {100 * one.score:+.1f} % ± {50 * (one.high - one.low):.1f} |" in page
