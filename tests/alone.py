"""A figure taken in a process of its own: what other tests of a worker have left running does not show in it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def alone(measure: Callable[..., int], *arguments: object) -> int:
    """`measure(*arguments)`, a function of a test module, with arguments that are written as they are read."""
    code = f"from {measure.__module__} import {measure.__name__}; print({measure.__name__}(*{arguments!r}))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)
