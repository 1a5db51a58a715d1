"""The pytest plug-in, in a pytest of its own, as the author of a policy runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from conftest import ROOT, SOURCE
from small_checks import SLOW, SMALL

TESTS = f"""
import json

SMALL = json.loads({json.dumps(json.dumps(SMALL))})
SLOW = "{SLOW}"


def test_passes(assert_no_worse):
    verdict = assert_no_worse(SMALL, None, "e2e.mean", "throughput.requests_per_s", by=0.5, base_set=SLOW, seeds=8)
    assert verdict.outcome == "pass"


def test_fails(assert_no_worse):
    assert_no_worse(SMALL, None, "e2e.mean", candidate_set=SLOW, seeds=8)


def test_open_fails(assert_no_worse):
    assert_no_worse(SMALL, None, "e2e.mean", candidate_set="signals.poll_interval=100ms", seeds=8)


def test_open_is_skipped(assert_no_worse):
    options = dict(candidate_set="signals.poll_interval=100ms", seeds=8)
    assert assert_no_worse(SMALL, None, "e2e.mean", cannot_tell="pass", **options).outcome == "cannot tell"
    assert_no_worse(SMALL, None, "e2e.mean", cannot_tell="skip", **options)
"""


def test_the_fixture_fails_a_test_whose_candidate_is_worse(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TESTS)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "headway.regression.pytest_plugin",
        "-p",
        "no:cacheprovider",
        "-q",
        "-rA",
    ]
    env = {**os.environ, "PYTHONPATH": SOURCE, "COLUMNS": "120", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=env, capture_output=True, text=True)
    assert "1 failed" not in done.stdout and "2 failed, 1 passed, 1 skipped" in done.stdout, done.stdout + done.stderr
    assert "✗ Fail: e2e.mean>+5% holds." in done.stdout and "? Cannot tell" in done.stdout
    assert "Traceback" not in done.stdout


def test_pytest_finds_the_plug_in_where_headway_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (entry,) = project["entry-points"]["pytest11"].values()
    assert (
        entry == "headway.regression.pytest_plugin"
        and (ROOT / "src" / "headway" / "regression" / "pytest_plugin.py").exists()
    )


def test_the_plug_in_loads_nothing_before_a_test_asks_for_it() -> None:
    ours = "sorted(name for name in sys.modules if name.startswith('headway.'))"
    code = f"import sys, headway.regression.pytest_plugin; print({ours})"
    env = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['headway.regression', 'headway.regression.pytest_plugin']"
