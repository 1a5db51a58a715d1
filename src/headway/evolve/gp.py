"""Genetic programming: populations of rules on islands. Each island breeds separately, and the islands exchange their
best rules. From the third generation on, a part of each batch tunes the constants of one of the two best
rules that read different features, in turn.

Half of the islands prefer formulas, and the other half prefer decision trees. Selection uses the primary fitness minus
a penalty for every node, so that the shorter of two equally good rules survives.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

from msgspec import Struct

from headway.config.wording import join_words
from headway.errors import HeadwayError, argument, worded
from headway.evolve.breeding import Breeder
from headway.evolve.evaluation import Evaluation
from headway.evolve.evolution import Plan
from headway.evolve.expression import FEATURES, NUMBER, STAGES, Node, walk
from headway.evolve.known_rules import RULES
from headway.evolve.objectives import PRIMARY
from headway.evolve.polishing import Polisher
from headway.evolve.rule_text import policy_of, source_of
from headway.evolve.situations import decisions
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle
from headway.policies.code import CodeError, plain_program
from headway.streams import stream
from headway.types import Json

BATCH: Final = 20
ISLANDS: Final = 4
CAPACITY: Final = 12  # maximum number of rules on an island
MIGRATION: Final = 3  # number of generations between two exchanges of rules
PARSIMONY: Final = 0.0005  # penalty for each node of a rule, subtracted from the primary fitness
CROSSING: Final = 0.35  # probability that a child has two parents
TOURNAMENT: Final = 3
TRIES: Final = 30
POLISHED: Final = 0.3  # share of a batch that tunes constants
TUNED: Final = 2  # number of rules whose constants are tuned in turn
BRANCHING: Final = (0.1, 0.4)  # probability of a condition on islands of formulas, and on islands of decision trees


class Rule(Struct, frozen=True):
    """An evaluated rule."""

    tree: Node
    bundle: str  # id of the rule's bundle
    primary: float

    @property
    def features(self) -> frozenset[str]:
        return frozenset(node.name for _, node in walk(self.tree) if node.name in FEATURES)

    @property
    def worth(self) -> float:
        return self.primary - PARSIMONY * self.tree.size


class Polishing(Struct):
    """The rule whose constants are being tuned: its island, the id of its bundle, and the ids of all bundles that
    differ from it only in constants."""

    polisher: Polisher
    island: int
    parent: str
    bundles: set[str]
    asked: int = 0

    def tell(self, rules: Sequence[Rule]) -> None:
        self.polisher.tell([rule.primary for rule in rules])


class Islands:
    """A `Searcher` that breeds rules on islands. Each child has its own random stream."""

    def __init__(self, suite: Suite, seed: int, stage: str = "routing") -> None:
        self.seed, self.stage, self.rules = seed, stage, RULES[stage]
        self.beside = {each: spec for each, spec in suite.baseline.items() if each != stage}
        self.populations: list[list[Rule]] = [[] for _ in range(ISLANDS)]
        self.generation = 0
        self.children: list[tuple[Node, int]] = []  # proposed rules, each with its island; -1 means all islands
        self._proposed: set[bytes | str] = set()  # sources and decisions of all rules proposed so far
        self.polishing: Polishing | None = None
        self._tuned: dict[frozenset[str], Polishing] = {}  # by the features of the rule

    def ask(self, count: int) -> list[Bundle]:
        self.children, bundles = [], []
        if self.generation == 0:
            bundles += [self._propose(tree, -1, name, None, ()) for name, tree in list(self.rules.items())[:count]]
        bred = count - (int(count * POLISHED) if self.polishing else 0)
        while len(bundles) < bred:
            island = len(bundles) * len(self.populations) // bred if self.generation else -1
            bundles.append(self._propose_child(island, len(bundles)))
        return bundles + self._propose_constants(count - bred, bred)

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        rules = [
            (Rule(tree, bundle.id, evaluation.fitness[PRIMARY]), island)
            for (tree, island), (bundle, evaluation) in zip(self.children, judged, strict=True)
        ]
        if self.polishing:
            bred = len(rules) - self.polishing.asked
            if polished := [rule for rule, _ in rules[bred:]]:
                self.polishing.tell(polished)
                best = max(polished, key=lambda rule: rule.worth)  # the others would crowd out other rules
                rules[bred:] = [(best, self.polishing.island)]
        for rule, island in rules:
            for place in range(len(self.populations)) if island < 0 else (island,):
                self.populations[place].append(rule)
        self.generation += 1
        if self.generation % MIGRATION == 0:
            self._migrate()
        self.populations = [survivors(population) for population in self.populations]
        self.polishing = self._choose_polished() if self.generation > 1 else None

    def _choose_polished(self) -> Polishing | None:
        """Return the rule whose constants the next batch tunes. Rules with the same features share a place, so that the
        best rule is not the only one that has good constants. If another rule with these features became the best, or
        its constants are found, start anew from the best."""
        rules = [(rule, place) for place, population in enumerate(self.populations) for rule in population]
        best: dict[frozenset[str], tuple[Rule, int]] = {}
        for rule, place in sorted(rules, key=lambda each: -each[0].worth):
            best.setdefault(rule.features, (rule, place))
        chosen = list(best)[: self.generation % TUNED + 1][-1]
        rule, place = best[chosen]
        known = self._tuned.get(chosen)
        if known is None or known.polisher.done or rule.bundle not in known.bundles:
            known = self._tuned[chosen] = Polishing(Polisher(rule.tree), place, rule.bundle, {rule.bundle})
        return known if known.polisher.size else None

    def _propose_constants(self, count: int, first: int) -> list[Bundle]:
        current = self.polishing
        if current is None:
            return []
        current.asked = count
        trees = current.polisher.ask(count, stream(self.seed, f"evolve.gp.polish.{self.generation}"))
        how = ("constants tuned",)
        names = [f"rule {self.generation}.{first + place}" for place in range(count)]
        bundles = [
            self._propose(tree, current.island, name, current.parent, how)
            for tree, name in zip(trees, names, strict=True)
        ]
        current.bundles |= {bundle.id for bundle in bundles}
        return bundles

    def _migrate(self) -> None:
        """Copy the best rule of each island to the next island."""
        best = [max(population, key=lambda rule: rule.worth) for population in self.populations]
        for place, rule in enumerate(best):
            self.populations[(place + 1) % len(best)].append(rule)

    def _propose_child(self, island: int, number: int) -> Bundle:
        """Propose a rule that makes other decisions than every earlier rule. If no such rule is found, propose one with
        a different source."""
        draw = stream(self.seed, f"evolve.gp.{self.generation}.{number}")
        branching = BRANCHING[max(island, 0) % 2] if island >= 0 else BRANCHING[number % 2]
        breeder = Breeder(draw, branching, self.stage)
        for left in reversed(range(TRIES)):
            tree, parent, how = self._draw_child(breeder, island)
            if self._is_new(tree, strict=left > TRIES // 3) or not left:
                break
        name = f"rule {self.generation}.{number}"
        return self._propose(tree, island, name, parent, (how,))

    def _draw_child(self, breeder: Breeder, island: int) -> tuple[Node, str | None, str]:
        if island < 0:
            if breeder.draw.random() < 0.3:
                return breeder.grow(NUMBER, 4), None, "grown at random"
            tree, what = breeder.mutate(breeder.draw.choice(list(self.rules.values())))
            return tree, None, f"known rule: {what}"
        population = self.populations[island]
        parent = choose(population, breeder.draw)
        if breeder.draw.random() < CROSSING:
            other = choose(population, breeder.draw)
            return breeder.cross(parent.tree, other.tree), parent.bundle, f"crossed with {other.bundle}"
        tree, what = breeder.mutate(parent.tree)
        if breeder.draw.random() < 0.3:
            tree, more = breeder.mutate(tree)
            what = f"{what}, {more}"
        return tree, parent.bundle, what

    def _is_new(self, tree: Node, strict: bool) -> bool:
        source = source_of(tree, self.stage)
        if source in self._proposed:
            return False
        try:
            decided = decisions(plain_program(source, self.stage))
        except CodeError:
            return False
        if decided is None or not any(decided):
            return False
        return not (strict and decided in self._proposed)

    def _propose(self, tree: Node, island: int, name: str, parent: str | None, how: tuple[str, ...]) -> Bundle:
        source = source_of(tree, self.stage)
        self._proposed.add(source)
        decided = decisions(plain_program(source, self.stage))
        if decided is not None:
            self._proposed.add(decided)
        self.children.append((tree, island))
        policies = {**self.beside, self.stage: policy_of(tree, self.stage)}
        return Bundle(name, policies, self.generation, parent, how)


def searcher(plan: Plan, suite: Suite) -> Islands:
    if plan.template is not None:
        raise HeadwayError(f"{argument('template')}: genetic programming has its own first rules. Remove the template.")
    if len(plan.stages) != 1 or plan.stages[0] not in STAGES:
        other = worded("--engine numeric", 'the engine "numeric"')
        known = join_words(STAGES, "or")
        raise HeadwayError(f"{argument('stages', '--stage')}: genetic programming supports {known}. Use {other}.")
    return Islands(suite, plan.seed, plan.stages[0])


def describe(plan: Plan, suite: Suite) -> Json:
    return {} if plan.stages == ("routing",) else {"stages": list(plan.stages)}


def choose(population: Sequence[Rule], draw: Random) -> Rule:
    """Return the best of `TOURNAMENT` rules that are drawn at random."""
    return max([draw.choice(population) for _ in range(TOURNAMENT)], key=lambda rule: rule.worth)


def survivors(population: Sequence[Rule]) -> list[Rule]:
    """Return the best rules. If several rules have the same fitness, keep only the shortest of them."""
    best: dict[float, Rule] = {}
    for rule in population:
        known = best.get(rule.primary)
        if known is None or rule.tree.size < known.tree.size:
            best[rule.primary] = rule
    return sorted(best.values(), key=lambda rule: rule.worth, reverse=True)[:CAPACITY]
