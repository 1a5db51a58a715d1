"""CMA-ES over the constants of one rule: an evolution strategy that adapts the covariance of its steps.

Constants change by factors, so a step is normal in their logarithms, and no sign changes. A term of a sum without a
constant gets the constant 1, so that every weight of a rule can change.

The update is that of Hansen's tutorial (arXiv:1604.00772), except that the path of the step size uses the steps before
the covariance is applied. Then a triangular factor is enough, and no eigenvectors are needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from headway.evolve.expression import CONSTANT, NUMBER, Node, call, constant

START: Final = 0.4  # standard deviation of the first steps, in logarithms
SMALLEST: Final = 0.02  # below this step size, the constants count as found
LARGEST: Final = 6.0  # most that the logarithm of a constant changes in total
TERMS: Final = ("add", "subtract", "min", "max", "less")  # operators whose arguments get weights

Vector = list[float]


def slots(rule: Node) -> int:
    """Return the number of constants that can change: those of the rule, and the weights of its terms."""
    steps = _Count()
    _rebuilt(rule, steps, weigh=False)
    return steps.count


def moved(rule: Node, steps: Sequence[float]) -> Node:
    """Return the rule with every constant multiplied by e to the power of its step."""
    return _rebuilt(rule, iter(steps), weigh=False)


class _Count:
    """Counts how many steps a rule takes."""

    count = 0

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        self.count += 1
        return 0.0


def _rebuilt(node: Node, steps: Iterator[float], weigh: bool) -> Node:
    if node.name == CONSTANT:
        return constant(node.value * math.exp(next(steps)))
    weighted = node.name == "multiply" and node.arguments[0].name == CONSTANT
    weight = weigh and node.gives == NUMBER and node.name not in TERMS and not weighted
    step = next(steps) if weight else 0.0
    if not node.arguments:
        rebuilt = node
    else:
        compared = node.name == "less" and any(argument.name == CONSTANT for argument in node.arguments)
        inner = node.name in TERMS and not compared
        rebuilt = call(node.name, *(_rebuilt(argument, steps, inner) for argument in node.arguments))
    return call("multiply", constant(math.exp(step)), rebuilt) if weight else rebuilt


class Polisher:
    """Proposes constants for a rule, and learns from their fitness."""

    def __init__(self, rule: Node) -> None:
        self.rule, self.size = rule, slots(rule)
        n = self.size
        self.mean: Vector = [0.0] * n
        self.sigma = START
        self.covariance = [[float(row == column) for column in range(n)] for row in range(n)]
        self.path: Vector = [0.0] * n
        self.sigma_path: Vector = [0.0] * n
        self._asked: list[tuple[Vector, Vector]] = []

    @property
    def done(self) -> bool:
        return not self.size or self.sigma < SMALLEST

    def ask(self, count: int, draw: Random) -> list[Node]:
        factor, self._asked = _triangle(self.covariance), []
        rules = []
        for _ in range(count):
            plain = [draw.gauss(0.0, 1.0) for _ in range(self.size)]
            step = [_dot(row, plain) for row in factor]
            self._asked.append((plain, step))
            place = [mean + self.sigma * each for mean, each in zip(self.mean, step, strict=True)]
            rules.append(moved(self.rule, [max(-LARGEST, min(LARGEST, value)) for value in place]))
        return rules

    def tell(self, values: Sequence[float]) -> None:
        """Learn the fitness of the proposed rules, in their order; higher is better."""
        n, best = self.size, sorted(range(len(values)), key=lambda place: -values[place])
        raw = [math.log((len(values) + 1) / 2) - math.log(rank + 1) for rank in range(len(values) // 2)]
        if not raw:
            return
        weights = [weight / math.fsum(raw) for weight in raw]
        mass = 1 / math.fsum(weight * weight for weight in weights)
        plain, step = (
            [math.fsum(w * self._asked[best[k]][side][i] for k, w in enumerate(weights)) for i in range(n)]
            for side in (0, 1)
        )
        self.mean = [mean + self.sigma * each for mean, each in zip(self.mean, step, strict=True)]
        rate = (mass + 2) / (n + mass + 5)
        damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + rate
        expected = math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n))
        self.sigma_path = _followed(self.sigma_path, plain, rate, mass)
        self.sigma *= math.exp(rate / damping * (math.sqrt(_dot(self.sigma_path, self.sigma_path)) / expected - 1))
        self.path = _followed(self.path, step, (4 + mass / n) / (n + 4 + 2 * mass / n), mass)
        one = 2 / ((n + 1.3) ** 2 + mass)
        many = max(0.0, min(1 - one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass)))
        steps = [self._asked[place][1] for place in best[: len(weights)]]
        for i, row in enumerate(self.covariance):
            for j in range(n):
                spread = math.fsum(weight * each[i] * each[j] for weight, each in zip(weights, steps, strict=True))
                row[j] = (1 - one - many) * row[j] + one * self.path[i] * self.path[j] + many * spread


def _followed(path: Vector, step: Vector, rate: float, mass: float) -> Vector:
    length = math.sqrt(rate * (2 - rate) * mass)
    return [(1 - rate) * old + length * new for old, new in zip(path, step, strict=True)]


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def _triangle(matrix: list[Vector]) -> list[Vector]:
    """Return the lower triangular factor of a covariance (Cholesky)."""
    n = len(matrix)
    factor = [[0.0] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = matrix[i][j] - _dot(factor[i][:j], factor[j][:j])
            factor[i][j] = math.sqrt(max(rest, 1e-12)) if i == j else rest / factor[j][j]
    return factor
