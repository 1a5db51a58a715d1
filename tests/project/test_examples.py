"""Every example is run, and its output compared with the file beside it, so that examples cannot rot.

`HEADWAY_WRITE_EXAMPLES=1 pytest tests/project/test_examples.py` writes the expected output anew; read the difference.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_line import run_script
from conftest import COMMAND, ROOT, SOURCE, Run

EXAMPLES = ROOT / "examples"
BY_THE_CLOCK = ("20_twin",)  # which want the machine for themselves; `make test-long` runs them
CHEAP = ("01_first_run", "02_compare", "03_scorers", "04_my_policy", "05_trace", "06_python_api")
# The first as one of its kind, the second for its variables, the third for its exit statuses.
IN_BASH = ("01_first_run", "08_traces", "22_check")
SCRIPTS = sorted([*EXAMPLES.glob("[0-9][0-9]_*.sh"), *EXAMPLES.glob("[0-9][0-9]_*.py")])


def commands(script: Path) -> list[list[str]]:
    """The commands of a shell script that has neither variables nor pipes, each as its words."""
    found, text = [], ""
    for line in script.read_text(encoding="utf-8").splitlines(keepends=True):
        text += line
        try:
            words = shlex.split(text, comments=True)
        except ValueError:  # a quotation goes on in the next line
            continue
        text = ""
        if words:
            found.append(words)
    return found


def run_in_bash(script: Path, folder: Path) -> str:
    """Run a script as a reader would, with `headway` in a folder of the search path."""
    command = folder / "headway"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": SOURCE}
    env |= {"COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(["bash", "-e", str(script)], cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"an example leaves stderr alone:\n{done.stderr}"
    return done.stdout


def run_in_process(script: Path, headway: Run) -> str:
    """Run a script's commands one after the other in this process, which costs less than a process for each."""
    output = ""
    for program, *arguments in commands(script):
        if program == "echo":
            output += " ".join(arguments) + "\n"
            continue
        assert program == "headway"
        done = headway(*arguments)
        assert (done.returncode, done.stderr) == (0, "")
        output += done.stdout
    return output


def test_there_are_examples() -> None:
    assert SCRIPTS


def marked(script: Path) -> Any:
    name = script.stem
    marks = [pytest.mark.long] if name in BY_THE_CLOCK else [] if name in CHEAP else [pytest.mark.full]
    return pytest.param(script, id=name, marks=marks)


@pytest.mark.parametrize("script", [marked(script) for script in SCRIPTS])
def test_an_example_prints_what_stands_beside_it(script: Path, headway: Run, tmp_path: Path) -> None:
    expected = script.with_suffix(".out")
    if script.suffix == ".py":
        found = run_script(script, ROOT)
    elif script.stem in IN_BASH:
        found = run_in_bash(script, tmp_path)
    else:
        found = run_in_process(script, headway)
    if os.environ.get("HEADWAY_WRITE_EXAMPLES"):
        expected.write_text(found, encoding="utf-8")
    assert found == expected.read_text(encoding="utf-8")


def test_the_examples_in_the_documents_are_files_that_exist(root: Path) -> None:
    for page in (root / "README.md", *sorted((root / "docs").rglob("*.md"))):
        for name in re.findall(r"examples/[\w/.]+\.(?:yaml|py|sh|out|jsonl)", page.read_text(encoding="utf-8")):
            assert (root / name).exists(), f"{page.name} speaks of {name}"


def test_the_readme_shows_what_the_example_prints(root: Path) -> None:
    shown = (root / "examples" / "02_compare.out").read_text(encoding="utf-8").rstrip()
    assert shown in (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["my_router.py", "patient_router.py"])
def test_the_guide_shows_the_policies_that_are_run(root: Path, name: str) -> None:
    shown = (root / "examples" / "policies" / name).read_text(encoding="utf-8").rstrip()
    assert shown in (root / "docs" / "write-a-policy.md").read_text(encoding="utf-8")
