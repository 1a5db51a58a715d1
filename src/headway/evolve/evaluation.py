"""What came of a candidate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, to_builtins

from headway.policies.bundle import Bundle
from headway.types import Json


class CaseResult(Struct, frozen=True):
    """Of one workload under one seed. `gains` has `primary` and every objective, also where the case failed."""

    case: str  # the workload's name in the suite
    seed: int
    ok: bool
    gains: dict[str, float]
    figures: dict[str, float | None] = {}
    error: str | None = None


class Evaluation(Struct, frozen=True):
    """`fitness` has `primary`, every objective and `complexity`, all finite, whatever became of the candidate."""

    ok: bool
    error: str | None  # why it is not; one sentence
    fitness: dict[str, float]
    cases: list[CaseResult]
    summary: str
    bundle_id: str
    part: str = "train"
    stopped: str | None = None  # why the dearer cases were not run, where a cascade ended it

    def workloads(self) -> dict[str, list[CaseResult]]:
        """The cases of each workload, in the suite's order."""
        found: dict[str, list[CaseResult]] = {}
        for case in self.cases:
            found.setdefault(case.case, []).append(case)
        return found

    def document(self) -> Json:
        found: Json = to_builtins(self)
        return found


# What proposes candidates and learns how they fared.


class Searcher(Protocol):
    """Asked for batches of a fixed size, and told of each as a whole, in the order that it was asked in: what it does
    is then a function of its seed alone, wherever and in whatever order candidates are run."""

    def ask(self, count: int) -> list[Bundle]: ...

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None: ...
