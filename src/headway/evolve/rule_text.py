"""Convert a rule to source code in the policy language."""

from textwrap import wrap
from typing import Final

from headway.evolve.expression import BRANCH, CONSTANT, FEATURES, OPERATORS, Node, walk
from headway.policies.registry import AUTO
from headway.types import Json

INDENT: Final = "    "
WIDTH: Final = 76  # maximum width of a line without its indentation
LOOSEST, SUM, PRODUCT, CALL = 0, 5, 6, 9  # levels of precedence, as in `Operator.binding`


# The functions of the stages besides routing; `worth` computes the rule.
HEADS: Final = {
    "decider": "def apart(request, instance, cluster):\n    return worth(request, instance, cluster) > 0\n",
    "estimator": "def estimate(request, cluster):\n    return 1000 * worth(request, cluster)\n",
}
LEARNING: Final = ("mean", "class_mean", "tenant_mean")  # features that learn from answers
LEARNED: Final = """

def finished(request, instance, tokens, outcome):
    if outcome == "completed":
        for name in ("all", "class " + request.slo_class[:100], "tenant " + request.tenant[:100]):
            mean = recall(name, tokens)
            remember(name, mean + 0.05 * (tokens - mean))
"""


def policy_of(rule: Node, stage: str = "routing") -> Json:
    """Return the policy of a rule. A rule that reads cached tokens reads the right belief: an index as large as the KV
    cache of an instance."""
    source = source_of(rule, stage)
    belief = {"lru_blocks": AUTO} if "cached_tokens(" in source else {}
    return {"name": "code", "source": source, **belief}


def source_of(rule: Node, stage: str = "routing") -> str:
    """Return the source of a rule. A decider splits a request if the rule's value is positive, and an estimator expects
    the value in thousands of tokens."""
    if stage == "routing":
        return _routing(rule)
    used = {node.name for _, node in walk(rule)}
    named = [name for name in FEATURES if name in used and not _plain(name)]
    arguments = "request, instance, cluster" if stage == "decider" else "request, cluster"
    worth = _function(f"worth({arguments})", [*_values(named), *_returns(rule)])
    return f"{HEADS[stage]}\n\n{worth}{LEARNED if used & set(LEARNING) else ''}"


def _routing(rule: Node) -> str:
    """Return the source of a rule as a `score` function. If the rule uses shared features, return a `route` function
    instead, because it computes them only once per request."""
    used = {node.name for _, node in walk(rule)}
    shared = _shared_features(used)
    named = [name for name, feature in FEATURES.items() if name in used and not feature.shared and not _plain(name)]
    body = [*_values(named), *_returns(rule)]
    if not shared:
        return _function("score(request, instance, cluster)", body)
    handed = [name for name in shared if name in used or any(name in FEATURES[feature].needs for feature in named)]
    best = f"max(instances, key=lambda one: worth({', '.join(('request', 'one', *handed))}))"
    route = _function("route(request, instances, cluster)", [*_values(shared), *_lines("return", best)])
    return route + "\n\n" + _function(f"worth({', '.join(('request', 'instance', *handed))})", body)


def _shared_features(used: set[str]) -> list[str]:
    """Return the names of the shared features that a rule needs. Each feature comes after the features that it uses."""
    needed = {name for name in used if name in FEATURES and FEATURES[name].shared}
    needed |= {need for name in used if name in FEATURES for need in FEATURES[name].needs}
    needed |= {need for name in needed for need in FEATURES[name].needs}
    return [name for name, feature in FEATURES.items() if feature.shared and name in needed]


def _plain(name: str) -> bool:
    """Return whether a feature is so simple that it is written inline, not on its own line."""
    return FEATURES[name].text.replace(".", "").replace("_", "").isalpha()


def _function(head: str, lines: list[str]) -> str:
    return "\n".join([f"def {head}:", *(INDENT + line for line in lines)]) + "\n"


def _returns(node: Node) -> list[str]:
    """Return the lines that return the value of a rule. Branches at the top of the tree become `if` statements."""
    if node.name != BRANCH:
        return _lines("return", text_of(node))
    condition, chosen, other = node.arguments
    head = _lines("if", text_of(condition), ":")
    return [*head, *(INDENT + line for line in _returns(chosen)), *_returns(other)]


def _values(names: list[str]) -> list[str]:
    return [line for name in names for line in _lines(f"{name} =", FEATURES[name].text)]


def _lines(head: str, text: str, tail: str = "") -> list[str]:
    """Return the lines of a statement. If it is too long for one line, wrap it in parentheses."""
    if len(head) + len(text) + len(tail) < WIDTH:
        return [f"{head} {text}{tail}"]
    parts = wrap(text, WIDTH - len(INDENT), break_long_words=False, break_on_hyphens=False)
    return [f"{head} (", *(INDENT + part for part in parts), f"){tail}"]


def text_of(node: Node, outer: int = LOOSEST) -> str:
    """Return a node as an expression. If the outer operator binds more tightly, put the expression in parentheses."""
    if node.name == CONSTANT:
        return f"({node.value!r})" if node.value < 0 and outer > PRODUCT else repr(node.value)
    if node.name in FEATURES:
        return FEATURES[node.name].text if _plain(node.name) else node.name
    if node.name == "add":
        text, binding = _sum(*node.arguments), SUM
    else:
        operator = OPERATORS[node.name]
        binding = operator.binding
        texts = []
        for place, argument in enumerate(node.arguments):  # a - (b - c) needs parentheses, (a - b) - c does not
            texts.append(text_of(argument, LOOSEST if binding == CALL else binding + (place > 0 or binding == LOOSEST)))
        text = operator.form.format(*texts)
    return f"({text})" if binding < outer else text


def _sum(term: Node, other: Node) -> str:
    """Return a sum as an expression. The constant is last, and a minus sign precedes a negative term."""
    first, second = (other, term) if term.name == CONSTANT or _negative(term) else (term, other)
    if not _negative(second):
        return f"{text_of(first, SUM)} + {text_of(second, SUM)}"
    if second.name == CONSTANT:
        return f"{text_of(first, SUM)} - {-second.value!r}"
    factor, rest = second.arguments
    factor = Node(CONSTANT, (), -factor.value)
    return f"{text_of(first, SUM)} - {text_of(Node('multiply', (factor, rest)), PRODUCT)}"


def _negative(node: Node) -> bool:
    factor = node.arguments[0] if node.name == "multiply" else node
    return factor.name == CONSTANT and factor.value < 0
