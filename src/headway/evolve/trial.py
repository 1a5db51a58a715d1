"""A candidate on its way through the cases of a suite."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from headway.config.wording import one_line, shown
from headway.errors import HeadwayError
from headway.evolve.bench import policies_key
from headway.evolve.cache import Record
from headway.evolve.evaluation import Case, CaseResult, Evaluation
from headway.evolve.fitness import MOST, failure_gains, fitness, gains
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle

Candidate = Bundle | str | Path | Mapping[str, Any]
NOTHING: Final = Bundle("candidate", {})
NOT_RUN: Final = "it was not run, since the candidate had failed before."


class Trial:
    """What is known of a candidate so far. One that cannot even be read has failed before the first case."""

    def __init__(self, candidate: Candidate, suite: Suite) -> None:
        self.suite = suite
        self.bundle, self.identity, self.complexity = NOTHING, "", 0
        self.error: str | None = None
        self.stopped: str | None = None
        self.results: list[CaseResult] = []
        try:
            self.bundle = candidate if isinstance(candidate, Bundle) else Bundle.read(candidate)
            _check_plain(self.bundle)
            policies_key(self.bundle)  # reads the files that it may refer to
            self.identity, self.complexity = self.bundle.id, self.bundle.complexity
        except Exception as error:  # whatever it can be wrong in, the limits of a parser included
            self.error = _encodable(one_line(error, kind=not isinstance(error, HeadwayError)) + ".")

    @property
    def name(self) -> str:
        return _encodable(str(self.bundle.name))

    @property
    def works(self) -> bool:
        return self.error is None

    @property
    def alive(self) -> bool:
        """Whether there is a reason to run it any further."""
        return self.works and self.stopped is None

    def add(
        self, cases: Sequence[Case], records: Iterator[Record], bases: Sequence[Mapping[str, float | None]]
    ) -> None:
        """Add its runs. After one that failed the others do not count, be they run or not."""
        for case, base in zip(cases, bases, strict=True):
            record = next(records)
            if not self.works:
                continue
            if record.error is not None:
                self.error = f"{case.label}: {record.error}"
                self.results.append(self._lost(case, record.error))
            else:
                own = gains(self.suite.objectives, record.figures, base)
                self.results.append(CaseResult(case.name, case.seed, True, own, record.figures))

    def sift(self, cases: int) -> None:
        """Stop it where the first cases, out of so many, were a disappointment."""
        cascade = self.suite.cascade
        if cascade is None or not self.alive or len(self.results) == cases:
            return
        primary = fitness(self.suite.objectives, self.results, self.complexity)[PRIMARY]
        if primary < cascade.threshold:
            reached = f"primary {primary:+.3f} is below {cascade.threshold:+.3f} there"
            self.stopped = f"stopped after {len(self.results)} of {cases} cases: {reached}."

    def worst(self) -> int:
        """The place of the case that it gained least in."""
        return min(range(len(self.results)), key=lambda place: self.results[place].gains[PRIMARY])

    def evaluation(self, part: str, cases: Sequence[Case]) -> Evaluation:
        """Its evaluation without the summary. No objective of a stopped candidate is above the threshold: it must not
        pass for a trade-off on the strength of cases that it never saw."""
        results = list(self.results)
        if not self.works:
            results += [self._lost(case, NOT_RUN) for case in cases[len(results) :]]
        most = MOST if self.stopped is None or self.suite.cascade is None else self.suite.cascade.threshold
        scores = fitness(self.suite.objectives, results, self.complexity, most)
        return Evaluation(self.works, self.error, scores, results, "", self.identity, part, self.stopped)

    def _lost(self, case: Case, error: str) -> CaseResult:
        return CaseResult(case.name, case.seed, False, failure_gains(self.suite.objectives), error=error)


def _encodable(text: str) -> str:
    """A text that can be written to a file, whatever a candidate has in its names."""
    return text.encode(errors="backslashreplace").decode()


def _check_plain(bundle: Bundle) -> None:
    """What JSON cannot hold can neither be written down nor run in another process."""
    for stage, spec in bundle.policies.items():
        try:
            json.dumps(spec, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise HeadwayError(
                f"policies.{stage}: expected plain values and finite numbers, got {shown(spec)}."
            ) from None
