"""Tests wait for a condition, never for a fixed time: no test depends on how busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")
PATIENCE_S = 120.0  # only a test that fails waits so long


def until(holds: Callable[[], Value], sentence: str = "it did not happen", every: float = 0.005) -> Value:
    """Wait until the condition holds, and return its value. It is asked again and again: other threads and processes
    that make it true do not say so."""
    end = time.monotonic() + PATIENCE_S
    while not (value := holds()):
        assert time.monotonic() < end, sentence
        time.sleep(every)
    return value
