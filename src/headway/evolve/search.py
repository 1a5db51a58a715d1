"""The loop of a search: ask for a batch, judge it on the suite's train part, tell, write down, and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in, evaluate_many
from headway.evolve.evaluation import Evaluation
from headway.evolve.journal import Journal, Judged
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle

Progress = Callable[[int, int, float | None], None]  # candidates judged, of how many, and the best fitness


class Searcher(Protocol):
    """Proposes candidates and learns how they fared. It is asked for batches of a fixed size, and told of each as a
    whole, in the order that it was asked in: what it does is then a function of its seed alone, wherever and in
    whatever order candidates are run."""

    def ask(self, count: int) -> list[Bundle]: ...

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None: ...


class Search:
    """One searcher on one suite. Batches have one size, whatever the number of workers: the result is the same on one
    core and on a hundred."""

    def __init__(
        self,
        searcher: Searcher,
        suite: Suite,
        batch: int,
        *,
        journal: Journal | None = None,
        runner: Runner | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.searcher, self.batch, self.runner, self.progress = searcher, batch, runner, progress
        self.suite = suite.for_search()  # a searcher, and whatever judges for it, has no way to the held-out part
        self.journal = journal or Journal(None, {})
        self.cache = Cache() if self.journal.cache is None else cache_in(str(self.journal.cache))
        self.judged: list[Judged] = []
        self._known: dict[str, Evaluation] = {}
        self._best: float | None = None

    def run(self, evaluations: int) -> list[Judged]:
        """So many candidates, those of the folder included, in the order that they were asked for. A candidate that
        comes twice is counted twice and run once."""
        written = self.journal.batches()
        number = 0
        while len(self.judged) < evaluations:
            bundles = self.searcher.ask(self.batch)
            due = bundles[: evaluations - len(self.judged)]
            before = self._resume(written[number], bundles) if number < len(written) else []
            batch = before + self._judge(due[len(before) :], evaluations, len(before))
            if len(batch) > len(before):
                self.journal.keep(number, batch)
            self._add(batch[: len(due)], evaluations)
            if len(batch) < len(bundles):  # the last one; a search that goes on from here asks for it again
                break
            self.searcher.tell(batch)
            number += 1
        return self.judged

    def _resume(self, batch: Sequence[Judged], bundles: Sequence[Bundle]) -> list[Judged]:
        """A batch that is written, which must be the one that is asked for now."""
        if [judged.bundle.id for judged in batch] != [bundle.id for bundle in bundles[: len(batch)]]:
            raise HeadwayError(
                f"{self.journal.folder}: its batches are not those of this search; "
                "it was made with another version of headway or of Optuna. Name another folder."
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
            evaluations = evaluate_many(fresh, self.suite, cache=self.cache, runner=self.runner, progress=on_run)
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
    """Each bundle once, where it came first."""
    first: dict[str, Bundle] = {}
    for bundle in bundles:
        first.setdefault(bundle.id, bundle)
    return list(first.values())
