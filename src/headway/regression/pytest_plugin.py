"""The pytest plug-in: the fixture `assert_no_worse`, which runs `headway.check` as a test.

pytest loads this module in every session in which Headway is installed, so it imports nothing at its top but pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

import pytest

if TYPE_CHECKING:
    from headway.regression.verdict import Check

Unknown = Literal["fail", "skip", "pass"]


class AssertNoWorse(Protocol):
    """The type of the fixture."""

    def __call__(
        self,
        base: Any,
        candidate: Any = None,
        *figures: str,
        by: float = 0.05,
        cannot_tell: Unknown = "fail",
        **options: Any,
    ) -> Check: ...


@pytest.fixture
def assert_no_worse() -> AssertNoWorse:
    """Fail the test if figures of a candidate are worse than those of its base by more than a fraction `by`."""
    return no_worse


def no_worse(
    base: Any,
    candidate: Any = None,
    *figures: str,
    by: float = 0.05,
    cannot_tell: Unknown = "fail",
    **options: Any,
) -> Check:
    """Run `headway.check` with a relative condition for each figure, in the direction that is worse for it. If the runs
    cannot tell, fail, skip or pass the test, as `cannot_tell` says. `options` are those of `headway.check`, such as
    `on`, `seeds` and `budget`. Return the verdict."""
    from headway.regression.check import check
    from headway.regression.conditions import no_worse_than

    conditions = [no_worse_than(figure, by) for figure in figures]
    verdict = check(base, candidate, conditions, **{"progress": False, **options})
    if verdict.outcome == "fail" or (verdict.outcome == "cannot tell" and cannot_tell == "fail"):
        pytest.fail(f"headway check:\n{verdict!r}", pytrace=False)
    if verdict.outcome == "cannot tell" and cannot_tell == "skip":
        pytest.skip(f"headway check:\n{verdict!r}")
    return verdict
