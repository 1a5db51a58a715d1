"""Controls of a search: simple searches with the same budget. A winner that is no better than they are is no find.

linear    -(pending + a * uncached + b * inflight), with a and b tuned on the train part
random    the best of as many random rules as the search had candidates
"""

from __future__ import annotations

from collections.abc import Sequence
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

STAGE: Final = "routing"  # the stage that has controls
LINEAR: Final = """\
A = parameter(2.0, 0.01, 100.0)
B = parameter(500.0, 1.0, 100000.0)

def score(request, instance, cluster):
    uncached = request.prompt_tokens - cached_tokens(instance)
    return -(instance.pending_prefill_tokens + A * uncached + B * instance.inflight)
"""
GUESS: Final = (2.0, 500.0)  # the first constants
RANGES: Final = ((0.1, 10.0), (10.0, 10_000.0))  # of the constants that are drawn at random, on a logarithmic scale
LIMITS: Final = ((0.01, 100.0), (1.0, 100_000.0))  # of the parameters in the source
SPREAD: Final = 0.4  # standard deviation of the logarithm of a constant around the best so far
DEPTH: Final = 4  # maximum number of levels of a random rule
BRANCHING: Final = 0.25


class Control(NamedTuple):
    name: str
    bundle: Bundle


class LinearTuner:
    """Tunes the two constants: the first half of the batches draws them at random, the second half near the best."""

    def __init__(self, suite: Suite, seed: int, evaluations: int) -> None:
        self.beside, self.seed, self.half = suite.baseline, seed, evaluations // 2
        self.number = 0
        self.best: tuple[float, tuple[float, ...]] = (-1e9, GUESS)
        self._asked: list[tuple[float, ...]] = []

    def ask(self, count: int) -> list[Bundle]:
        self._asked = [self._constants(self.number + place) for place in range(count)]
        self.number += count
        return [self._bundle(constants) for constants in self._asked]

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for constants, (_, evaluation) in zip(self._asked, judged, strict=True):
            if evaluation.stopped is None:
                self.best = max(self.best, (evaluation.fitness[PRIMARY], constants))

    def _constants(self, number: int) -> tuple[float, ...]:
        if not number:
            return GUESS
        draw = stream(self.seed, f"evolve.controls.linear.{number}")
        if number < self.half:
            values = [exp(draw.uniform(log(low), log(high))) for low, high in RANGES]
        else:
            values = [value * exp(draw.gauss(0.0, SPREAD)) for value in self.best[1]]
        return tuple(float(f"{value:.3g}") for value in values)

    def _bundle(self, constants: tuple[float, ...]) -> Bundle:
        a, b = (min(high, max(low, value)) for value, (low, high) in zip(constants, LIMITS, strict=True))
        spec = {"name": "code", "source": LINEAR, "parameters": {"A": a, "B": b}, "lru_blocks": AUTO}
        return Bundle(f"linear({a:g}, {b:g})", {**self.beside, STAGE: spec})


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
    searchers: dict[str, Searcher] = {
        "tuned {}": LinearTuner(suite, seed, evaluations),
        f"best of {evaluations} random rules": RandomRules(suite, seed),
    }
    controls = []
    for name, searcher in searchers.items():
        judged = Search(searcher, suite, batch, runner=runner, progress=progress, race=race, cache=cache).run(
            evaluations
        )
        if any(one.evaluation.ok and one.evaluation.stopped is None for one in judged):
            bundle = select(judged, suite.for_search(), cache=cache, runner=runner).winner.bundle
            controls.append(Control(name.format(bundle.name), bundle))
    return controls
