"""Rules as trees of typed primitives. Genetic programming breeds the trees, and the policy language runs them.

A tree computes the score of an instance for a request; the instance with the highest score wins. The leaves of a tree
are constants and features. Features are scaled so that their values are comparable. A condition chooses between two
trees.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from msgspec import Struct

from headway.views.instance import SIGNALS
from headway.views.signals import Kind

NUMBER, CONDITION = "number", "condition"
# Kinds of leaf nodes. CONSTANT has a fixed number. TRUTH has True or False; simplification removes such leaves.
CONSTANT, TRUTH = "constant", "truth"
BRANCH: Final = "if"
DIGITS: Final = 3  # significant digits of a constant
Path = tuple[int, ...]  # path from the root to a subtree: the index of the argument at each level


class Feature(Struct, frozen=True):
    """An input of a rule. `text` is the feature as an expression of the policy language."""

    text: str
    shared: bool = False  # whether the value is the same for all candidates, so that it is computed once per request
    needs: tuple[str, ...] = ()  # names of the shared features that `text` uses
    stages: tuple[str, ...] = ("routing",)  # the stages whose rules may use the feature
    common: bool = True  # False: a signal that no one has chosen by hand, drawn less often


BOTH: Final = ("routing", "decider")  # stages whose rules look at an instance
NAMED: Final = {
    # features of the instance; tokens count in thousands, so that all features have a similar range
    "cached": Feature("ratio(cached_tokens(instance), request.prompt_tokens)", stages=BOTH),
    "uncached": Feature("(request.prompt_tokens - cached_tokens(instance)) / 1000", stages=BOTH),
    "pending": Feature("instance.pending_prefill_tokens / 1000", stages=BOTH),
    "decoding": Feature("instance.decode_tokens / 1000", stages=BOTH),
    "inflight": Feature("instance.inflight", stages=BOTH),
    "queued": Feature("instance.queued", stages=BOTH),
    "outstanding": Feature("instance.effective_load", stages=BOTH),
    "kv": Feature("instance.kv_utilization", stages=BOTH),
    # estimated seconds of the instance: its pending prefill, and the prefill that the request would add
    "wait": Feature("instance.estimated_wait", stages=BOTH),
    "work": Feature(
        "estimated_ttft(instance, request.prompt_tokens - cached_tokens(instance)) - instance.estimated_wait",
        stages=BOTH,
    ),
    # features of the instance relative to the other candidates
    "idle": Feature("ratio(most - instance.inflight, most - least)", needs=("most", "least")),
    "excess": Feature("instance.inflight - least", needs=("least",)),
    "backlog": Feature("(instance.pending_prefill_tokens - shortest) / 1000", needs=("shortest",)),
    # features of the request, and of all candidates together
    "prompt": Feature("request.prompt_tokens / 1000", stages=(*BOTH, "estimator")),
    "most": Feature("max(one.inflight for one in instances)", shared=True),
    "least": Feature("min(one.inflight for one in instances)", shared=True),
    "shortest": Feature("min(one.pending_prefill_tokens for one in instances)", shared=True),
    "warmest": Feature("ratio(max(cached_tokens(one) for one in instances), request.prompt_tokens)", shared=True),
    "crowded": Feature(
        "max(instances, key=lambda one: cached_tokens(one)).inflight - least", shared=True, needs=("least",)
    ),
    "average": Feature("ratio(sum(one.inflight for one in instances), len(instances))", shared=True),
    # features of the prefill side, for deciders; waits are in seconds
    "prefill_pending": Feature(
        "min([one.pending_prefill_tokens for one in cluster.instances if one.role == 'prefill'], default=0) / 1000",
        stages=("decider",),
    ),
    "prefill_inflight": Feature(
        "min([one.inflight for one in cluster.instances if one.role == 'prefill'], default=0)", stages=("decider",)
    ),
    "prefill_wait": Feature(
        "min([estimated_ttft(one, request.prompt_tokens) for one in cluster.instances if one.role == 'prefill'],"
        " default=0)",
        stages=("decider",),
    ),
    "own_wait": Feature(
        "estimated_ttft(instance, request.prompt_tokens - cached_tokens(instance))", stages=("decider",)
    ),
    # features of the request and of earlier answers, for estimators; answers count in thousands of tokens
    "limit": Feature("(request.max_tokens or 0) / 1000", stages=("estimator",)),
    "turn": Feature("request.turn", stages=("estimator",)),
    "mean": Feature("recall('all', 256) / 1000", stages=("estimator",)),
    "class_mean": Feature(
        "recall('class ' + request.slo_class[:100], recall('all', 256)) / 1000", stages=("estimator",)
    ),
    "tenant_mean": Feature(
        "recall('tenant ' + request.tenant[:100], recall('all', 256)) / 1000", stages=("estimator",)
    ),
}
# The number by which the values of a signal are divided, so that all features have a similar range.
SCALES: Final[dict[Kind, int]] = {"tokens": 1000, "blocks": 1000, "rate": 1000, "power": 100}


def _signal_features() -> dict[str, Feature]:
    """Return a feature for each number among the signals of an instance that is neither static nor ever growing, and
    that no named feature reads directly."""
    texts = [feature.text for feature in NAMED.values()]
    features = {}
    for name, signal in SIGNALS.items():
        known = any(text.removesuffix(" / 1000") == f"instance.{name}" for text in texts)
        number = signal.type in (int, float, float | None)
        if known or not (signal.language and number) or signal.freshness == "static" or signal.grows:
            continue
        text = f"instance.{name}" if signal.type in (int, float) else f"(instance.{name} or 0)"
        scale = SCALES.get(signal.kind)
        features[name] = Feature(f"{text} / {scale}" if scale else text, stages=BOTH, common=False)
    return features


FEATURES: Final = NAMED | _signal_features()
STAGES: Final = ("routing", "decider", "estimator")  # the stages that genetic programming can search


def leaves_of(stage: str, common: bool | None = None) -> tuple[str, ...]:
    """Return the names of the features that rules of a stage may use: all of them, only the common ones, or only the
    others."""
    names = [name for name, feature in FEATURES.items() if stage in feature.stages]
    return tuple(name for name in names if common in (None, FEATURES[name].common))


class Operator(Struct, frozen=True):
    """The operator of an inner node: the type of its value, the types of its arguments, its text and its function."""

    gives: str
    takes: tuple[str, ...]
    form: str
    value: Callable[..., float]
    binding: int = 9  # precedence of the operator; a call has the highest precedence
    commutes: bool = False


_TWO, _BOTH = (NUMBER, NUMBER), (CONDITION, CONDITION)
OPERATORS: Final = {
    "add": Operator(NUMBER, _TWO, "{} + {}", lambda a, b: a + b, 5, True),
    "subtract": Operator(NUMBER, _TWO, "{} - {}", lambda a, b: a - b, 5),
    "multiply": Operator(NUMBER, _TWO, "{} * {}", lambda a, b: a * b, 6, True),
    "ratio": Operator(NUMBER, _TWO, "ratio({}, {})", lambda a, b: a / b if b else 0.0),
    "min": Operator(NUMBER, _TWO, "min({}, {})", min, commutes=True),
    "max": Operator(NUMBER, _TWO, "max({}, {})", max, commutes=True),
    "negate": Operator(NUMBER, (NUMBER,), "-{}", lambda a: -a, 7),
    "root": Operator(NUMBER, (NUMBER,), "sqrt(abs({}))", lambda a: math.sqrt(abs(a))),
    BRANCH: Operator(NUMBER, (CONDITION, NUMBER, NUMBER), "{1} if {0} else {2}", lambda c, a, b: a if c else b, 0),
    "less": Operator(CONDITION, _TWO, "{} < {}", lambda a, b: float(a < b), 4),
    "and": Operator(CONDITION, _BOTH, "{} and {}", lambda a, b: float(a and b), 2, True),
    "or": Operator(CONDITION, _BOTH, "{} or {}", lambda a, b: float(a or b), 1, True),
    "not": Operator(CONDITION, (CONDITION,), "not {}", lambda a: float(not a), 3),
}


class Node(Struct, frozen=True):
    """A tree: a feature, a constant, or an operator with arguments. Create trees with the functions `constant`,
    `feature` and `call`, because they simplify trees."""

    name: str
    arguments: tuple[Node, ...] = ()
    value: float = 0.0

    @property
    def gives(self) -> str:
        operator = OPERATORS.get(self.name)
        return operator.gives if operator is not None else CONDITION if self.name == TRUTH else NUMBER

    @property
    def size(self) -> int:
        return 1 + sum([argument.size for argument in self.arguments])

    @property
    def depth(self) -> int:
        return 1 + max((argument.depth for argument in self.arguments), default=0)

    @property
    def order(self) -> tuple[str, float, tuple[object, ...]]:
        """The sort key of this node among the arguments of a commutative operator. Constants come first."""
        name = "" if self.name == CONSTANT else self.name
        return name, self.value, tuple(argument.order for argument in self.arguments)


ONE: Final = Node(CONSTANT, (), 1.0)


def constant(value: float) -> Node:
    """Return a constant, rounded to `DIGITS` significant digits. If the value is not finite, too large or too small,
    return the constant 0."""
    rounded = float(f"{value:.{DIGITS}g}") if math.isfinite(value) and abs(value) < 1e9 else 0.0
    return Node(CONSTANT, (), 0.0 if abs(rounded) < 1e-6 else rounded)


def feature(name: str) -> Node:
    assert name in FEATURES, name
    return Node(name)


def call(name: str, *arguments: Node) -> Node:
    """Return the tree of an operator with its arguments, simplified: constants are folded, neutral terms are dropped,
    and commuting arguments are sorted."""
    operator = OPERATORS[name]
    assert tuple(argument.gives for argument in arguments) == operator.takes, (name, arguments)
    if all(argument.name in (CONSTANT, TRUTH) for argument in arguments):
        value = operator.value(*(argument.value for argument in arguments))
        return constant(value) if operator.gives == NUMBER else Node(TRUTH, (), value)
    if operator.commutes:
        arguments = tuple(sorted(arguments, key=lambda argument: argument.order))
    simpler = _SIMPLER[name](*arguments) if name in _SIMPLER else None
    return Node(name, arguments) if simpler is None else simpler


def _is(node: Node, value: float) -> bool:
    return node.name in (CONSTANT, TRUTH) and node.value == value


def _sum(*parts: tuple[Node, float]) -> Node:
    """Return a sum that contains each term only once: first added terms, then subtracted terms, then the constant."""
    terms: dict[Node, float] = {}
    for node, sign in parts:
        for term, times in _terms(node, sign):
            terms[term] = terms.get(term, 0.0) + times
    number = constant(terms.pop(ONE, 0.0))
    weights = [(term, constant(terms[term])) for term in sorted(terms, key=lambda term: term.order)]
    plus = [_product(weight, term) for term, weight in weights if weight.value > 0]
    minus = [(term, weight) for term, weight in weights if weight.value < 0]
    if number.value > 0 and not plus:
        plus, number = [number], constant(0)
    if not plus:
        if not minus:
            return number
        plus, minus = [_product(*minus[0][::-1])], minus[1:]
    total = plus[0]
    for term in plus[1:]:
        total = Node("add", (total, term))
    for term, weight in minus:
        total = Node("subtract", (total, _product(constant(-weight.value), term)))
    return Node("add", (number, total)) if number.value else total


def _terms(node: Node, sign: float) -> Iterator[tuple[Node, float]]:
    """Yield each term of a sum with its weight."""
    if node.name == CONSTANT:
        yield ONE, sign * node.value
    elif node.name in ("add", "subtract"):
        yield from _terms(node.arguments[0], sign)
        yield from _terms(node.arguments[1], sign if node.name == "add" else -sign)
    elif node.name == "negate":
        yield from _terms(node.arguments[0], -sign)
    elif node.name == "multiply" and node.arguments[0].name == CONSTANT:
        yield node.arguments[1], sign * node.arguments[0].value
    else:
        yield node, sign


def _product(weight: Node, term: Node) -> Node:
    if abs(weight.value) == 1:
        return term if weight.value > 0 else Node("negate", (term,))
    return Node("multiply", (weight, term))


def _multiply(a: Node, b: Node) -> Node | None:
    if _is(a, 0.0):
        return a
    if _is(a, 1.0):
        return b
    if _is(a, -1.0):
        return call("negate", b)
    if a.name == CONSTANT and b.name == "multiply" and b.arguments[0].name == CONSTANT:
        return call("multiply", constant(a.value * b.arguments[0].value), b.arguments[1])
    if b.name == "negate":
        return call("multiply", constant(-a.value), b.arguments[0]) if a.name == CONSTANT else _outside(a, b)
    return _outside(b, a) if a.name == "negate" else None


def _outside(a: Node, negated: Node) -> Node:
    """Return the product of `a` and a negated node, with the minus sign in front of the product."""
    return call("negate", call("multiply", a, negated.arguments[0]))


def _ratio(a: Node, b: Node) -> Node | None:
    if _is(a, 0.0) or _is(b, 0.0):
        return constant(0.0)
    return call("multiply", constant(1 / b.value), a) if b.name == CONSTANT else None


def _same(a: Node, b: Node) -> Node | None:
    return a if a == b else None


def _branch(condition: Node, a: Node, b: Node) -> Node | None:
    if condition.name == TRUTH:
        return a if condition.value else b
    if condition.name == "not":
        return call(BRANCH, condition.arguments[0], b, a)
    return a if a == b else None


def _both(deciding: float, a: Node, b: Node) -> Node | None:
    """Simplify `and` or `or`. If one side is the truth value `deciding`, that side is the result. If one side is the
    opposite truth value, or both sides are equal, the other side is the result. Otherwise return None."""
    for side, other in ((a, b), (b, a)):
        if side.name == TRUTH:
            return side if bool(side.value) == bool(deciding) else other
    return _same(a, b)


_SIMPLER: Final[dict[str, Callable[..., Node | None]]] = {
    "add": lambda a, b: _sum((a, 1.0), (b, 1.0)),
    "subtract": lambda a, b: _sum((a, 1.0), (b, -1.0)),
    "multiply": _multiply,
    "ratio": _ratio,
    "min": _same,
    "max": _same,
    "negate": lambda a: _sum((a, -1.0)),
    BRANCH: _branch,
    "less": lambda a, b: Node(TRUTH, (), 0.0) if a == b else None,
    "and": partial(_both, 0.0),
    "or": partial(_both, 1.0),
    "not": lambda a: a.arguments[0] if a.name == "not" else None,
}


def walk(node: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield the path and the node of a tree and of all its subtrees, from left to right."""
    yield path, node
    for place, argument in enumerate(node.arguments):
        yield from walk(argument, (*path, place))


def at(node: Node, path: Path) -> Node:
    for place in path:
        node = node.arguments[place]
    return node


def replace_part(node: Node, path: Path, by: Node) -> Node:
    """Return a tree with the subtree at a path replaced by `by`, which has the same type. Simplify every node above the
    subtree."""
    if not path:
        return by
    arguments = list(node.arguments)
    arguments[path[0]] = replace_part(arguments[path[0]], path[1:], by)
    return call(node.name, *arguments)
