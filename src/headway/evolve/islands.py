"""Genetic programming: populations of rules on islands, which breed apart and send their best to each other.

Half of the islands like formulas, the others trees of decisions. What counts is the primary fitness less a charge for
every node, so that of two rules that are worth the same the shorter one lives on.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec import Struct

from headway.evolve.breeding import Breeder
from headway.evolve.evaluation import Evaluation
from headway.evolve.expression import NUMBER, Node
from headway.evolve.objectives import PRIMARY
from headway.evolve.rule_text import source_of
from headway.evolve.rules import RULES
from headway.evolve.situations import decisions
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle
from headway.policies.code import CodeError, plain_program
from headway.streams import stream

ISLANDS: Final = 4
CAPACITY: Final = 12  # rules that live on an island
MIGRATION: Final = 3  # generations between two exchanges
PARSIMONY: Final = 0.0005  # of the primary fitness, for a node
CROSSING: Final = 0.35  # of the children have two parents
TOURNAMENT: Final = 3
TRIES: Final = 30
BRANCHING: Final = (0.1, 0.4)  # of formulas, and of trees of decisions


class Rule(Struct, frozen=True):
    """A rule that has been judged."""

    tree: Node
    bundle: str  # its id
    primary: float

    @property
    def worth(self) -> float:
        return self.primary - PARSIMONY * self.tree.size


class Child(Struct, frozen=True):
    """A rule that is to be judged, and the island that it was bred on; -1 for all of them."""

    tree: Node
    island: int


class Islands:
    """A `Searcher`. Every generation on every island has a stream of its own."""

    def __init__(self, suite: Suite, seed: int, islands: int = ISLANDS) -> None:
        self.seed = seed
        self.beside = {stage: spec for stage, spec in suite.baseline.items() if stage != "routing"}
        self.populations: list[list[Rule]] = [[] for _ in range(islands)]
        self.generation = 0
        self.asked: list[Child] = []
        self._seen: dict[bytes | str, None] = {}  # what has been asked for, by source and by decisions

    def ask(self, count: int) -> list[Bundle]:
        self.asked, made = [], []
        if self.generation == 0:
            made += [self._told(tree, -1, name, None, ()) for name, tree in list(RULES.items())[:count]]
        while len(made) < count:
            island = len(made) * len(self.populations) // count if self.generation else -1
            made.append(self._child(island, len(made)))
        return made

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for child, (bundle, evaluation) in zip(self.asked, judged, strict=True):
            rule = Rule(child.tree, bundle.id, evaluation.fitness[PRIMARY])
            for place in range(len(self.populations)) if child.island < 0 else (child.island,):
                self.populations[place].append(rule)
        self.generation += 1
        if self.generation % MIGRATION == 0:
            self._migrate()
        self.populations = [survivors(population) for population in self.populations]

    def _migrate(self) -> None:
        """The best of each island goes to the next one as well."""
        best = [max(population, key=lambda rule: rule.worth) for population in self.populations]
        for place, rule in enumerate(best):
            self.populations[(place + 1) % len(best)].append(rule)

    def _child(self, island: int, number: int) -> Bundle:
        """A rule that decides otherwise than all before it, or differs from them at least."""
        draw = stream(self.seed, f"evolve.gp.{self.generation}.{number}")
        breeder = Breeder(draw, BRANCHING[max(island, 0) % 2] if island >= 0 else BRANCHING[number % 2])
        for left in reversed(range(TRIES)):
            tree, parent, how = self._bred(breeder, island)
            if self._new(tree, strict=left > TRIES // 3) or not left:
                break
        name = f"rule {self.generation}.{number}"
        return self._told(tree, island, name, parent, (how,))

    def _bred(self, breeder: Breeder, island: int) -> tuple[Node, str | None, str]:
        if island < 0:
            known = list(RULES.values())
            if breeder.draw.random() < 0.3:
                return breeder.grown(NUMBER, 4), None, "grown"
            tree, what = breeder.mutated(breeder.draw.choice(known))
            return tree, None, f"a known rule: {what}"
        population = self.populations[island]
        parent = chosen(population, breeder.draw)
        if breeder.draw.random() < CROSSING:
            other = chosen(population, breeder.draw)
            return breeder.crossed(parent.tree, other.tree), parent.bundle, f"crossed with {other.bundle}"
        tree, what = breeder.mutated(parent.tree)
        if breeder.draw.random() < 0.3:
            tree, more = breeder.mutated(tree)
            what = f"{what}, {more}"
        return tree, parent.bundle, what

    def _new(self, tree: Node, strict: bool) -> bool:
        source = source_of(tree)
        if source in self._seen:
            return False
        try:
            decided = decisions(plain_program(source, "routing"))
        except CodeError:
            return False
        if decided is None or not any(decided):
            return False
        return not (strict and decided in self._seen)

    def _told(self, tree: Node, island: int, name: str, parent: str | None, how: tuple[str, ...]) -> Bundle:
        source = source_of(tree)
        self._seen[source] = None
        decided = decisions(plain_program(source, "routing"))
        if decided is not None:
            self._seen[decided] = None
        self.asked.append(Child(tree, island))
        policies = {**self.beside, "routing": {"name": "code", "source": source}}
        return Bundle(name, policies, self.generation, parent, how)


def chosen(population: Sequence[Rule], draw: Random) -> Rule:
    """The best of a few that are drawn."""
    return max([draw.choice(population) for _ in range(TOURNAMENT)], key=lambda rule: rule.worth)


def survivors(population: Sequence[Rule]) -> list[Rule]:
    """The best, and of those that fare exactly alike the shortest alone."""
    best: dict[float, Rule] = {}
    for rule in population:
        known = best.get(rule.primary)
        if known is None or rule.tree.size < known.tree.size:
            best[rule.primary] = rule
    return sorted(best.values(), key=lambda rule: rule.worth, reverse=True)[:CAPACITY]
