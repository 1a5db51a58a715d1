"""What a started program keeps: its memory, the terms of its scores, and what the router believes to be cached."""

import math
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from headway.policies.code import language as lang
from headway.policies.code.rejection import Misuse
from headway.policies.prefix_index import PrefixIndex
from headway.policies.prefix_tiers import TIERS
from headway.types import PS_PER_SECOND, Request

MOST_PIECES: Final = 1_000  # maximum length of the part of an eviction order that a program may ask for


class Memory(msgspec.Struct, eq=False):
    """The values that `remember` stores. Beyond the capacity, the oldest value is dropped."""

    capacity: int = lang.MEMORY_KEYS
    values: OrderedDict[str | int, Any] = msgspec.field(default_factory=OrderedDict)  # drops its oldest entry in O(1)

    def recall(self, key: Any, otherwise: Any) -> Any:
        if type(key) is not str and type(key) is not int:
            raise Misuse("recall takes a string or a whole number as its key")
        return self.values.get(key, otherwise)

    def remember(self, key: Any, value: Any) -> None:
        if (type(key) is not str or len(key) > lang.LONGEST_TEXT) and (type(key) is not int or abs(key) >= 2**63):
            raise Misuse("remember takes a short string or a whole number as its key")
        kind = type(value)
        if not (
            (kind is float and math.isfinite(value))
            or ((kind is int or kind is bool) and -(2**63) < value < 2**63)
            or (kind is str and len(value) <= lang.LONGEST_TEXT)
        ):
            raise Misuse("remember takes a finite number or a short string as its value")
        values = self.values
        values.pop(key, None)
        values[key] = value
        if len(values) > self.capacity:
            values.popitem(last=False)


class Terms(msgspec.Struct, eq=False):
    """The terms of the scores of one decision, by the names that `score_term` gives them."""

    place: int = 0  # index of the instance whose score is being computed
    values: dict[str, dict[int, float]] = {}  # name of a term -> index of an instance -> value
    removed: dict[str, list[str]] = {}  # name of a filter -> ids of the instances that it removed

    def note(self, name: str, value: Any, view: Any = None) -> Any:
        """Note a term and return its value. Never raise an error: a policy decides alike with and without notes."""
        if type(value) in (int, float, bool):
            self.values.setdefault(name, {})[getattr(view, "index", self.place)] = value
        return value

    def leave_out(self, name: str, view: Any) -> Any:
        """Note that a filter removed an instance, and return the instance."""
        if hasattr(view, "pending_prefill_tokens") and view.id not in self.removed.setdefault(name, []):
            self.removed[name].append(view.id)
        return view

    def take_removed(self) -> dict[str, list[str]]:
        removed = dict(self.removed)
        self.removed.clear()
        return removed

    def take(self, places: list[int]) -> dict[str, list[float]]:
        """Remove the terms, and return each term's values for the instances with these indexes; NaN where the program
        did not compute it."""
        terms = {name: [noted.get(at, math.nan) for at in places] for name, noted in self.values.items()}
        self.values.clear()
        return terms


class Belief:
    """What a router believes to be cached of the prompt of the current request, for functions of the library."""

    __slots__ = ("_accesses", "_own", "_within", "index", "request", "size")

    def __init__(self) -> None:
        self.index: PrefixIndex | None = None  # None: no function of the program reads it
        self.request: Request | None = None  # None: the program must not ask now
        self.size = 1  # tokens of a block
        self._within: dict[str, list[int]] = {}
        self._accesses: list[int | None] | None = None
        self._own: set[int] | None = None  # the runs of the current prompt

    def look(self, request: Request | None) -> None:
        """Make this request the current one."""
        self.request = request
        if self._within:
            self._within = {}
        self._own = self._accesses = None

    def _known(self, name: str) -> tuple[PrefixIndex, Request]:
        if self.index is None or self.request is None:
            raise Misuse(f"{name} can be called only while the program decides, not when it hears of an event")
        return self.index, self.request

    def within(self, view: Any, tier: Any) -> int:
        index, request = self._known("cached_within")
        if type(tier) is not str or tier not in TIERS:
            raise Misuse(f"cached_within takes an instance and one of {', '.join(TIERS)}")
        if tier not in self._within:
            self._within[tier] = index.matches_within(request.path, tier)
        return self._within[tier][_index(view, "cached_within")] * self.size

    def blocks(self, view: Any) -> int:
        index, _ = self._known("believed_blocks")
        return index.size(_index(view, "believed_blocks"))

    def last_access(self, view: Any) -> float | None:
        """Return when the last believed block of the prompt was last sent there, in seconds."""
        index, request = self._known(lang.ACCESS)
        if self._accesses is None:
            self._accesses = index.last_accesses(request.path)
        at_ps = self._accesses[_index(view, lang.ACCESS)]
        return None if at_ps is None else at_ps / PS_PER_SECOND

    def order(self, view: Any, count: Any) -> list[tuple[int, bool]]:
        """Return the next `count` pieces that are expected to be evicted: (blocks, whether they are of this prompt)."""
        index, request = self._known("eviction_order")
        if type(count) is not int or not 0 <= count <= MOST_PIECES:
            raise Misuse(f"eviction_order takes an instance and a whole number up to {MOST_PIECES:,}")
        if self._own is None:
            self._own = {key for key, _ in request.path.blocks(index.block_tokens)}
        own, pieces = self._own, zip(range(count), index.eviction_order(_index(view, "eviction_order")), strict=False)
        return [(end - first, key in own) for _, (key, first, end) in pieces]


def _index(view: Any, name: str) -> int:
    if not hasattr(view, "pending_prefill_tokens"):
        raise Misuse(f"{name} takes an instance first")
    place: int = view.index
    return place


class Sent(msgspec.Struct, frozen=True, eq=False):
    """The answer of `send`: where a request goes, and how."""

    view: Any
    prefill: Any = None  # the instance that computes the prompt; None: `view` does
    priority: Any = None  # priority at the instance's scheduler; None: that of the priority stage
    reason: Any = ""


def frozen(value: Any) -> Any:
    """Return a read-only form of a mapping or list of a view."""
    if isinstance(value, Mapping):
        return lang.Frozen(value)
    return tuple(value) if type(value) is list else value
