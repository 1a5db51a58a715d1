"""Hypothesis searches in two sizes: a quick one for `make test`, and a full one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, seed
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from drawing import PROFILE, draws

ATTEMPTS = 6


def sized(quick: int, full: int) -> pytest.MarkDecorator:
    """Run a test with so many `examples` in `make test` and in `make test-full`."""
    return pytest.mark.parametrize("examples", [quick, pytest.param(full, marks=pytest.mark.full)])


def search(examples: int, check: Callable[..., Any], *strategies: SearchStrategy[Any], attempt: int = 0) -> None:
    """Search for arguments that falsify a check. Every size and every attempt draws others, but the same in every run;
    `make test-long` draws anew, and more."""

    @draws(examples, suppress_health_check=list(HealthCheck))
    @given(st.tuples(*strategies))
    def holds(drawn: tuple[Any, ...]) -> None:
        check(*drawn)

    (seed(1000 * attempt + examples)(holds) if PROFILE == "steady" else holds)()


def search_until(
    examples: int,
    check: Callable[..., Sequence[str]],
    wanted: Sequence[str],
    *strategies: SearchStrategy[Any],
    share: float = 0.01,
) -> None:
    """Search until each trait that is wanted has shown in a share of the examples; the check returns those that it saw.

    What Hypothesis draws depends on what else the process has imported, so that one search may show too little."""
    seen: Counter[str] = Counter()
    rare: dict[str, int] = {}

    def count(*drawn: Any) -> None:
        seen.update(set(check(*drawn)))

    for attempt in range(ATTEMPTS):
        search(examples, count, *strategies, attempt=attempt)
        rare = {name: seen[name] for name in wanted if seen[name] < max(1, share * examples)}
        if not rare:
            return
    raise AssertionError(f"seen too rarely: {rare} of {seen}")
