"""Search with Optuna's samplers for better numbers in a template: the bounded parameters of a policy in the catalogue,
the parameters of code, and the weights of a profile of scorers."""

import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final, get_args

from msgspec import Struct

from headway.errors import HeadwayError, argument, missing_extra, worded
from headway.evolve.evaluation import Evaluation
from headway.evolve.evolution import Plan, Sampler
from headway.evolve.objectives import PRIMARY
from headway.evolve.suite import Suite
from headway.policies import registry
from headway.policies.bundle import WRITTEN, Bundle, source_of
from headway.policies.code import Program
from headway.policies.profile import scorer_list
from headway.streams import derive
from headway.types import Json

DIGITS: Final = 4  # number of significant digits of a chosen number
FALLS, RISES = 100, 10  # range of a weight: from the largest weight / FALLS to the largest weight · RISES


class Dimension(Struct, frozen=True):
    """A number to search: its location in a stage's policy, its default and its range."""

    stage: str
    keys: tuple[str, ...]
    default: float
    low: float
    high: float
    log: bool = False
    whole: bool = False
    # True: if the search chooses the default, the number is not written, because the dated default may be `auto`
    keep: bool = False

    @property
    def name(self) -> str:
        return f"{self.stage}.{self.keys[-1]}"

    def nearest(self, value: float) -> float | int:
        """Return a value rounded to `DIGITS` significant digits and clipped to the range of the dimension."""
        rounded = round(value) if self.whole else float(f"{value:.{DIGITS}g}")
        nearest = min(max(rounded, self.low), self.high)
        return int(nearest) if self.whole else nearest


def dimensions(bundle: Bundle, stages: Sequence[str]) -> list[Dimension]:
    """Return the dimensions of the policies of these stages. If the policies have no dimensions, raise an error."""
    space = [dimension for stage in stages for dimension in _of(stage, bundle.policy(stage))]
    if not space:
        names = ", ".join(registry.split(bundle.policy(stage), stage)[0] for stage in stages)
        remedy = "Use a policy with numbers, such as prefill-cost-routing"
        raise HeadwayError(f"{argument('template')}: {names} has no numbers to search. {remedy}.")
    return space


def _of(stage: str, spec: Any) -> list[Dimension]:
    name, keys = registry.split(spec, f"policies.{stage}")
    space = []
    if name in WRITTEN:
        values = keys.get("parameters") or {}
        for number in Program(source_of(stage, spec), stage, name).parameters:
            if number.low < number.high:
                value = values.get(number.name, number.default)
                space.append(Dimension(stage, ("parameters", number.name), value, number.low, number.high))
        return space
    for parameter in registry.find(stage, name, f"policies.{stage}").parameters:
        value, bounds = keys.get(parameter.name, parameter.default), parameter.bounds
        if value == registry.AUTO:  # the search needs a number to start from
            value = parameter.default
        if parameter.name == "scorers":
            space += _weights(stage, value)
        elif bounds is None or isinstance(value, bool) or not isinstance(value, int | float):
            continue
        elif bounds.low < bounds.high:
            log = bounds.log and bounds.low > 0
            whole = float not in (parameter.type, *get_args(parameter.type))  # also detects `float | None`
            start, keep = registry.written_value(value), isinstance(value, registry.Usual)
            space.append(Dimension(stage, (parameter.name,), start, bounds.low, bounds.high, log, whole, keep))
    return space


def _weights(stage: str, spec: Any) -> list[Dimension]:
    """Return a dimension for each weight. Its scale is logarithmic, because only the ratios of weights matter."""
    weights = {scorer["name"]: float(scorer.get("weight", 1)) for scorer in scorer_list(spec)}
    heaviest = max(weights.values())
    low, high = heaviest / FALLS, heaviest * RISES
    return [
        Dimension(stage, ("scorers", name), min(max(weight, low), high), low, high, log=True)
        for name, weight in weights.items()
    ]


def with_values(bundle: Bundle, chosen: Mapping[Dimension, float], name: str, generation: int) -> Bundle:
    """Return a copy of the bundle with these numbers. Its `mutations` list the changes."""
    policies = dict(bundle.policies)
    changes = []
    for dimension, value in chosen.items():
        if value == dimension.default and dimension.keep:
            continue
        before = policies.get(dimension.stage, bundle.policy(dimension.stage))
        policies[dimension.stage] = _put(before, dimension, value)
        if value != dimension.default:
            changes.append(f"{dimension.keys[-1]} {dimension.default:g} -> {value:g}")
    return Bundle(name, policies, generation, bundle.id if changes else bundle.parent, tuple(changes))


def _put(spec: Any, dimension: Dimension, value: float) -> Any:
    name, keys = registry.split(spec, dimension.stage)
    key, *inner = dimension.keys
    if key == "scorers":
        entry = registry.find(dimension.stage, name, dimension.stage)
        known = next(parameter.default for parameter in entry.parameters if parameter.name == "scorers")
        scorers = scorer_list(keys.get("scorers", known))
        weighted = [{**each, "weight": value} if each["name"] == inner[0] else each for each in scorers]
        plain = all(set(each) == {"name", "weight"} for each in weighted)
        by_name = {each["name"]: each["weight"] for each in weighted} if plain else weighted
        return {"name": name, **keys, "scorers": by_name}
    if inner:
        return {"name": name, **keys, key: {**(keys.get(key) or {}), inner[0]: value}}
    return {"name": name, **keys, key: value}


SAMPLERS: Final[tuple[Sampler, ...]] = get_args(Sampler)
BATCH: Final = 10
STARTUP: Final = 10  # number of random trials before TPE fits a model


class Numeric:
    """A `Searcher` for numbers. Its first proposal has the numbers of the template. NSGA-II optimizes all objectives of
    the suite; TPE and CMA-ES optimize only the primary fitness."""

    def __init__(
        self, suite: Suite, template: Bundle, space: Sequence[Dimension], sampler: Sampler, seed: int, batch: int
    ) -> None:
        self.optuna = _optuna(sampler)
        self.template, self.space = template, list(space)
        weighted = [objective.name for objective in suite.objectives if objective.weight > 0]
        self.targets = weighted if sampler == "nsga2" else [PRIMARY]
        with warnings.catch_warnings():  # Optuna would warn about experimental options of samplers
            warnings.simplefilter("ignore")
            own_sampler = self._sampler(sampler, derive(seed, f"evolve.numeric.{sampler}") % 2**32, batch)
        self.study = self.optuna.create_study(directions=["maximize"] * len(self.targets), sampler=own_sampler)
        self.study.enqueue_trial({dimension.name: dimension.default for dimension in self.space})
        self.distributions = {dimension.name: self._distribution(dimension) for dimension in self.space}
        self.trials: list[Any] = []
        self.generation = 0

    def ask(self, count: int) -> list[Bundle]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.trials = [self.study.ask(self.distributions) for _ in range(count)]
        generation, bundles = self.template.generation + self.generation, []
        for trial in self.trials:
            values = {dimension: dimension.nearest(trial.params[dimension.name]) for dimension in self.space}
            bundles.append(with_values(self.template, values, f"{self.template.name} {trial.number}", generation))
        return bundles

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for trial, (_, evaluation) in zip(self.trials, judged, strict=True):
            self.study.tell(trial, [evaluation.fitness[name] for name in self.targets])
        self.generation += 1

    def _sampler(self, name: Sampler, seed: int, batch: int) -> Any:
        samplers = self.optuna.samplers
        if name == "nsga2":
            return samplers.NSGAIISampler(population_size=batch, seed=seed)
        if name == "tpe":
            return samplers.TPESampler(n_startup_trials=STARTUP, multivariate=True, constant_liar=True, seed=seed)
        start = {dimension.name: dimension.default for dimension in self.space}
        return samplers.CmaEsSampler(x0=start, popsize=max(batch, 2), seed=seed, warn_independent_sampling=False)

    def _distribution(self, dimension: Dimension) -> Any:
        kinds = self.optuna.distributions
        if dimension.whole:
            return kinds.IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        return kinds.FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def searcher(plan: Plan, suite: Suite) -> Numeric:
    template = plan.start(suite)
    template.check(argument("template"))
    return Numeric(suite, template, dimensions(template, plan.stages), plan.sampler, plan.seed, plan.size)


def describe(plan: Plan, suite: Suite) -> Json:
    return {"sampler": plan.sampler, "stages": list(plan.stages), "template": plan.start(suite).policies}


def _optuna(sampler: Sampler) -> Any:
    if sampler not in SAMPLERS:
        raise HeadwayError(f"{argument('sampler')}: expected {', '.join(SAMPLERS)}, got {sampler!r}.")
    try:
        optuna = import_module("optuna")
        if sampler == "cmaes":
            import_module("cmaes")
    except ImportError as error:
        instead = f"use {worded('--engine gp', 'the engine gp')}, which needs no package"
        raise missing_extra(argument("engine"), error.name or "optuna", "evolve", instead) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna
