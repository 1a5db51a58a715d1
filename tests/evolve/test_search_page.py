"""The page of a search shows its candidates while it runs, and the winner and the comparison when it has ended."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small import document, suite

from headway.errors import HeadwayError
from headway.evolve.evolution import Plan, evolve
from headway.evolve.final import Conclusion
from headway.evolve.search_page import follow_search, report_search, search_page
from headway.policies.bundle import Bundle

REFRESH = '<meta http-equiv="refresh" content="10">'


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Conclusion]:
    folder = tmp_path_factory.mktemp("page") / "search"
    prefixes = {**document()["workloads"]["prefixes"], "requests": 20, "output_tokens": 8}
    few = suite(
        workloads={"prefixes": prefixes},
        train=[{"workload": "prefixes", "seeds": [1]}],
        validation=[{"workload": "prefixes", "seeds": [11]}],
        held_out=[{"workload": "prefixes", "seeds": [101, 102]}],
    )
    plan = Plan("gp", seed=3, batch=10)
    return folder, evolve(few, plan, evaluations=20, controls=False, builtins=["lmetric"], workers=1, output=folder)


@pytest.fixture
def running(finished: tuple[Path, Conclusion], tmp_path: Path) -> Path:
    """Return the folder as it was after the first batch."""
    folder = shutil.copytree(finished[0], tmp_path / "running")
    for name in ("result.json", "best.yaml", "looks.json", "batches/0001.json"):
        (folder / name).unlink()
    return folder


def test_the_page_of_a_finished_search_has_its_verdict_its_winner_and_every_held_out_figure(
    finished: tuple[Path, Conclusion],
) -> None:
    folder, conclusion = finished
    page = search_page(folder)
    assert REFRESH not in page
    assert conclusion.verdict.replace("'", "&#x27;") in page
    assert f"Chosen on validation: {conclusion.winner.name}." in page
    for contestant in conclusion.contestants:
        assert f"{100 * contestant.gain.mean:+.1f} %" in page
        assert f"{100 * contestant.gain.workloads['prefixes']:+.1f} %" in page


def test_the_page_shows_the_best_gain_over_cpu_time(finished: tuple[Path, Conclusion], tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "search")
    assert len(json.loads((folder / "cpu.json").read_text())) == 2
    (folder / "cpu.json").write_text("[90.0, 30.0]")
    page = search_page(folder)
    assert "Best so far over CPU time, after each batch" in page and '"minutes":1.5' in page.replace(": ", ":")
    assert "<b>2.0</b><span>CPU minutes of the search" in page and "<b>10</b><span>candidates per CPU minute" in page
    (folder / "cpu.json").unlink()
    assert "CPU m" not in search_page(folder)


def test_the_winner_s_descent_marks_what_each_child_changed(finished: tuple[Path, Conclusion], tmp_path: Path) -> None:
    folder = shutil.copytree(finished[0], tmp_path / "search")
    rows = [json.loads((folder / f"batches/000{number}.json").read_text()) for number in range(2)]
    known = {row["bundle"]["name"]: row["bundle"] for row in rows[0]}
    parent = known["as lmetric"]
    child = json.loads(json.dumps(parent)) | {"name": "the child", "mutations": ["scale a constant"]}
    source = child["policies"]["routing"]["source"]
    child["policies"]["routing"]["source"] = source.replace("return -", "return 2 * -")
    result = json.loads((folder / "result.json").read_text())
    child["parent"] = Bundle.read(parent).id
    result["winner"]["bundle"] = child
    (folder / "result.json").write_text(json.dumps(result))
    page = search_page(folder)
    assert "the child from as lmetric: scale a constant" in page
    assert "<ins>+     return 2 * -" in page
    assert "<del>-     return -" in page


def test_while_a_search_runs_its_page_has_the_candidates_so_far_and_loads_itself_again(running: Path) -> None:
    page = search_page(running)
    assert REFRESH in page
    assert "The search is not finished: 10 candidates so far." in page
    assert "Held out" not in page


def test_a_search_without_a_batch_has_a_page(running: Path) -> None:
    (running / "batches/0000.json").unlink()
    assert "No batch is finished yet." in search_page(running)


def test_following_writes_the_page_after_each_batch_until_the_search_ends(
    finished: tuple[Path, Conclusion], running: Path
) -> None:
    page, seen = running / "report.html", []

    def wait() -> None:
        text = page.read_text()
        seen.append("old" if text == "old" else text[text.index("not finished") :][14:27])
        page.write_text("old")
        if len(seen) == 2:
            shutil.copy(finished[0] / "batches/0001.json", running / "batches/0001.json")
        if len(seen) == 3:
            shutil.copy(finished[0] / "result.json", running / "result.json")

    follow_search(running, None, wait)
    assert seen == ["10 candidates", "old", "20 candidates"]
    assert page.read_text() == search_page(finished[0])


def test_the_command_line_writes_the_page_and_refuses_to_follow_runs(
    finished: tuple[Path, Conclusion], tmp_path: Path, headway: Any
) -> None:
    done = headway("report", str(finished[0]), "-o", str(tmp_path / "page.html"), "--follow")
    assert done.returncode == 0 and (tmp_path / "page.html").read_text() == search_page(finished[0])
    refused = headway("report", str(tmp_path), "--follow")
    assert refused.returncode == 2 and "--follow needs the folder of one search" in refused.stderr


def test_a_folder_is_no_file_to_write(finished: tuple[Path, Conclusion], tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="is a folder"):
        report_search(finished[0], tmp_path)
