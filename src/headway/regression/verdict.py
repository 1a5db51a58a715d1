"""The verdict of a check, with all that its users read."""

from typing import Any, ClassVar, Final

from msgspec import Struct
from msgspec.structs import asdict

from headway.display.displayed import Displayed, Types, columns_of
from headway.regression.changes import Change, Turn
from headway.regression.measure import OPEN, Measured
from headway.regression.sequential import Outcome
from headway.types import Json

CODES: Final[dict[Outcome, int]] = {"pass": 0, "fail": 1, "cannot tell": 4}
DIGITS: Final = 9  # digits of a number in the document, because further digits differ between machines


class Check(Displayed, Struct, frozen=True):
    """The verdict of a check: pass, fail or cannot tell, with the interval of each condition."""

    _view: ClassVar[str] = "headway.regression.check_tables:check_view"
    _types: ClassVar[Types] = {"condition": str, "outcome": str, "reason": str}

    base: str
    candidate: str
    outcome: Outcome
    conditions: tuple[Measured, ...]
    error: float
    unit: str  # seeds, or windows of traces or recordings
    pairs: int  # how many of them ran
    most: int
    workloads: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    appeared: tuple[Turn, ...] = ()
    gone: tuple[Turn, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit status: 0 for pass, 1 for fail, 4 for cannot tell."""
        return CODES[self.outcome]

    @property
    def rows(self) -> list[Json]:
        """A row for each condition."""
        return [_row(each) for each in self.conditions]

    def columns(self) -> dict[str, list[Any]]:
        return columns_of([{key: one for key, one in row.items() if key != "workloads"} for row in self.rows])

    def summary(self) -> Json:
        """Return the document that `headway check --json` prints."""
        return {
            "outcome": self.outcome,
            "base": self.base,
            "candidate": self.candidate,
            "error": self.error,
            "unit": self.unit,
            "pairs": self.pairs,
            "most": self.most,
            "workloads": list(self.workloads),
            "conditions": self.rows,
            "changes": [_rounded(asdict(each)) for each in self.changes],
            "findings": {
                "appeared": [asdict(each) for each in self.appeared],
                "gone": [asdict(each) for each in self.gone],
            },
            "notes": list(self.notes),
        }

    def markdown(self) -> str:
        """Return the verdict as Markdown, for a comment on a pull request."""
        from headway.regression.check_files import markdown

        return markdown(self)

    def junit(self) -> str:
        """Return the verdict as JUnit XML, with a test case for each condition."""
        from headway.regression.check_files import junit

        return junit(self)


def _row(each: Measured) -> Json:
    condition, estimate = each.condition, each.estimate
    ends = (None, None) if estimate is None else (condition.shown(estimate.low), condition.shown(estimate.high))
    return {
        "condition": condition.text,
        "figure": condition.figure,
        "kind": condition.kind,
        "limit": _round(condition.limit),
        "outcome": each.outcome,
        "base": _round(each.base),
        "candidate": _round(each.candidate),
        "value": _round(each.change),
        "low": _round(ends[0]),
        "high": _round(ends[1]),
        "pairs": None if estimate is None else estimate.count,
        "needed": None if estimate is None or each.outcome != OPEN else estimate.needed,
        "reason": each.reason,
        "workloads": {name: _round(condition.shown(value)) for name, value in each.workloads.items()},
    }


def _round(number: float | None) -> float | None:
    return None if number is None else float(f"{number:.{DIGITS}g}")


def _rounded(row: Json) -> Json:
    return {key: _round(value) if isinstance(value, float) else value for key, value in row.items()}
