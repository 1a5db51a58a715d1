"""How many experts of a mixture a step reads, and how many rows their matmuls compute.

All functions use only + - * /, square roots, and Decimal's `ln` and `exp`, which are correctly rounded. So results are
the same on every machine.
"""

from __future__ import annotations

from decimal import Context
from functools import lru_cache
from math import ceil, sqrt

DIGITS = Context(prec=28)
HALVINGS = 100  # halvings of the interval in which the bisection finds its factor
DOUBLINGS = 10  # the exponential of -x is computed as 1 / (1 + x / 2¹⁰), squared ten times

# By number of GPUs, rounded up to a number of this table: by how many standard deviations the busiest GPU is expected
# to exceed the mean, if the loads of the GPUs are normal and their sum is given. It is the expected maximum of that
# many independent normal values, times the root of n / (n - 1).
BUSIEST = {
    2: 0.7979, 3: 1.0365, 4: 1.1886, 5: 1.3002, 6: 1.3882, 7: 1.4605, 8: 1.5219, 12: 1.7017, 16: 1.8239, 24: 1.9896,
    32: 2.1028, 48: 2.2568, 64: 2.3623, 96: 2.5061, 128: 2.6048, 256: 2.8324,
}  # fmt: skip


@lru_cache(maxsize=1 << 12)
def busiest_gpu(experts: int, visits: int, skew: float, tokens: float, gpus: int) -> tuple[float, float]:
    """Return how many experts the busiest of `gpus` GPUs reads, and how many pairs of a token and an expert it has.
    Each GPU has an equal share of the experts, and a token visits experts on any GPU.

    Tokens choose at random, so the GPUs are loaded unequally in each layer, and all wait for the busiest. Its expected
    load follows from the mean and the variance of a draw without replacement. With skew, popular experts are dealt to
    the GPUs in turn, and the load of the first GPU counts if it is higher.
    """
    read = experts_read(experts, visits, skew, tokens)
    rows = tokens * visits
    own, beyond = experts / gpus, next((BUSIEST[count] for count in BUSIEST if count >= gpus), BUSIEST[256])
    spread = (experts - own) / (experts - 1)
    share = read / experts
    busy_read = read / gpus + beyond * sqrt(own * share * (1.0 - share) * spread)
    busy_rows = rows / gpus + beyond * sqrt(rows / gpus * spread * (experts - visits) / experts)
    if skew:
        shares = visit_shares(experts, visits, skew)[::gpus]
        first_read = first_rows = 0.0
        for share in shares:
            first_read += 1.0 - _power(1.0 - share, ceil(tokens))
            first_rows += share * tokens
        busy_read, busy_rows = max(busy_read, first_read), max(busy_rows, first_rows)
    return min(busy_read, read, float(ceil(own))), min(busy_rows, rows)


@lru_cache(maxsize=1 << 12)
def experts_read(experts: int, visits: int, skew: float, tokens: float) -> float:
    """Return the expected number of experts that at least one token visits. Each token chooses `visits` experts,
    independently of the other tokens.

    Without skew, all experts are equally likely, and the number is E·(1 - (1 - visits / E)^tokens). With skew s, the
    expert of rank r is chosen with a probability proportional to 1 / r^s, without replacement.
    """
    if not skew:
        return experts * (1.0 - _power(1.0 - visits / experts, ceil(tokens)))
    missed = 0.0
    for share in visit_shares(experts, visits, skew):
        missed += _power(1.0 - share, ceil(tokens))
    return experts - missed


@lru_cache(maxsize=64)
def visit_shares(experts: int, visits: int, skew: float) -> tuple[float, ...]:
    """Return, for each expert, the share of the tokens that visit it. The shares sum to `visits`.

    In a draw without replacement with weights w, the share of an expert is close to 1 - exp(-f·w). The factor f is the
    one with which the shares sum to `visits`.
    """
    if visits >= experts:
        return (1.0,) * experts
    exponent = DIGITS.create_decimal_from_float(-skew)
    weights = [float(DIGITS.exp(DIGITS.multiply(exponent, DIGITS.ln(rank)))) for rank in range(1, experts + 1)]
    low, high = 0.0, 1.0
    while _sum_of_shares(weights, high) < visits:
        low, high = high, high * 2.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2.0
        if _sum_of_shares(weights, middle) < visits:
            low = middle
        else:
            high = middle
    return tuple(_share(weight * low) for weight in weights)


def padded_rows(rows: float, read: float, most: float, half: float) -> float:
    """Return the rows that the grouped matmul computes for `rows` pairs of a token and an expert. Each of the `read`
    experts computes whole tiles. The padding of an expert is half of `most` if it has `half` rows, and it approaches
    `most` for many rows."""
    return rows + most * rows / (rows / read + half) if rows else 0.0


def _sum_of_shares(weights: list[float], factor: float) -> float:
    total = 0.0
    for weight in weights:
        total += _share(weight * factor)
    return total


def _share(x: float) -> float:
    """Return 1 - exp(-x), with a relative error of exp(-x) below x² / 2048."""
    value = 1.0 / (1.0 + x / (1 << DOUBLINGS))
    for _ in range(DOUBLINGS):
        value *= value
    return 1.0 - value


def _power(base: float, exponent: int) -> float:
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base
        exponent >>= 1
    return result
