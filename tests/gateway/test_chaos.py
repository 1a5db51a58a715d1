"""One minute of random faults; `make chaos` runs ten."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("httptools", reason="the extra `gateway` is not installed")
pytest.importorskip("aiohttp", reason="the extra `gateway` is not installed")

from chaos import run_chaos


def test_the_program_behind_make_chaos_starts() -> None:
    program = Path(__file__).with_name("chaos.py")
    result = subprocess.run([sys.executable, str(program), "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "--minutes" in result.stdout, result.stderr


@pytest.mark.full
def test_under_random_faults_every_request_is_answered_and_nothing_is_left_over() -> None:
    # Other programs may stop the machine for seconds. What a defect of the gateway breaks, it breaks twice.
    if run_chaos(seconds=60, rate=40, seed=1):
        assert run_chaos(seconds=60, rate=40, seed=2) == []
