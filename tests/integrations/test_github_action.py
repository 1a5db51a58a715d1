"""The GitHub Action: its script, run as the action runs it, in an environment with nothing but Headway."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from conftest import ROOT
from small_checks import SLOW, SMALL

ACTION = ROOT / "integrations" / "github-action"
Check = Callable[..., subprocess.CompletedProcess[str]]


def distributions(requirement: str, known: dict[str, Distribution]) -> dict[str, Distribution]:
    """A package and all that it needs, as they are installed here."""
    name = Requirement(requirement).name
    if name not in known:
        known[name] = distribution(name)
        for each in known[name].requires or ():
            marker = Requirement(each).marker
            if marker is None or marker.evaluate({"extra": ""}):
                distributions(each, known)
    return known


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with Headway and its dependencies, copied from here, as no network is needed."""
    folder = tmp_path_factory.mktemp("clean") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    packages = next(iter(folder.rglob("site-packages")))
    needed: dict[str, Distribution] = {}
    for requirement in ("msgspec", "PyYAML", "cyclopts", "rich"):
        distributions(requirement, needed)
    for each in needed.values():
        for file in each.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(str(each.locate_file(file)), packages / file)
    shutil.copytree(ROOT / "src" / "headway", packages / "headway", ignore=shutil.ignore_patterns("__pycache__"))
    command = folder / "bin" / "headway"
    command.write_text(f"#!{folder}/bin/python\nfrom headway.cli import main\nmain()\n")
    command.chmod(0o755)
    return folder / "bin"


@pytest.fixture
def pull_request(tmp_path: Path, clean: Path) -> tuple[Path, Check]:
    """A clone as a runner has it, with the scenario of a pull request, and a function that runs the script in it."""
    for program in ("git", "bash"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    origin, clone, temporary = (tmp_path / name for name in ("origin", "clone", "runner"))
    origin.mkdir()
    temporary.mkdir()
    (origin / "fleet.yaml").write_text(yaml.safe_dump(SMALL))
    env = {"PATH": f"{clean}{os.pathsep}{os.defpath}", "HOME": str(tmp_path), "RUNNER_TEMP": str(temporary)}

    def git(folder: Path, *words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True)

    git(origin, "init")
    git(origin, "add", ".")
    git(origin, "commit", "-m", "base")
    git(origin, "checkout", "-b", "change")
    step = SLOW.partition("=")[2]
    slow = {**SMALL, "cluster": {**SMALL["cluster"], "latency": {"model": "linear", "step": step}}}
    (origin / "fleet.yaml").write_text(yaml.safe_dump(slow))
    git(origin, "commit", "-am", "slower")
    # A runner has the one commit of the pull request alone.
    git(tmp_path, "clone", "--depth=1", "--branch=change", f"file://{origin}", str(clone))

    def check(**inputs: str) -> subprocess.CompletedProcess[str]:
        files = {name: str(temporary / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
        usual = {"CANDIDATE": "fleet.yaml", "SEEDS": "8", "GITHUB_BASE_REF": "main"}
        command = ["bash", str(ACTION / "check.sh")]
        return subprocess.run(
            command, cwd=clone, env={**env, **files, **usual, **inputs}, capture_output=True, text=True, timeout=300
        )

    return temporary, check


@pytest.mark.full
def test_the_script_fails_a_pull_request_that_is_slower(pull_request: tuple[Path, Check]) -> None:
    temporary, check = pull_request
    done = check(FAIL_IF="e2e.mean>+5%\n\n  throughput.requests_per_s<-90%\n")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fleet.yaml at origin/main → fleet.yaml" in done.stdout
    assert "✗ Fail: e2e.mean" in (temporary / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    outputs = dict(line.split("=", 1) for line in (temporary / "GITHUB_OUTPUT").read_text().splitlines())
    assert outputs["outcome"] == "fail"
    assert Path(outputs["markdown"]).exists() and Path(outputs["junit"]).read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.full
def test_the_script_passes_tells_that_it_cannot_tell_and_keeps_errors(pull_request: tuple[Path, Check]) -> None:
    temporary, check = pull_request
    assert check(FAIL_IF="e2e.mean>+500%").returncode == 0
    quiet = {"BASE": "fleet.yaml", "FAIL_IF": "requests.rejected>0"}
    open_verdict = check(**quiet)
    assert open_verdict.returncode == 4, open_verdict.stdout + open_verdict.stderr
    assert check(**quiet, CANNOT_TELL="pass").returncode == 0
    assert "outcome=cannot tell" in (temporary / "GITHUB_OUTPUT").read_text()
    wrong = check(FAIL_IF="$(touch pwned)>+5%")
    assert wrong.returncode == 2 and "unknown figure" in wrong.stderr
    assert not list(temporary.parent.rglob("pwned"))


def test_the_action_hands_every_input_to_its_script() -> None:
    action = yaml.safe_load((ACTION / "action.yml").read_text(encoding="utf-8"))
    script = (ACTION / "check.sh").read_text(encoding="utf-8")
    steps = action["runs"]["steps"]
    env = {name: value for step in steps for name, value in step.get("env", {}).items()}
    assert {re.sub(r"\$\{\{ inputs\.(.*) \}\}", r"\1", value) for value in env.values()} == set(action["inputs"])
    assert all(re.search(rf"\b{name}\b", script) for name in steps[1]["env"])
    assert all("${{" not in step.get("run", "") for step in steps), "the shell must not read the text of an input"
    assert all(f"{name}=" in script for name in action["outputs"])
