"""Rules that are known to work, as trees: where genetic programming starts from. `cached` counts blocks of 16 tokens,
as not every built-in policy does that a rule is called after."""

from __future__ import annotations

from typing import Final

from headway.evolve.expression import BRANCH, Node, call, constant, feature


def _sum(*terms: Node) -> Node:
    found = terms[0]
    for term in terms[1:]:
        found = call("add", found, term)
    return found


def _times(*factors: Node) -> Node:
    found = factors[0]
    for factor in factors[1:]:
        found = call("multiply", found, factor)
    return found


def _spare() -> Node:
    """The scorer load-balance: 1 / (1 + requests in flight)."""
    return call("ratio", constant(1), _plus(1, "inflight"))


def _plus(value: float, name: str) -> Node:
    return call("add", constant(value), feature(name))


def _work() -> Node:
    """Prefill tokens waiting, with this request's."""
    return call("add", feature("pending"), feature("uncached"))


def _published() -> Node:
    """The rule that OpenEvolve found for BLIS: the weight of the cache shrinks with the requests that the warmest
    instance has above the idlest; full caches are charged; equals are told apart by the requests in flight."""
    weight = call("ratio", constant(1), call("add", constant(1), _times(constant(0.6), feature("crowded"))))
    full = call(BRANCH, call("less", constant(0.9), feature("kv")), constant(-0.5), constant(0))
    return _sum(_times(weight, feature("cached")), _spare(), full, _times(constant(-0.001), feature("inflight")))


RULES: Final[dict[str, Node]] = {
    "as 1:1": _sum(feature("cached"), _spare()),
    "as lmetric": call("negate", _times(_work(), feature("inflight"))),
    "as lmetric-plus-one": call("negate", _times(_work(), _plus(1, "inflight"))),
    "as published": _published(),
    "as least-loaded": call("negate", feature("inflight")),
    "least work": call("negate", _work()),
    "as 3:2:2": _sum(
        _times(constant(3), feature("cached")),
        _times(constant(2), feature("idle")),
        _times(constant(-2), feature("kv")),
    ),
    "warm or least work": call(
        BRANCH,
        call("less", feature("crowded"), constant(4)),
        call("subtract", feature("cached"), _times(constant(0.01), feature("inflight"))),
        call("negate", _times(_work(), _plus(1, "inflight"))),
    ),
}
