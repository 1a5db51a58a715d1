"""Every example is run, and its output compared with the file beside it, so that examples cannot rot.

`HEADWAY_WRITE_EXAMPLES=1 pytest tests/project/test_examples.py` writes the expected output anew; read the difference.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

EXAMPLES = ROOT / "examples"
BY_THE_CLOCK = ("20_twin",)  # which want the machine for themselves; `make test-long` runs them
SCRIPTS = sorted([*EXAMPLES.glob("[0-9][0-9]_*.sh"), *EXAMPLES.glob("[0-9][0-9]_*.py")])


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `headway` and `python` in it, whether the package is installed or only on the path."""
    folder = tmp_path_factory.mktemp("bin")
    for name, target in (("headway", f"{sys.executable} -m headway.cli"), ("python", sys.executable)):
        script = folder / name
        script.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        script.chmod(0o755)
    return folder


def output(script: Path, command: Path) -> str:
    environment = {
        **os.environ,
        "PATH": f"{command}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }
    runner = ["python", str(script)] if script.suffix == ".py" else ["bash", "-e", str(script)]
    done = subprocess.run(runner, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, f"an example leaves stderr alone:\n{done.stderr}"
    return done.stdout


def test_there_are_examples() -> None:
    assert SCRIPTS


def marked(script: Path) -> Any:
    return pytest.param(script, id=script.stem, marks=[pytest.mark.long] if script.stem in BY_THE_CLOCK else [])


@pytest.mark.parametrize("script", [marked(script) for script in SCRIPTS])
def test_an_example_prints_what_stands_beside_it(script: Path, command: Path) -> None:
    expected = script.with_suffix(".out")
    found = output(script, command)
    if os.environ.get("HEADWAY_WRITE_EXAMPLES"):
        expected.write_text(found, encoding="utf-8")
    assert found == expected.read_text(encoding="utf-8")


def test_the_examples_in_the_documents_are_files_that_exist(root: Path) -> None:
    for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):
        for name in re.findall(r"examples/[\w/.]+\.(?:yaml|py|sh|out|jsonl)", page.read_text(encoding="utf-8")):
            assert (root / name).exists(), f"{page.name} speaks of {name}"


def test_the_readme_shows_what_the_example_prints(root: Path) -> None:
    shown = (root / "examples" / "02_compare.out").read_text(encoding="utf-8").rstrip()
    assert shown in (root / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["my_router.py", "patient_router.py"])
def test_the_guide_shows_the_policies_that_are_run(root: Path, name: str) -> None:
    shown = (root / "examples" / "policies" / name).read_text(encoding="utf-8").rstrip()
    assert shown in (root / "docs" / "write-a-policy.md").read_text(encoding="utf-8")
