"""The loop of a search: ask the searcher for a batch of candidates, evaluate the batch on the train part, store the
evaluations, and pass them to the searcher."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve import worker
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in, evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.journal import Journal, Judged
from headway.evolve.objectives import PRIMARY
from headway.evolve.racing import Race
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle

# Called with the number of evaluated candidates, the number of all candidates, and the best fitness so far.
Progress = Callable[[int, int, float | None], None]


class Searcher(Protocol):
    """Proposes candidates and learns from their evaluations. Batches have a fixed size, and `tell` receives a whole
    batch in the order of its proposals. Therefore the search depends only on the seed, not on the machines on which
    candidates run."""

    def ask(self, count: int) -> list[Bundle]: ...

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None: ...


class Budget(Struct, frozen=True):
    """The length of a search: a number of candidates, CPU seconds, or both. CPU seconds end a search after the batch in
    which they are spent, so this end depends on the machine."""

    most: int
    cpu_s: float | None = None

    def left(self, candidates: int, cpu_s: Sequence[float]) -> int:
        """Return how many more candidates the search may evaluate, after some candidates and batches."""
        spent = self.cpu_s is not None and math.fsum(cpu_s) >= self.cpu_s
        return 0 if spent else self.most - candidates


class Search:
    """A search with one searcher on one suite. Neither the batch size nor the result depends on the number of
    workers."""

    def __init__(
        self,
        searcher: Searcher,
        suite: Suite,
        batch: int,
        *,
        journal: Journal | None = None,
        runner: Runner | None = None,
        progress: Progress | None = None,
        race: bool = True,
        cache: Cache | None = None,
    ) -> None:
        self.searcher, self.batch, self.runner, self.progress = searcher, batch, runner, progress
        self.suite = suite.for_search()  # without the held-out part, so that no code here can use it
        self.journal = journal or Journal(None, {})
        folder = self.journal.folder
        self.cache = cache or (Cache() if folder is None else cache_in(str(folder / "cache")))
        self.race = race
        self.judged: list[Judged] = []
        self._known: dict[str, Evaluation] = {}
        self._best: float | None = None

    def run(self, budget: int | Budget) -> list[Judged]:
        """Evaluate as many candidates as the budget allows, and return them in the order of their proposal. Candidates
        whose evaluation is stored in the folder count too. If a candidate is proposed twice, it counts twice but runs
        once."""
        budget = budget if isinstance(budget, Budget) else Budget(budget)
        written, spent = self.journal.batches(), self.journal.cpu_s()
        number = 0
        while (left := budget.left(len(self.judged), spent[:number])) > 0:
            start = worker.cpu_s()
            total = budget.most if budget.cpu_s is None else len(self.judged) + min(left, self.batch)
            bundles = self.searcher.ask(self.batch)
            due = bundles[:left]
            before = self._resume(written[number], bundles) if number < len(written) else []
            batch = before + self._judge(due[len(before) :], total, len(before))
            if len(batch) > len(before):
                self.journal.keep(number, batch)
                spent += [0.0] * (number + 1 - len(spent))
                spent[number] += worker.cpu_s() - start  # on top of the time of the search that began this batch
                self.journal.keep_cpu_s(spent)
            self._add(batch[: len(due)], total)
            if len(batch) > len(before):
                self._keep_best()
            if len(batch) < len(bundles):  # the last batch is incomplete; a resumed search asks for it again
                break
            self.searcher.tell(batch)
            number += 1
        return self.judged

    def _keep_best(self) -> None:
        """Write the best candidate so far, so that it can be used while the search runs."""
        working = [judged for judged in self.judged if judged.evaluation.ok and judged.evaluation.stopped is None]
        if working:
            self.journal.keep_best(max(working, key=lambda judged: judged.evaluation.fitness[PRIMARY]).bundle)

    def _resume(self, batch: Sequence[Judged], bundles: Sequence[Bundle]) -> list[Judged]:
        """Check that the searcher proposes the same candidates as in a stored batch, and return the stored batch."""
        if [judged.bundle.id for judged in batch] != [bundle.id for bundle in bundles[: len(batch)]]:
            raise HeadwayError(
                f"{self.journal.folder}: its batches do not match this search. "
                "Another version of Headway or Optuna made them. Choose another folder."
            )
        for judged in batch:
            self._known.setdefault(judged.bundle.id, judged.evaluation)
        return list(batch)

    def _judge(self, bundles: Sequence[Bundle], total: int, before: int) -> list[Judged]:
        fresh = distinct([bundle for bundle in bundles if bundle.id not in self._known])
        runs = 0
        cases = len(self.suite.cases("train"))

        def on_run() -> None:
            nonlocal runs
            runs += 1
            if self.progress is not None:
                complete = len(self.judged) + before + min(len(fresh), runs // cases)
                self.progress(min(complete, total), total, self._best)

        if fresh:
            known = [judged.evaluation for judged in self.judged] if self.race else []
            evaluations = evaluate_many(
                fresh,
                self.suite,
                cache=self.cache,
                runner=self.runner,
                progress=on_run,
                race=Race.of(known, self.suite.objectives),
            )
            self._known.update(zip([bundle.id for bundle in fresh], evaluations, strict=True))
        return [Judged(bundle, self._known[bundle.id]) for bundle in bundles]

    def _add(self, batch: Sequence[Judged], total: int) -> None:
        self.judged += batch
        for judged in batch:
            primary = judged.evaluation.fitness[PRIMARY]
            self._best = primary if self._best is None else max(self._best, primary)
        if self.progress is not None:
            self.progress(len(self.judged), total, self._best)


def distinct(bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return each bundle only once, in the order of first occurrence."""
    first: dict[str, Bundle] = {}
    for bundle in bundles:
        first.setdefault(bundle.id, bundle)
    return list(first.values())
