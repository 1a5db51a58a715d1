"""The loop of a search: ask for a batch, judge it on the suite's train part, tell, write down, and again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headway.errors import HeadwayError
from headway.evolve.cache import Cache
from headway.evolve.evaluate import cache_in, evaluate_many
from headway.evolve.evaluation import Evaluation, Searcher
from headway.evolve.journal import Journal, Judged
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle

Progress = Callable[[int, int, float | None], None]  # candidates judged, of how many, and the best fitness


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
        self.found: list[Judged] = []
        self._known: dict[str, Evaluation] = {}
        self._best: float | None = None

    def run(self, evaluations: int) -> list[Judged]:
        """So many candidates, those of the folder included, in the order that they were asked for. A candidate that
        comes twice is counted twice and run once."""
        written = self.journal.batches()
        number = 0
        while len(self.found) < evaluations:
            asked = self.searcher.ask(self.batch)
            wanted = asked[: evaluations - len(self.found)]
            before = self._again(written[number], asked) if number < len(written) else []
            self._know(before)
            done = before + self._judged(wanted[len(before) :], evaluations, len(before))
            if len(done) > len(before):
                self.journal.keep(number, done)
            self._note(done[: len(wanted)], evaluations)
            if len(done) < len(asked):  # the last one; whoever goes on from here asks for it again
                break
            self.searcher.tell(done)
            number += 1
        return self.found

    def _again(self, batch: Sequence[Judged], asked: Sequence[Bundle]) -> list[Judged]:
        """A batch that is written, which must be the one that is asked for now."""
        if [one.bundle.id for one in batch] != [one.id for one in asked[: len(batch)]]:
            raise HeadwayError(
                f"{self.journal.folder}: its batches are not those of this search; "
                "it was made with another version of headway or of Optuna. Name another folder."
            )
        return list(batch)

    def _judged(self, bundles: Sequence[Bundle], total: int, before: int) -> list[Judged]:
        fresh: dict[str, Bundle] = {}
        for one in bundles:
            if one.id not in self._known:
                fresh.setdefault(one.id, one)
        runs = 0
        cases = len(self.suite.cases("train"))

        def ran() -> None:
            nonlocal runs
            runs += 1
            if self.progress is not None:
                done = len(self.found) + before + min(len(fresh), runs // cases)
                self.progress(min(done, total), total, self._best)

        if fresh:
            judged = evaluate_many(
                list(fresh.values()), self.suite, "train", cache=self.cache, runner=self.runner, progress=ran
            )
            self._known.update(zip(fresh, judged, strict=True))
        return [Judged(one, self._known[one.id]) for one in bundles]

    def _know(self, judged: Sequence[Judged]) -> None:
        for one in judged:
            self._known.setdefault(one.bundle.id, one.evaluation)

    def _note(self, judged: Sequence[Judged], total: int) -> None:
        self.found += judged
        for one in judged:
            primary = one.evaluation.fitness[PRIMARY]
            self._best = primary if self._best is None else max(self._best, primary)
        if self.progress is not None:
            self.progress(len(self.found), total, self._best)
