"""A whole search: from a suite to a policy and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from headway.evolve.engines import Plan
from headway.evolve.final import Conclusion, check_rivals, conclude
from headway.evolve.journal import Journal, digest
from headway.evolve.search import Search
from headway.evolve.suite import DEFAULT, Suite
from headway.experiment.runner import runner_of


class Progress(Protocol):
    """Hears of candidates as they are judged, and of the runs of the held-out part."""

    def __call__(self, done: int, total: int, best: float | None) -> None: ...

    def final(self, done: int, total: int) -> None: ...


def evolve(
    suite: Suite | str | Path | Mapping[str, Any] | None = None,
    plan: Plan | None = None,
    *,
    evaluations: int = 50,
    builtins: Sequence[str] | None = None,
    workers: int | None = None,
    ray: str | None = None,
    output: str | Path | None = None,
    progress: Progress | None = None,
) -> Conclusion:
    """Search on a suite's train part, choose on validation, compare on held-out. With `output` every batch is written,
    and a search that is there is gone on with; it comes to what it had come to without a break."""
    plan = plan or Plan()
    chosen = Suite.load(DEFAULT if suite is None else suite)
    searcher = plan.searcher(chosen.for_search())
    check_rivals(chosen, plan.stages[0], builtins)
    journal = Journal(
        None if output is None else Path(output),
        {"suite": chosen.name, "cases": digest(chosen), **plan.document(chosen)},
    )
    with runner_of(workers, ray) as runner:
        search = Search(searcher, chosen, plan.size, journal=journal, runner=runner, progress=progress)
        found = search.run(evaluations)
        conclusion = conclude(
            found,
            chosen,
            stage=plan.stages[0],
            builtins=builtins,
            cache=search.cache,
            runner=runner,
            progress=None if progress is None else progress.final,
        )
    journal.conclude(conclusion.document(), conclusion.winner)
    return conclusion
