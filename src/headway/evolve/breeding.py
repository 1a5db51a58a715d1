"""How rules come from rules: grown at random, changed in one place, crossed with another. What gives a number stays
one, and what is a condition stays a condition."""

from collections.abc import Callable
from random import Random
from typing import Final

from headway.evolve.expression import (
    BRANCH,
    CONDITION,
    CONSTANT,
    FEATURES,
    NUMBER,
    OPERATORS,
    Node,
    Path,
    at,
    call,
    constant,
    feature,
    replace_part,
    walk,
)

LARGEST: Final = 40  # nodes of a rule
DEEPEST: Final = 12
TRIES: Final = 20
LEAVES: Final = tuple(FEATURES)
JOINING: Final = ("add", "add", "subtract", "subtract", "multiply", "multiply", "ratio", "min", "max", "negate", "root")
Change = Callable[["Breeder", Node], Node]


class Breeder:
    """Draws from one stream. `branching` is how much it likes conditions, which trees of decisions have many of."""

    def __init__(self, draw: Random, branching: float) -> None:
        self.draw = draw
        self.branching = branching

    def grow(self, gives: str, depth: int) -> Node:
        """A tree of at most so many levels."""
        if gives == CONDITION:
            return self._condition(depth)
        if depth <= 1 or self.draw.random() < 0.25:
            return self.leaf()
        if depth > 2 and self.draw.random() < self.branching:
            arguments = (self._condition(depth - 1), self.grow(NUMBER, depth - 1), self.grow(NUMBER, depth - 1))
            return call(BRANCH, *arguments)
        name = self.draw.choice(JOINING)
        return call(name, *(self.grow(kind, depth - 1) for kind in OPERATORS[name].takes))

    def leaf(self) -> Node:
        if self.draw.random() < 0.25:
            return constant(self.draw.choice((-1, 1)) * 10 ** self.draw.uniform(-2, 1))
        return feature(self.draw.choice(LEAVES))

    def _condition(self, depth: int) -> Node:
        """A feature against a constant or another one, at times two such."""
        if depth > 2 and self.draw.random() < 0.2:
            return call(self.draw.choice(("and", "or")), self._condition(depth - 1), self._condition(depth - 1))
        for _ in range(TRIES):
            sides = [self.grow(NUMBER, max(1, min(depth - 1, 2))), self.leaf()]
            self.draw.shuffle(sides)
            condition = call("less", *sides)
            if condition.arguments:
                return condition
        return call("less", feature("inflight"), feature("average"))

    def mutate(self, rule: Node) -> tuple[Node, str]:
        """A rule that differs in one place, and the word for what was done; at times the first of a few such steps."""
        names = list(CHANGES)
        weights = [weight for weight, _ in CHANGES.values()]
        for _ in range(TRIES):
            name = self.draw.choices(names, weights)[0]
            mutant = CHANGES[name][1](self, rule)
            if mutant != rule and fits(mutant):
                return mutant, name
        return rule, "nothing"

    def cross(self, rule: Node, other: Node) -> Node:
        """A part of the one in the place of a part of the other that gives the same."""
        for _ in range(TRIES):
            path = self._place(rule)
            gives = at(rule, path).gives
            parts = [node for _, node in walk(other) if node.gives == gives]
            if not parts:
                continue
            child = replace_part(rule, path, self.draw.choice(parts))
            if child not in (rule, other) and fits(child):
                return child
        return rule

    def _place(self, rule: Node) -> Path:
        return self.draw.choice([path for path, _ in walk(rule)])

    def another(self, rule: Node) -> Node:
        """A part is grown anew."""
        path = self._place(rule)
        return replace_part(rule, path, self.grow(at(rule, path).gives, 3))

    def swap(self, rule: Node) -> Node:
        """Another feature, or another operator of the same kind, in place of one."""
        path = self._place(rule)
        node = at(rule, path)
        if node.name in FEATURES:
            return replace_part(rule, path, feature(self.draw.choice(LEAVES)))
        operator = OPERATORS.get(node.name)
        if operator is None:
            return rule
        kind = operator.gives, operator.takes
        alike = [name for name, other in OPERATORS.items() if (other.gives, other.takes) == kind]
        return replace_part(rule, path, call(self.draw.choice(alike), *node.arguments))

    def tune(self, rule: Node) -> Node:
        """A constant is made somewhat larger or smaller, or takes the other sign; where there is none, a part gets a
        weight."""
        places = [path for path, node in walk(rule) if node.name == CONSTANT]
        if not places:
            return self.weigh(rule)
        path = self.draw.choice(places)
        value = at(rule, path).value
        sign = -1 if self.draw.random() < 0.05 else 1
        return replace_part(rule, path, constant(sign * value * 2 ** self.draw.gauss(0, 1)))

    def weigh(self, rule: Node) -> Node:
        """A part counts more or less."""
        path = self._number(rule)
        return replace_part(rule, path, call("multiply", constant(2 ** self.draw.gauss(0, 1.5)), at(rule, path)))

    def extend(self, rule: Node) -> Node:
        """Something is added to a part, taken from it, or multiplied with it."""
        path = self._number(rule)
        name = self.draw.choice(("add", "subtract", "multiply", "ratio", "max", "min"))
        extra = self.grow(NUMBER, 2)
        if name in ("add", "subtract"):
            extra = call("multiply", constant(10 ** self.draw.uniform(-2, 0.5)), extra)
        return replace_part(rule, path, call(name, at(rule, path), extra))

    def branch(self, rule: Node) -> Node:
        """A part holds under a condition alone."""
        path = self._number(rule)
        return replace_part(rule, path, call(BRANCH, self._condition(3), at(rule, path), self.grow(NUMBER, 2)))

    def hoist(self, rule: Node) -> Node:
        """A part takes the place of what it is part of."""
        path = self._place(rule)
        gives = at(rule, path).gives
        inner = [node for way, node in walk(at(rule, path)) if way and node.gives == gives]
        return replace_part(rule, path, self.draw.choice(inner)) if inner else rule

    def drop(self, rule: Node) -> Node:
        """A part is reduced to a leaf."""
        path = self._number(rule)
        return replace_part(rule, path, self.leaf()) if path else rule

    def _number(self, rule: Node) -> Path:
        return self.draw.choice([path for path, node in walk(rule) if node.gives == NUMBER])


# How often, and what.
CHANGES: Final[dict[str, tuple[float, Change]]] = {
    "another part": (2, Breeder.another),
    "another feature or operator": (2, Breeder.swap),
    "another constant": (4, Breeder.tune),
    "a weight": (2, Breeder.weigh),
    "one part more": (3, Breeder.extend),
    "a condition": (1, Breeder.branch),
    "a part in place of the whole": (1, Breeder.hoist),
    "one part less": (1, Breeder.drop),
}


def fits(rule: Node) -> bool:
    """Whether a rule is small enough to be read, and looks at anything at all."""
    looks = any(node.name in FEATURES for _, node in walk(rule))
    return rule.gives == NUMBER and looks and rule.size <= LARGEST and rule.depth <= DEEPEST
