"""Search over the numbers of a template, with Optuna's samplers."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final, Literal

from headway.errors import HeadwayError
from headway.evolve.dimensions import Dimension, with_values
from headway.evolve.evaluation import Evaluation
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle
from headway.streams import derive

Sampler = Literal["nsga2", "tpe", "cmaes"]
SAMPLERS: Final[tuple[Sampler, ...]] = ("nsga2", "tpe", "cmaes")
STARTUP: Final = 10  # trials that TPE draws without a model


class Numeric:
    """A `Searcher`. The template's own numbers are the first that it tries. NSGA-II looks at all objectives of the
    suite, TPE and CMA-ES at the primary fitness alone."""

    def __init__(
        self, suite: Suite, template: Bundle, space: Sequence[Dimension], sampler: Sampler, seed: int, batch: int
    ) -> None:
        self.optuna = _optuna(sampler)
        self.template, self.space = template, list(space)
        weighed = [one.name for one in suite.objectives if one.weight > 0]
        self.targets = weighed if sampler == "nsga2" else [PRIMARY]
        with warnings.catch_warnings():  # about options of samplers that are still called experimental
            warnings.simplefilter("ignore")
            made = self._sampler(sampler, derive(seed, f"evolve.numeric.{sampler}") % 2**32, batch)
        self.study = self.optuna.create_study(directions=["maximize"] * len(self.targets), sampler=made)
        self.study.enqueue_trial({one.name: one.default for one in self.space})
        self.distributions = {one.name: self._distribution(one) for one in self.space}
        self.asked: list[Any] = []
        self.generation = 0

    def ask(self, count: int) -> list[Bundle]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.asked = [self.study.ask(self.distributions) for _ in range(count)]
        return [self._bundle(trial) for trial in self.asked]

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for trial, (_, evaluation) in zip(self.asked, judged, strict=True):
            self.study.tell(trial, [evaluation.fitness[name] for name in self.targets])
        self.generation += 1

    def _bundle(self, trial: Any) -> Bundle:
        values = {one: one.nearest(trial.params[one.name]) for one in self.space}
        name = f"{self.template.name} {trial.number}"
        return with_values(self.template, values, name, self.template.generation + self.generation)

    def _sampler(self, name: Sampler, seed: int, batch: int) -> Any:
        samplers = self.optuna.samplers
        if name == "nsga2":
            return samplers.NSGAIISampler(population_size=batch, seed=seed)
        if name == "tpe":
            return samplers.TPESampler(n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=seed)
        start = {one.name: one.default for one in self.space}
        return samplers.CmaEsSampler(x0=start, popsize=max(batch, 2), seed=seed, warn_independent_sampling=False)

    def _distribution(self, one: Dimension) -> Any:
        kinds = self.optuna.distributions
        if one.whole:
            return kinds.IntDistribution(int(one.low), int(one.high), log=one.log)
        return kinds.FloatDistribution(one.low, one.high, log=one.log)


def _optuna(sampler: Sampler) -> Any:
    if sampler not in SAMPLERS:
        raise HeadwayError(f"--sampler: expected {', '.join(SAMPLERS)}, got {sampler!r}.")
    try:
        found = import_module("optuna")
        if sampler == "cmaes":
            import_module("cmaes")
    except ImportError as error:
        raise HeadwayError(
            f"--engine: {error.name} is not installed; install headway[evolve] for numeric searches, "
            "or take --engine gp, which needs nothing more."
        ) from None
    found.logging.set_verbosity(found.logging.ERROR)
    return found
