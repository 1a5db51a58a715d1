"""Controls of a search: simple searches with the same budget. A winner that is no better than they are is no find.

linear        -(pending + a * uncached + b * inflight), with a and b tuned on the train part
least-delay   the built-in policy with its three constants tuned
random        the best of as many random rules as the search had candidates
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import exp, log
from typing import Final, NamedTuple

from headway.evolve.breeding import Breeder
from headway.evolve.cache import Cache
from headway.evolve.evaluation import Evaluation
from headway.evolve.expression import NUMBER
from headway.evolve.objectives import PRIMARY
from headway.evolve.rule_text import policy_of
from headway.evolve.search import Progress, Search, Searcher
from headway.evolve.selection import select
from headway.evolve.suite import Suite
from headway.experiment.runner import Runner
from headway.policies.bundle import Bundle
from headway.policies.registry import AUTO
from headway.streams import stream
from headway.types import Json

STAGE: Final = "routing"  # the stage that has controls
LINEAR: Final = """\
A = parameter(2.0, 0.01, 100.0)
B = parameter(500.0, 1.0, 100000.0)

def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + A * uncached + B * instance.inflight)
"""
SPREAD: Final = 0.4  # standard deviation of the logarithm of a constant around the best so far
DEPTH: Final = 4  # maximum number of levels of a random rule
BRANCHING: Final = 0.25


class Control(NamedTuple):
    name: str
    bundle: Bundle


class Constant(NamedTuple):
    """A constant to tune: the first value, the range from which values are drawn, and the limits of the policy."""

    guess: float
    range: tuple[float, float]
    limits: tuple[float, float]


class Tuned(NamedTuple):
    """A policy whose constants are tuned. `policy` returns the policy with these constants."""

    name: str
    constants: dict[str, Constant]
    policy: Callable[[dict[str, float]], Json]


TUNED: Final = (
    Tuned(
        "linear",
        {
            "A": Constant(2.0, (0.1, 10.0), (0.01, 100.0)),
            "B": Constant(500.0, (10.0, 10_000.0), (1.0, 100_000.0)),
        },
        lambda values: {"name": "code", "source": LINEAR, "parameters": values, "lru_blocks": AUTO},
    ),
    Tuned(
        "least-delay",
        {
            "wait": Constant(2.2, (0.2, 20.0), (0.0, 100.0)),
            "others": Constant(0.44, (0.04, 4.0), (0.0, 100.0)),
            "decode": Constant(11.0, (0.1, 100.0), (0.0, 10_000.0)),
        },
        lambda values: {"name": "least-delay", **values, "lru_blocks": AUTO},
    ),
)


class Tuner:
    """Tunes the constants of a policy: the first half of the budget draws them at random, on a logarithmic scale, and
    the second half near the best."""

    def __init__(self, tuned: Tuned, suite: Suite, seed: int, evaluations: int) -> None:
        self.tuned, self.beside, self.seed, self.half = tuned, suite.baseline, seed, evaluations // 2
        self.number = 0
        guess = tuple(constant.guess for constant in tuned.constants.values())
        self.best: tuple[float, tuple[float, ...]] = (-1e9, guess)
        self._asked: list[tuple[float, ...]] = []

    def ask(self, count: int) -> list[Bundle]:
        self._asked = [self._values(self.number + place) for place in range(count)]
        self.number += count
        return [self._bundle(values) for values in self._asked]

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for values, (_, evaluation) in zip(self._asked, judged, strict=True):
            if evaluation.stopped is None:
                self.best = max(self.best, (evaluation.fitness[PRIMARY], values))

    def _values(self, number: int) -> tuple[float, ...]:
        constants = self.tuned.constants.values()
        if not number:
            return tuple(constant.guess for constant in constants)
        draw = stream(self.seed, f"evolve.controls.{self.tuned.name}.{number}")
        if number < self.half:
            values = [exp(draw.uniform(*map(log, constant.range))) for constant in constants]
        else:
            values = [value * exp(draw.gauss(0.0, SPREAD)) for value in self.best[1]]
        return tuple(float(f"{value:.3g}") for value in values)

    def _bundle(self, drawn: tuple[float, ...]) -> Bundle:
        constants = self.tuned.constants.items()
        values = {
            name: min(constant.limits[1], max(constant.limits[0], value))
            for (name, constant), value in zip(constants, drawn, strict=True)
        }
        name = f"{self.tuned.name}({', '.join(f'{value:g}' for value in values.values())})"
        return Bundle(name, {**self.beside, STAGE: self.tuned.policy(values)})


class RandomRules:
    """Draws rules at random, each with a stream of its own, and learns nothing."""

    def __init__(self, suite: Suite, seed: int) -> None:
        self.beside, self.seed, self.number = suite.baseline, seed, 0

    def ask(self, count: int) -> list[Bundle]:
        first = self.number
        self.number += count
        return [self._bundle(number) for number in range(first, first + count)]

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None: ...

    def _bundle(self, number: int) -> Bundle:
        draw = stream(self.seed, f"evolve.controls.random.{number}")
        rule = Breeder(draw, BRANCHING, STAGE).grow(NUMBER, DEPTH)
        return Bundle(f"random {number}", {**self.beside, STAGE: policy_of(rule, STAGE)})


def find_controls(
    suite: Suite,
    seed: int,
    evaluations: int,
    batch: int,
    cache: Cache,
    runner: Runner | None,
    race: bool,
    progress: Progress | None = None,
) -> list[Control]:
    """Run the simple searches, each with the budget of the search, and choose their winners as the search chooses its
    own: on the validation part. A search without a working candidate gives no control."""
    searchers: list[tuple[str, Searcher]] = [("tuned {}", Tuner(tuned, suite, seed, evaluations)) for tuned in TUNED]
    searchers.append((f"best of {evaluations} random rules", RandomRules(suite, seed)))
    controls = []
    for name, searcher in searchers:
        judged = Search(searcher, suite, batch, runner=runner, progress=progress, race=race, cache=cache).run(
            evaluations
        )
        if any(one.evaluation.ok and one.evaluation.stopped is None for one in judged):
            bundle = select(judged, suite.for_search(), cache=cache, runner=runner).winner.bundle
            controls.append(Control(name.format(bundle.name), bundle))
    return controls
