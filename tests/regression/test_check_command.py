"""`headway check` as its users see it: output, files, exit codes, and the base from a revision."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from conftest import Run
from small_checks import SLOW, SMALL

P99 = ("--fail-if", "e2e.mean>+5%")


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text(yaml.safe_dump(SMALL))
    return file


def test_the_exit_code_is_the_verdict(scenario: Path, headway: Run) -> None:
    check = ("check", str(scenario), "--seeds", "12", *P99)
    assert headway(*check, "--candidate-set", SLOW).returncode == 1
    assert headway(*check, "--base-set", SLOW).returncode == 0
    quiet = headway(*check, "--candidate-set", "signals.poll_interval=100ms")
    assert quiet.returncode == 4, "twelve equal differences are too few"
    assert "? Cannot tell: e2e.mean>+5% is still open." in quiet.stdout


def test_json_is_one_document(scenario: Path, headway: Run) -> None:
    done = headway("check", str(scenario), "--seeds", "8", *P99, "--candidate-set", SLOW, "--json")
    document = json.loads(done.stdout)
    assert document["outcome"] == "fail" and done.returncode == 1
    assert document["conditions"][0]["figure"] == "latency.e2e.mean"
    assert document["findings"].keys() == {"appeared", "gone"}


def test_markdown_and_junit_are_written_for_every_verdict(scenario: Path, headway: Run, tmp_path: Path) -> None:
    markdown, junit = tmp_path / "verdict.md", tmp_path / "verdict.xml"
    conditions = (*P99, "--fail-if", "throughput.requests_per_s<-90%", "--fail-if", "requests.rejected>+5")
    files = ("--markdown", str(markdown), "--junit", str(junit))
    done = headway("check", str(scenario), "--seeds", "8", *conditions, "--candidate-set", SLOW, *files)
    assert done.returncode == 1, done.stderr
    text = markdown.read_text(encoding="utf-8")
    assert text.startswith("### headway check: ✗ Fail: e2e.mean\\>+5% holds.\n")
    assert "| ✗ fail | e2e.mean\\>+5% |" in text and "| ? cannot tell | requests.rejected\\>+5 |" in text
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    outcomes = {case.get("name"): [each.tag for each in case] for case in suite.iter("testcase")}
    assert outcomes == {
        "e2e.mean>+5%": ["failure"],
        "throughput.requests_per_s<-90%": ["system-out"],
        "requests.rejected>+5": ["error"],
    }


def test_the_table_fits_a_narrow_terminal(scenario: Path, headway: Run) -> None:
    long = "pathology.tail_latency_blowup.ttft>+500%"
    done = headway("check", str(scenario), "--seeds", "8", *P99, "--fail-if", long, "--candidate-set", SLOW)
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert long in done.stdout and " ✗  e2e.mean>+5%" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), '--fail-if: name at least one condition, such as "ttft.p99>+5%".'),
        (("--fail-if", "ttft.p99>5%"), "--fail-if 'ttft.p99>5%': write the sign of a change from the base"),
        ((*P99, "--seeds", "0"), "--seeds: must lie between 2 and 1,000, got 0."),
        ((*P99, "--candidate-set", "workload.rate=1/s"), "A check needs the same workload on both sides."),
        ((*P99, "--markdown", "nowhere/x.md"), "is not a folder."),
        (P99, "candidate: is missing. Name a second file, or change the first with --candidate-set or --git."),
        ((*P99, "--git", "main"), "is in no git repository."),
    ],
)
def test_a_mistake_is_one_sentence(scenario: Path, headway: Run, options: tuple[str, ...], message: str) -> None:
    done = headway("check", str(scenario), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr and done.stderr.count("\n") == 1


# --- git --------------------------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "commit.gpgsign=false")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A scenario in a subfolder with a policy file beside it, as committed in a repository."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    folder = tmp_path / "repository" / "fleet"
    folder.mkdir(parents=True)
    (folder / "mine.py").write_text("from headway import Route\n\n\n" + _router("min"))
    (folder / "fleet.yaml").write_text(yaml.safe_dump({**SMALL, "policies": {"routing": "mine.py:Mine"}}))
    git(folder.parent, "init")
    git(folder.parent, "add", ".")
    git(folder.parent, "commit", "-m", "base")
    return folder


def _router(choice: str) -> str:
    chosen = f"{choice}(cluster.instances, key=lambda view: view.inflight)"
    return f"class Mine:\n    def route(self, request, cluster):\n        return Route({chosen}.id)\n"


def test_the_base_is_a_revision_with_the_files_beside_it(repository: Path, headway: Run) -> None:
    check = ("check", "fleet.yaml", "--git", "main", "--seeds", "16", "--fail-if", "ttft.mean>+5%")
    same = headway(*check, cwd=repository)
    assert same.returncode == 0, same.stdout + same.stderr
    (repository / "mine.py").write_text("from headway import Route\n\n\n" + _router("max"))
    changed = headway(*check, cwd=repository)
    assert changed.returncode == 1 and "fleet.yaml at main → fleet.yaml" in changed.stdout, changed.stderr


def test_a_mistake_with_git_is_one_sentence(repository: Path, headway: Run) -> None:
    check = ("check", "fleet.yaml", *P99, "--git")
    for revision, message in (("nowhere", "the repository has no revision 'nowhere'."), ("-x", "is not a revision")):
        done = headway(*check[:-1], f"--git={revision}", cwd=repository)
        assert done.returncode == 2 and message in done.stderr
    (repository / "new.yaml").write_text(yaml.safe_dump(SMALL))
    done = headway("check", "new.yaml", *P99, "--git", "main", cwd=repository)
    assert "fleet/new.yaml does not exist in 'main', so there is no base." in done.stderr
