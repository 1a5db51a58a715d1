"""Genetic operators on rules: grow a random rule, mutate a rule, cross two rules. A rule is a tree. A subtree that
returns a number is replaced only by another subtree that returns a number, and a condition only by another
condition."""

from collections.abc import Callable
from random import Random
from typing import Final

from headway.evolve import expression as tree
from headway.evolve.expression import Node

LARGEST: Final = 40  # maximum number of nodes in a rule
DEEPEST: Final = 12  # maximum number of levels in a rule
TRIES: Final = 20
RARE: Final = 0.2  # probability that a feature is drawn from those that are not common
JOINING: Final = ("add", "add", "subtract", "subtract", "multiply", "multiply", "ratio", "min", "max", "negate", "root")
Change = Callable[["Breeder", Node], Node]


class Breeder:
    """Creates rules with one random stream. `branching` is the probability that a node of a grown rule is a
    branch."""

    def __init__(self, draw: Random, branching: float, stage: str = "routing") -> None:
        self.draw = draw
        self.branching = branching
        self.leaves = tree.leaves_of(stage, common=True)
        self.others = tree.leaves_of(stage, common=False)

    def grow(self, gives: str, depth: int) -> Node:
        """Return a random tree of at most `depth` levels whose value has the type `gives`."""
        if gives == tree.CONDITION:
            return self._condition(depth)
        if depth <= 1 or self.draw.random() < 0.25:
            return self.leaf()
        branches = depth > 2 and self.draw.random() < self.branching
        name = tree.BRANCH if branches else self.draw.choice(JOINING)
        return tree.call(name, *(self.grow(kind, depth - 1) for kind in tree.OPERATORS[name].takes))

    def leaf(self) -> Node:
        if self.draw.random() < 0.25:
            return tree.constant(self.draw.choice((-1, 1)) * 10 ** self.draw.uniform(-2, 1))
        return self._feature()

    def _feature(self) -> Node:
        rare = self.others and self.draw.random() < RARE
        return tree.feature(self.draw.choice(self.others if rare else self.leaves))

    def _condition(self, depth: int) -> Node:
        """Return a random comparison of two values, or sometimes two conditions joined by `and` or `or`."""
        if depth > 2 and self.draw.random() < 0.2:
            return tree.call(self.draw.choice(("and", "or")), self._condition(depth - 1), self._condition(depth - 1))
        for _ in range(TRIES):
            sides = [self.grow(tree.NUMBER, max(1, min(depth - 1, 2))), self.leaf()]
            self.draw.shuffle(sides)
            condition = tree.call("less", *sides)
            if condition.arguments:
                return condition
        return tree.call("less", tree.feature(self.leaves[0]), tree.feature(self.leaves[-1]))

    def mutate(self, rule: Node) -> tuple[Node, str]:
        """Return a rule with one random change, and the name of that change."""
        names = list(CHANGES)
        weights = [weight for weight, _ in CHANGES.values()]
        for _ in range(TRIES):
            name = self.draw.choices(names, weights)[0]
            mutant = CHANGES[name][1](self, rule)
            if mutant != rule and fits(mutant):
                return mutant, name
        return rule, "no change"

    def cross(self, rule: Node, other: Node) -> Node:
        """Return `rule` with a random subtree replaced by a subtree of `other` that has the same type."""
        for _ in range(TRIES):
            path = self._place(rule)
            gives = tree.at(rule, path).gives
            parts = [node for _, node in tree.walk(other) if node.gives == gives]
            if not parts:
                continue
            child = tree.replace_part(rule, path, self.draw.choice(parts))
            if child not in (rule, other) and fits(child):
                return child
        return rule

    def _place(self, rule: Node) -> tree.Path:
        return self.draw.choice([path for path, _ in tree.walk(rule)])

    def another(self, rule: Node) -> Node:
        """Replace a random subtree by a new random tree."""
        path = self._place(rule)
        return tree.replace_part(rule, path, self.grow(tree.at(rule, path).gives, 3))

    def swap(self, rule: Node) -> Node:
        """Replace a feature by another feature, or an operator by another operator of the same type."""
        path = self._place(rule)
        node = tree.at(rule, path)
        if node.name in tree.FEATURES:
            return tree.replace_part(rule, path, self._feature())
        operator = tree.OPERATORS.get(node.name)
        if operator is None:
            return rule
        kind = operator.gives, operator.takes
        alike = [name for name, other in tree.OPERATORS.items() if (other.gives, other.takes) == kind]
        return tree.replace_part(rule, path, tree.call(self.draw.choice(alike), *node.arguments))

    def tune(self, rule: Node) -> Node:
        """Multiply a constant by a random factor, which is sometimes negative. If the rule has no constant, call
        `weigh`."""
        places = [path for path, node in tree.walk(rule) if node.name == tree.CONSTANT]
        if not places:
            return self.weigh(rule)
        path = self.draw.choice(places)
        value = tree.at(rule, path).value
        sign = -1 if self.draw.random() < 0.05 else 1
        return tree.replace_part(rule, path, tree.constant(sign * value * 2 ** self.draw.gauss(0, 1)))

    def weigh(self, rule: Node) -> Node:
        """Multiply a subtree by a random constant."""
        path = self._number(rule)
        weight = tree.constant(2 ** self.draw.gauss(0, 1.5))
        return tree.replace_part(rule, path, tree.call("multiply", weight, tree.at(rule, path)))

    def extend(self, rule: Node) -> Node:
        """Combine a subtree with a small random tree."""
        path = self._number(rule)
        name = self.draw.choice(("add", "subtract", "multiply", "ratio", "max", "min"))
        extra = self.grow(tree.NUMBER, 2)
        if name in ("add", "subtract"):
            extra = tree.call("multiply", tree.constant(10 ** self.draw.uniform(-2, 0.5)), extra)
        return tree.replace_part(rule, path, tree.call(name, tree.at(rule, path), extra))

    def branch(self, rule: Node) -> Node:
        """Replace a subtree by a branch: a random condition chooses between this subtree and a random tree."""
        path = self._number(rule)
        condition, other = self._condition(3), self.grow(tree.NUMBER, 2)
        return tree.replace_part(rule, path, tree.call(tree.BRANCH, condition, tree.at(rule, path), other))

    def hoist(self, rule: Node) -> Node:
        """Replace a subtree by a smaller subtree of the same type that it contains."""
        path = self._place(rule)
        gives = tree.at(rule, path).gives
        inner = [node for way, node in tree.walk(tree.at(rule, path)) if way and node.gives == gives]
        return tree.replace_part(rule, path, self.draw.choice(inner)) if inner else rule

    def drop(self, rule: Node) -> Node:
        """Replace a subtree by a random leaf."""
        path = self._number(rule)
        return tree.replace_part(rule, path, self.leaf()) if path else rule

    def _number(self, rule: Node) -> tree.Path:
        return self.draw.choice([path for path, node in tree.walk(rule) if node.gives == tree.NUMBER])


# The mutations by name, each with its relative frequency.
CHANGES: Final[dict[str, tuple[float, Change]]] = {
    "replace a part": (2, Breeder.another),
    "swap a feature or operator": (2, Breeder.swap),
    "scale a constant": (4, Breeder.tune),
    "weight a part": (2, Breeder.weigh),
    "extend a part": (3, Breeder.extend),
    "add a condition": (1, Breeder.branch),
    "hoist a part": (1, Breeder.hoist),
    "drop a part": (1, Breeder.drop),
}


def fits(rule: Node) -> bool:
    """Return whether a rule returns a number, uses at least one feature, and is small enough for people to read."""
    looks = any(node.name in tree.FEATURES for _, node in tree.walk(rule))
    return rule.gives == tree.NUMBER and looks and rule.size <= LARGEST and rule.depth <= DEEPEST
