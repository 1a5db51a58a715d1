"""What a policy keeps from decision to decision: explicit, bounded, and plain values alone."""

from __future__ import annotations

from collections import OrderedDict
from math import isfinite
from typing import Any

from headway.policies.code import language as lang
from headway.policies.code.rejection import Misuse


class Memory:
    """Beyond its capacity what was remembered longest ago is forgotten."""

    __slots__ = ("capacity", "values")

    def __init__(self, capacity: int = lang.MEMORY_KEYS) -> None:
        self.capacity = capacity
        self.values: OrderedDict[str | int, Any] = OrderedDict()  # whose first entry is found at once

    def recall(self, key: Any, otherwise: Any) -> Any:
        if type(key) is not str and type(key) is not int:
            raise Misuse("recall takes a text or a whole number as its key")
        return self.values.get(key, otherwise)

    def remember(self, key: Any, value: Any) -> None:
        if (type(key) is not str or len(key) > lang.LONGEST_TEXT) and (type(key) is not int or abs(key) >= 2**63):
            raise Misuse("remember takes a short text or a whole number as its key")
        kind = type(value)
        if not (
            (kind is float and isfinite(value))
            or ((kind is int or kind is bool) and -(2**63) < value < 2**63)
            or (kind is str and len(value) <= lang.LONGEST_TEXT)
        ):
            raise Misuse("remember keeps finite numbers and short texts")
        values = self.values
        values.pop(key, None)
        values[key] = value
        if len(values) > self.capacity:
            values.popitem(last=False)
