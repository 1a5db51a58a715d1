"""Search over the numbers of a template, with Optuna's samplers."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, Literal

from msgspec import Struct

from headway.errors import HeadwayError
from headway.evolve.evaluation import Evaluation
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.policies import registry
from headway.policies.bundle import WRITTEN, Bundle, source_of
from headway.policies.code import Program
from headway.policies.profile import scorer_list
from headway.policies.registry import Bounds
from headway.streams import derive

# The numbers of a policy that a search may choose: a catalogue policy's bounded parameters, those that code declares,
# and the weights of a profile of scorers.

DIGITS: Final = 4  # of a number that is chosen
FALLS, RISES = 100, 10  # how far below and above the heaviest scorer a weight is looked for


class Dimension(Struct, frozen=True):
    """A number, where it stands in its stage's policy, and the range that it is looked for in."""

    stage: str
    keys: tuple[str, ...]
    default: float
    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.keys[-1]}"

    def nearest(self, value: float) -> float | int:
        """A value of few digits within the range."""
        found = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        return min(max(found, self.low), self.high) if not self.whole else int(min(max(found, self.low), self.high))


def dimensions(bundle: Bundle, stages: Sequence[str]) -> list[Dimension]:
    """Of the policies of some stages; an error where there is none."""
    found = [one for stage in stages for one in _of(stage, bundle.policies[stage])]
    if not found:
        names = ", ".join(registry.split(bundle.policies[stage], stage)[0] for stage in stages)
        raise HeadwayError(
            f"--template: {names} has no number to choose; name a policy that has, such as prefill-cost-routing."
        )
    return found


def _of(stage: str, spec: Any) -> list[Dimension]:
    name, given = registry.split(spec, f"policies.{stage}")
    if name in WRITTEN:
        program = Program(source_of(stage, spec), stage, name)
        values = given.get("parameters") or {}
        return [
            Dimension(stage, ("parameters", one.name), values.get(one.name, one.default), one.low, one.high)
            for one in program.parameters
            if one.low < one.high
        ]
    found = []
    for one in registry.find(stage, name, f"policies.{stage}").parameters:
        value = given.get(one.name, one.default)
        if one.name == "scorers":
            found += _weights(stage, value)
        elif one.bounds is not None and isinstance(value, int | float) and not isinstance(value, bool):
            found += _bounded(stage, one.name, value, one.bounds, one.type is not float)
    return found


def _bounded(stage: str, name: str, value: float, bounds: Bounds, whole: bool) -> list[Dimension]:
    if not bounds.low < bounds.high:
        return []
    return [Dimension(stage, (name,), value, bounds.low, bounds.high, bounds.log and bounds.low > 0, whole)]


def _weights(stage: str, given: Any) -> list[Dimension]:
    """Only the ratios of weights count, so they are looked for on a logarithmic scale around the heaviest."""
    scorers = scorer_list(given)
    heaviest = float(max(one.get("weight", 1) for one in scorers))
    low, high = heaviest / FALLS, heaviest * RISES
    found = {one["name"]: min(max(float(one.get("weight", 1)), low), high) for one in scorers}
    return [Dimension(stage, ("scorers", name), weight, low, high, log=True) for name, weight in found.items()]


def with_values(bundle: Bundle, chosen: Mapping[Dimension, float], name: str, generation: int) -> Bundle:
    """The bundle with other numbers; it tells which of them have changed."""
    policies = dict(bundle.policies)
    told = []
    for one, value in chosen.items():
        policies[one.stage] = _put(policies[one.stage], one, value)
        if value != one.default:
            told.append(f"{one.keys[-1]} {one.default:g} -> {value:g}")
    return Bundle(name, policies, generation, bundle.id if told else bundle.parent, tuple(told))


def _put(spec: Any, one: Dimension, value: float) -> Any:
    name, given = registry.split(spec, one.stage)
    if one.keys[0] == "scorers":
        entry = registry.find(one.stage, name, one.stage)
        known = next(parameter.default for parameter in entry.parameters if parameter.name == "scorers")
        scorers = scorer_list(given.get("scorers", known))
        found = [{**each, "weight": value} if each["name"] == one.keys[1] else each for each in scorers]
        plain = all(set(each) == {"name", "weight"} for each in found)
        return {"name": name, **given, "scorers": {each["name"]: each["weight"] for each in found} if plain else found}
    if len(one.keys) == 2:
        return {"name": name, **given, one.keys[0]: {**(given.get(one.keys[0]) or {}), one.keys[1]: value}}
    return {"name": name, **given, one.keys[0]: value}


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
