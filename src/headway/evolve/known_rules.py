"""The rules with which genetic programming starts, by stage."""

from __future__ import annotations

import ast
from typing import Final

from headway.evolve.expression import BRANCH, Node, call, constant, feature


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
        "linear": "-(pending + 2 * uncached + 0.5 * inflight)",
        "as least-delay": "-(2.2 * wait + work * (1 + 0.44 * inflight) + 0.011 * decoding)",
        "seconds": "-(wait + work * (1 + 0.5 * inflight))",
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
