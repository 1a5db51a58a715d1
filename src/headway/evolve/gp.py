"""Genetic programming: populations of rules on islands. Each island breeds separately, and the islands exchange their
best rules.

Half of the islands prefer formulas, and the other half prefer decision trees. Selection uses the primary fitness minus
a penalty for every node, so that the shorter of two equally good rules survives.
"""

import ast
from collections.abc import Sequence
from functools import cache
from random import Random
from types import SimpleNamespace
from typing import Final

from msgspec import Struct

from headway.config.wording import join_words
from headway.errors import HeadwayError, argument, worded
from headway.evolve.breeding import Breeder
from headway.evolve.evaluation import Evaluation
from headway.evolve.evolution import Plan
from headway.evolve.expression import BRANCH, NUMBER, STAGES, Node, call, constant, feature
from headway.evolve.objectives import PRIMARY
from headway.evolve.rule_text import source_of
from headway.evolve.suite import Suite
from headway.policies.bundle import Bundle
from headway.policies.code import CodeError, Program, plain_program
from headway.policies.code.language import STEPS
from headway.policies.code.stages import FAILURES
from headway.streams import stream
from headway.types import Json


def _tree(expression: ast.expr) -> Node:
    """Return the tree of a Python expression that consists of features, constants and operators."""
    match expression:
        case ast.Name(name):
            return feature(name)
        case ast.Constant(int() | float() as value):
            return constant(value)
        case ast.UnaryOp(ast.USub(), operand):
            return call("negate", _tree(operand))
        case ast.BinOp(left, operator, right):
            return call(BINARY[type(operator)], _tree(left), _tree(right))
        case ast.Compare(left, [ast.Lt()], [right]):
            return call("less", _tree(left), _tree(right))
        case ast.IfExp(condition, chosen, other):
            return call(BRANCH, _tree(condition), _tree(chosen), _tree(other))
    raise AssertionError(ast.dump(expression))


BINARY: Final[dict[type[ast.operator], str]] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "ratio",
}
# The rules with which a search starts. `as NAME` is the rule of a built-in policy. The policy itself may use another
# block size: rules count cached tokens in blocks of 16. `as published` is a rule that OpenEvolve found for BLIS.
TEXTS: Final = {
    "routing": {
        "as 1:1": "cached + 1 / (1 + inflight)",
        "as lmetric": "-((pending + uncached) * inflight)",
        "as lmetric-plus-one": "-((pending + uncached) * (1 + inflight))",
        "as published": "1 / (1 + 0.6 * crowded) * cached + 1 / (1 + inflight)"
        " + (-0.5 if 0.9 < kv else 0) + -0.001 * inflight",
        "as least-loaded": "-inflight",
        "least work": "-(pending + uncached)",
        "as 3:2:2": "3 * cached + 2 * idle + -2 * kv",
        "warm or least work": "cached - 0.01 * inflight if crowded < 4 else -((pending + uncached) * (1 + inflight))",
    },
    "decider": {
        "always": "1",
        "never": "-1",
        "as uncached-threshold": "uncached - 0.256",
        "the sooner first token": "own_wait - prefill_wait",
        "the shorter queue": "uncached + pending - prefill_pending",
    },
    "estimator": {
        "as constant": "0.256",
        "as ratio": "1.5 * prompt",
        "the mean of the class": "class_mean",
        "the mean of the tenant": "tenant_mean",
    },
}
RULES: Final = {
    stage: {name: _tree(ast.parse(text, mode="eval").body) for name, text in texts.items()}
    for stage, texts in TEXTS.items()
}


# Two rules are compared without a simulation: by their decisions in random situations.

SITUATIONS: Final = 200
KV_BLOCKS: Final = 4096
SLOTS: Final = 128


class Situation(Struct, frozen=True):
    request: SimpleNamespace
    instances: tuple[SimpleNamespace, ...]
    cached: list[int]  # number of prompt tokens that the router assumes each instance has cached


@cache
def situations() -> tuple[Situation, ...]:
    """Return random requests and instances on which rules are tried without a simulation. They are the same in every
    search."""
    draw = stream(0, "evolve.situations")
    return tuple(_situation(draw) for _ in range(SITUATIONS))


def _situation(draw: Random) -> Situation:
    prompt = int(draw.lognormvariate(7.5, 1.2)) + 16
    prefix = int(prompt * draw.random())
    cached = [prefix // 16 * 16 if draw.random() < 0.5 else 0 for _ in range(draw.choice((2, 4, 4, 8)))]
    crowd = draw.choice((2, 8, 30))
    views = tuple(_instance(draw, index, crowd) for index in range(len(cached)))
    request = SimpleNamespace(
        prompt_tokens=prompt,
        shared_prefix_tokens=prefix,
        max_tokens=None if prompt % 3 else prompt // 2 + 1,
        turn=prompt % 4,
        slo_class="standard",
        tenant="default",
    )
    return Situation(request, views, cached)


def _instance(draw: Random, index: int, crowd: int) -> SimpleNamespace:
    inflight = draw.randrange(crowd + 1)
    queued = draw.randrange(inflight // 2 + 1)
    waiting = draw.randrange(inflight // 2 + 1)
    used = int(KV_BLOCKS * min(1.0, inflight / SLOTS + 0.6 * draw.random()))
    return SimpleNamespace(
        index=index,
        role=("decode", "prefill")[index % 2],
        estimated_ttft=lambda tokens: 1e-5 * (tokens + 500 * waiting),
        inflight=inflight,
        queued=queued,
        effective_load=max(0, inflight + draw.choice((-1, 0, 0, 0, 1))),
        pending_prefill_tokens=int(waiting * draw.lognormvariate(7, 0.8)),
        decode_tokens=int((inflight - waiting) * draw.lognormvariate(7.5, 0.5)),
        kv_utilization=used / KV_BLOCKS,
    )


def decisions(program: Program) -> bytes | None:
    """Return the index of the instance that a rule chooses in each situation: for a decider, whether it splits; for an
    estimator, a number that grows with the estimate. If the rule fails in any situation, return None."""
    running = program.start()
    scores, entrance = program.entrance == "score", running.entrance
    choices = bytearray()
    for situation in situations():
        cluster = SimpleNamespace(instances=situation.instances)
        running.begin(STEPS, situation.cached, None)
        try:
            if program.stage == "decider":
                choices.append(entrance(situation.request, situation.instances[0], cluster))
            elif program.stage == "estimator":
                choices.append(min(255, max(0, int(entrance(situation.request, cluster)) // 8)))
            elif scores:
                values = [entrance(situation.request, view, cluster) for view in situation.instances]
                choices.append(values.index(max(values)))
            else:
                choices.append(entrance(situation.request, situation.instances, cluster).index)
        except FAILURES:
            return None
    return bytes(choices)


BATCH: Final = 20
ISLANDS: Final = 4
CAPACITY: Final = 12  # maximum number of rules on an island
MIGRATION: Final = 3  # number of generations between two exchanges of rules
PARSIMONY: Final = 0.0005  # penalty for each node of a rule, subtracted from the primary fitness
CROSSING: Final = 0.35  # probability that a child has two parents
TOURNAMENT: Final = 3
TRIES: Final = 30
BRANCHING: Final = (0.1, 0.4)  # probability of a condition on islands of formulas, and on islands of decision trees


class Rule(Struct, frozen=True):
    """An evaluated rule."""

    tree: Node
    bundle: str  # id of the rule's bundle
    primary: float

    @property
    def worth(self) -> float:
        return self.primary - PARSIMONY * self.tree.size


class Islands:
    """A `Searcher` that breeds rules on islands. Each child has its own random stream."""

    def __init__(self, suite: Suite, seed: int, stage: str = "routing") -> None:
        self.seed, self.stage, self.rules = seed, stage, RULES[stage]
        self.beside = {each: spec for each, spec in suite.baseline.items() if each != stage}
        self.populations: list[list[Rule]] = [[] for _ in range(ISLANDS)]
        self.generation = 0
        self.children: list[tuple[Node, int]] = []  # proposed rules, each with its island; -1 means all islands
        self._proposed: set[bytes | str] = set()  # sources and decisions of all rules proposed so far

    def ask(self, count: int) -> list[Bundle]:
        self.children, bundles = [], []
        if self.generation == 0:
            bundles += [self._propose(tree, -1, name, None, ()) for name, tree in list(self.rules.items())[:count]]
        while len(bundles) < count:
            island = len(bundles) * len(self.populations) // count if self.generation else -1
            bundles.append(self._propose_child(island, len(bundles)))
        return bundles

    def tell(self, judged: Sequence[tuple[Bundle, Evaluation]]) -> None:
        for (tree, island), (bundle, evaluation) in zip(self.children, judged, strict=True):
            rule = Rule(tree, bundle.id, evaluation.fitness[PRIMARY])
            for place in range(len(self.populations)) if island < 0 else (island,):
                self.populations[place].append(rule)
        self.generation += 1
        if self.generation % MIGRATION == 0:
            self._migrate()
        self.populations = [survivors(population) for population in self.populations]

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
        policies = {**self.beside, self.stage: {"name": "code", "source": source}}
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
