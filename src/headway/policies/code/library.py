"""The library functions and operator guards that programs call. Each function charges steps for the elements that it
handles."""

import math
import operator
from collections.abc import Callable
from functools import partial, reduce
from typing import Any, Final, NoReturn

from headway.policies.code import language as lang
from headway.policies.code.rejection import Misuse
from headway.policies.code.state import Belief, Memory, Sent, Terms, frozen
from headway.types import Reject

Items = list[Any]
Take = Callable[[int], None]  # a function that charges a number of steps
SIZED: Final = dict.fromkeys(
    (list, tuple, range, dict, str, lang.Frozen), len
)  # iterable type -> function that returns its length
NESTING: Final = (list, tuple, dict, lang.Frozen)  # types of values whose comparison may recurse
FIELDLESS: Final = (*SIZED, int, float, bool, Sent, Reject)
DIGITS: Final = 13  # significant digits of exp and log, because their last bits differ between machines
VIEWS: Final = ("items", "keys", "values")  # methods of a dict that return views
COPIED: Final = 32  # number of elements that a step copies


def library(
    take: Take, memory: Memory, terms: Terms | None = None, belief: Belief | None = None
) -> dict[str, Callable[..., Any]]:
    """Return the library functions, by the names that they have in a rewritten source."""
    paid, belief, terms = _Paid(take), belief or Belief(), terms or Terms()
    unchanged: tuple[Callable[..., Any], ...] = (abs, any, all, len, float, bool, math.sqrt, exp, log, ratio)
    return {
        **{f"_plain_{function.__name__}": function for function in (min, max)},
        **{f"_each_{function.__name__}": function for function in (enumerate, zip)},
        **{f"_each_{name}": _view(name) for name in VIEWS},
        **{f"_{name}": partial(paid.entries, name) for name in VIEWS},
        **{f"_{name}": getattr(paid, name) for name in _METHODS},
        **{f"_{function.__name__}": function for function in unchanged},
        **{f"_{name}": partial(_over_window, name) for name in WINDOWS},
        "_int": whole,
        "_round": round_number,
        "_range": span,
        "_mul": multiply,
        "_mod": remainder,
        "_sub": subtract,
        "_field": field,
        "_recall": memory.recall,
        "_remembered": memory.values.get,
        "_remember": memory.remember,
        "_score_term": terms.note,
        "_filtered_out": terms.leave_out,
        "_estimated_ttft": estimated_ttft,
        "_tier_utilization": tier_utilization,
        "_cached_within": belief.within,
        "_believed_blocks": belief.blocks,
        "_last_access": belief.last_access,
        "_eviction_order": lambda view, count: paid.span(belief.order(view, count)),
        "_frozen": paid.frozen,
        "_attainment": attainment,
        "_send": Sent,
        "_reject": reject,
    }


WINDOWS: Final = ("concurrency", "rate", "output_rate", "rate_over", "throughput_over")


class _Paid:
    """Functions that charge steps for the length of a list before they iterate over it."""

    def __init__(self, take: Take) -> None:
        self.take = take

    def span(self, items: Any) -> Any:
        return self.weigh(items, 1)

    def frozen(self, value: Any) -> Any:
        """Return a mapping or list of a view as a read-only one. Charge steps for a list, which is copied."""
        if type(value) is list:
            self.take(len(value) // COPIED + 1)
        return frozen(value)

    def flat(self, value: Any, depth: int = 0) -> Any:
        """Charge steps for comparing a value, and return the value. If the value is nested too deeply, raise an
        error."""
        if type(value) is lang.Frozen:
            raise Misuse("a mapping of a view cannot be compared")
        if type(value) in (list, tuple, dict):
            if depth == lang.DEEPEST_VALUE:
                raise Misuse("lists nested deeper than four levels cannot be compared")
            self.take(len(value))
            for item in value.values() if type(value) is dict else value:
                if type(item) in NESTING:
                    self.flat(item, depth + 1)
        return value

    def weigh(self, items: Any, steps: int) -> Any:
        """Charge `steps` for each item, and return the items."""
        if type(items) not in SIZED:
            reject_unsized(items)
        self.take(steps * len(items))
        return items

    def sum(self, items: Any) -> int | float:
        """Add from left to right. The built-in `sum` differs: since Python 3.12 it compensates rounding errors."""
        return _check_bound(reduce(operator.add, self.span(items), 0))

    def min(self, *items: Any, key: Callable[[Any], Any] | None = None, **rest: Any) -> Any:
        return min(self._comparable(items, key), key=self._key(key), **rest)

    def max(self, *items: Any, key: Callable[[Any], Any] | None = None, **rest: Any) -> Any:
        return max(self._comparable(items, key), key=self._key(key), **rest)

    def sorted(self, items: Any, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> Items:
        values = self._comparable((items,), key)
        self.take(len(values) * len(values).bit_length())
        return sorted(values, key=self._key(key), reverse=reverse)

    def _key(self, key: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
        return None if key is None else lambda value: self.flat(key(value))

    def _comparable(self, items: tuple[Any, ...], key: Callable[[Any], Any] | None) -> Any:
        values = self.span(items[0]) if len(items) == 1 else items
        if key is None:
            for value in values:
                if type(value) in NESTING:
                    self.flat(value)
        return values

    def list(self, items: Any) -> Items:
        return list(self.span(items))

    def enumerate(self, items: Any) -> Items:
        return list(enumerate(self.span(items)))

    def zip(self, first: Any, second: Any) -> Items:
        return list(zip(self.span(first), self.span(second), strict=False))

    def scan(self, items: Any) -> Any:
        """Charge steps for searching a container with `in`, and return the container."""
        if type(items) in (dict, lang.Frozen):
            return items
        return self.flat(self.span(items))

    def slice(self, items: Any, low: int | None, high: int | None) -> Any:
        if type(items) not in (list, tuple, str):
            raise Misuse(f"{_describe(items)} cannot be sliced")
        part = items[low:high]
        self.take(len(part))
        return part

    def add(self, left: Any, right: Any) -> Any:
        kind = type(left)
        if kind is str and type(right) is str:
            if len(left) + len(right) > lang.LONGEST_TEXT:
                raise Misuse(f"a string may have at most {lang.LONGEST_TEXT} characters")
        elif kind in (list, tuple) and type(right) is kind:
            self.take(len(left) + len(right))
        elif kind in (list, tuple, str) or type(right) in (list, tuple, str):
            raise Misuse(f"{_describe(left)} and {_describe(right)} cannot be added")
        total = left + right
        return _check_bound(total) if type(total) is int else total

    def extend(self, left: Any, right: Any) -> Any:
        """Do the same as `+=`, which extends a list in place."""
        if type(left) is not list:
            return self.add(left, right)
        if type(right) is not list:
            raise Misuse(f"a list can be extended by a list, not by {_describe(right)}")
        self.take(len(right))
        left += right
        return left

    def append(self, items: Any, value: Any) -> None:
        if type(items) is not list:
            raise Misuse(f"append works only on a list that the policy made, not on {_describe(items)}")
        self.take(1)
        items.append(value)

    def key(self, value: Any) -> str | int:
        self.take(lang.STORE)
        return key(value)

    def put(self, value: Any, items: Any, place: Any) -> None:
        if type(items) is dict:
            self.take(lang.STORE)
            items[key(place)] = value
        elif type(items) is list:
            self.take(1)
            items[place] = value
        else:
            raise Misuse(f"only a list or dict that the policy made can be changed, not {_describe(items)}")

    def get(self, items: Any, place: Any, otherwise: Any) -> Any:
        return _dict(items).get(key(place), otherwise)

    def entries(self, view: str, items: Any) -> Items:
        """Return the items, keys or values of a dict as a list."""
        self.take(len(_dict(items)))
        return list(getattr(items, view)())


_METHODS: Final = (
    *("flat", "weigh", "sum", "min", "max", "sorted", "list", "enumerate", "zip", "scan", "slice"),
    *("add", "extend", "append", "key", "put", "get"),
)


def reject_unsized(items: object) -> NoReturn:
    raise Misuse(f"{_describe(items)} is not iterable")


def exp(value: float) -> float:
    return float(f"{math.exp(value):.{DIGITS}g}")


def log(value: float) -> float:
    return float(f"{math.log(value):.{DIGITS}g}")


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def whole(value: Any) -> int:
    if type(value) not in (int, float, bool):
        raise Misuse(f"int takes a number, not {_describe(value)}")
    return int(_check_bound(int(value)))


def round_number(value: Any, digits: int | None = None) -> int | float:
    if type(value) not in (int, float, bool):
        raise Misuse(f"round takes a number, not {_describe(value)}")
    if digits is not None and not (type(digits) is int and -400 < digits < 400):
        raise Misuse("round takes a whole number of digits")
    return _check_bound(round(value, digits) if digits is not None else round(value))


def span(*bounds: int) -> range:
    if len(bounds) == 1 and type(bounds[0]) is int and -1 < bounds[0] < 2**31:
        return range(bounds[0])
    if any(type(bound) not in (int, bool) or not -(2**31) < bound < 2**31 for bound in bounds):
        raise Misuse("range takes whole numbers below 2**31")
    return range(*bounds)


def multiply(left: Any, right: Any) -> int | float:
    if type(left) not in (int, float, bool) or type(right) not in (int, float, bool):
        raise Misuse(f"{_describe(left)} and {_describe(right)} cannot be multiplied")
    if type(left) is int and type(right) is int and left.bit_length() + right.bit_length() > 128:
        raise Misuse("an integer grew beyond 2**63; use floats")
    return _check_bound(left * right)


def remainder(left: Any, right: Any) -> int | float:
    if type(left) not in (int, float, bool):
        raise Misuse(f"% takes numbers, not {_describe(left)}")
    return left % right  # type: ignore[no-any-return]


def subtract(left: Any, right: Any) -> int | float:
    return _check_bound(left - right)


def field(value: Any, name: str) -> Any:
    """Return a field of a value. Lists, strings and numbers have no fields."""
    if type(value) in FIELDLESS:
        raise Misuse(f"{_describe(value)} has no fields")
    return getattr(value, name)


def key(value: Any) -> str | int:
    if type(value) is str or (type(value) in (int, bool) and -(2**53) <= value <= 2**53):
        return value  # type: ignore[no-any-return]
    raise Misuse(f"a key must be a string or a whole number up to 2**53, not {_describe(value)}")


def reject(reason: Any) -> Reject:
    if type(reason) is not str:
        raise Misuse(f"reject takes a reason in words, not {_describe(reason)}")
    return Reject(reason)


def tier_utilization(view: Any, tier: Any) -> float:
    if type(tier) is not str:
        raise Misuse("tier_utilization takes an instance and the name of a tier")
    return view.tier_utilization(tier)  # type: ignore[no-any-return]


def estimated_ttft(view: Any, tokens: Any) -> float:
    if tokens.__class__ is int and -1 < tokens < 2**53:
        return view.estimated_ttft(tokens)  # type: ignore[no-any-return]
    if type(tokens) is not float or not 0 <= tokens < 2**53:
        raise Misuse("estimated_ttft takes an instance and a number of tokens")
    return view.estimated_ttft(int(tokens))  # type: ignore[no-any-return]


def attainment(pool: Any) -> float | None:
    """Return the lowest SLO attainment of all classes. If no class has an attainment, return None."""
    shares: dict[str, float] = pool.attainment
    return min(shares.values(), default=None)


def _over_window(name: str, pool: Any, seconds: Any) -> Any:
    if type(seconds) not in (int, float) or not abs(seconds) <= lang.LARGEST:
        raise Misuse("a window must be a number of seconds")
    if type(pool) in FIELDLESS or not hasattr(pool, name):
        raise Misuse(f"{_describe(pool)} has no {name}")
    return getattr(pool, name)(float(seconds))


def _view(name: str) -> Callable[[Any], Any]:
    return lambda items: getattr(_dict(items), name)()


def _dict(items: Any) -> Any:
    if type(items) not in (dict, lang.Frozen):
        raise Misuse(f"get, items, keys and values need a dict, not {_describe(items)}")
    return items


def _check_bound(value: int | float) -> int | float:
    if type(value) is int and not -lang.LARGEST < value < lang.LARGEST:
        raise Misuse("an integer grew beyond 2**63; use floats")
    return value


def _describe(value: object) -> str:
    if value is None:
        return "None"
    word = {"InstanceView": "instance", "str": "string", "int": "number", "float": "number"}
    name = word.get(type(value).__name__, type(value).__name__.lower())
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
