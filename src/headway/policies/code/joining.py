"""What kinds come to: of values, when they are kept, and when an operator joins them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from headway.policies.code.language import (
    BIG,
    FLOAT,
    INT,
    MID,
    NONE,
    REPEATED,
    STR,
    TUPLE,
    WHOLE,
)


def joined(kinds: Iterator[int] | list[int] | map[int]) -> int:
    found = 0
    for kind in kinds:
        found |= kind
    return found


def stored(kind: int) -> int:
    """What is kept may be met again by what made it, and so grow from step to step."""
    return kind & ~MID | BIG if kind & MID else kind


def of_value(value: object) -> int:
    if isinstance(value, int):
        return INT
    if isinstance(value, float):
        return FLOAT
    if isinstance(value, str):
        return STR
    return TUPLE if isinstance(value, tuple) else NONE


def arithmetic(left: int, right: int) -> int:
    numbers = FLOAT if (left | right) & FLOAT else 0
    if left & WHOLE and right & WHOLE:
        numbers |= BIG if (left | right) & BIG else MID
    return numbers


def guarded(op: ast.operator, left: int, right: int) -> bool:
    """Whether an operator could make something without bound of these. What is only ever added to by something small
    grows too slowly to matter; what is added to its like may double."""
    if isinstance(op, ast.Add | ast.Sub) and left & BIG and right & BIG:
        return True
    if isinstance(op, ast.Add):
        return bool(left & REPEATED and right & REPEATED)
    if isinstance(op, ast.Mod):
        return bool(left & STR)
    if isinstance(op, ast.Mult):
        repeats = (left & REPEATED and right & WHOLE) or (right & REPEATED and left & WHOLE)
        grows = (left & BIG and right & WHOLE) or (right & BIG and left & WHOLE)
        return bool(repeats or grows)
    return False
