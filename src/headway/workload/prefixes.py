"""Shared-prefix groups: prompts of one group begin with the same tokens, as under a common system prompt.

The first `tokens` tokens of a prompt, or all of a shorter one, are its group's. Where `tokens` is a distribution, each
group has a length of its own, drawn once. Groups are counted, or listed by name: a listed group is the same text for
every tenant that lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway import hashing
from headway.config.section import check_range, read
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import Json
from headway.workload import shapes
from headway.workload.shapes import MAX_TOKENS, check_probability, check_weights, pickers

MAX_GROUPS: Final = 10_000_000
NO_GROUP: Final = -1
NAMED: Final = 1 << 60  # numbers of listed groups begin here, above those that any tenant counts


class Prefix(Struct, frozen=True):
    """The `prefix` key."""

    groups: Any
    tokens: Any = None
    share: float = 1.0
    popularity: Any = "uniform"


class Group(Struct, frozen=True):
    """One of a list of groups."""

    name: str
    tokens: int | None = None  # those of the `prefix` unless said
    popularity: float = 1.0
    reuse: float = 1.0


class Popularity(Struct, frozen=True):
    """`popularity` as a mapping."""

    dist: str
    s: float | None = None


def parse(spec: object, where: str) -> Prefix:
    """The checked key, with nothing left out."""
    prefix = read(Prefix, spec, where)
    if isinstance(prefix.groups, list):
        prefix = msgspec.structs.replace(prefix, groups=_read_groups(prefix, where))
    elif not isinstance(prefix.groups, int) or isinstance(prefix.groups, bool):
        wrong = f"expected a whole number or a list of groups, got {shown(prefix.groups)}"
        raise HeadwayError(f"{where}.groups: {wrong}.")
    else:
        check_range(prefix.groups, 1, MAX_GROUPS, f"{where}.groups")
        if prefix.tokens is None:
            raise HeadwayError(f"{where}: 'tokens' is missing.")
    _check_tokens(prefix.tokens, f"{where}.tokens")
    check_probability(prefix.share, f"{where}.share")
    return msgspec.structs.replace(prefix, popularity=_popularity(prefix, f"{where}.popularity"))


def explicit(prefix: Prefix) -> Json:
    """A parsed key as it would be written."""
    keys: Json = msgspec.to_builtins(prefix)
    if isinstance(prefix.groups, list):
        del keys["popularity"]  # each group has its own
        if prefix.tokens is None:
            del keys["tokens"]
        for group in keys["groups"]:
            if group["tokens"] is None:
                del group["tokens"]
    return keys


def _check_tokens(tokens: object, where: str) -> None:
    if isinstance(tokens, int) and not isinstance(tokens, bool):
        check_range(tokens, 1, MAX_TOKENS, where)
    elif tokens is not None:
        shapes.parse(tokens, where)


def _read_groups(prefix: Prefix, where: str) -> list[Group]:
    if prefix.popularity != "uniform":
        raise HeadwayError(f"{where}.popularity: listed groups have a popularity each; leave it out here.")
    if not prefix.groups:
        raise HeadwayError(f"{where}.groups: give at least one.")
    groups: dict[str, Group] = {}
    for number, entry in enumerate(prefix.groups):
        place = f"{where}.groups[{number}]"
        group = read(Group, entry, place)
        if group.name in groups:
            raise HeadwayError(f"{place}.name: {shown(group.name)} is listed twice; keep one of them.")
        groups[group.name] = group
        if group.tokens is None and prefix.tokens is None:
            raise HeadwayError(f"{place}: 'tokens' is missing, here or for all groups in {where}.tokens.")
        _check_tokens(group.tokens, f"{place}.tokens")
        check_probability(group.reuse, f"{place}.reuse")
    check_weights([group.popularity for group in groups.values()], len(groups), "groups", f"{where}.groups")
    return list(groups.values())


def _popularity(prefix: Prefix, where: str) -> str | Json | list[Any]:
    """How groups are drawn, with nothing left out: "uniform", a zipf law with its exponent, or weights."""
    spec = prefix.popularity
    if isinstance(spec, list):
        try:
            weights = msgspec.convert(spec, list[float])
        except msgspec.ValidationError as error:
            raise HeadwayError(f"{where}: {error}.") from None
        check_weights(weights, prefix.groups, "groups", where)
        return spec
    popularity = Popularity(spec) if isinstance(spec, str) else read(Popularity, spec, where)
    if popularity.dist not in ("uniform", "zipf"):
        known = suggest(popularity.dist, ("uniform", "zipf"))
        raise HeadwayError(f"{where}: no popularity is called {shown(popularity.dist)}.{known}")
    if popularity.dist == "uniform":
        if popularity.s is not None:
            raise HeadwayError(f"{where}.s: only zipf takes an exponent.")
        return "uniform"
    exponent = 1.0 if popularity.s is None else popularity.s
    if not (isfinite(exponent) and 0 <= exponent <= 20):
        raise HeadwayError(f"{where}.s: must lie between 0 and 20, got {exponent:g}.")
    return {"dist": "zipf", "s": exponent}


class Beginnings:
    """The shared beginnings of a tenant's sessions, of a prefix that `parse` gave: the same groups, with the same keys
    and lengths, for all who draw from them."""

    __slots__ = ("_base", "_groups", "_lengths", "_members", "_prefix", "_seeds", "_tokens")

    def __init__(self, prefix: Prefix, seed: int, base: int, common_seed: int, where: str) -> None:
        """`seed` is the tenant's, `common_seed` that of all tenants."""
        self._prefix = prefix
        self._groups: list[Group] | None = prefix.groups if isinstance(prefix.groups, list) else None
        self._base = base
        self._seeds = (seed, common_seed)
        self._tokens = None
        if prefix.tokens is not None and not isinstance(prefix.tokens, int):
            self._tokens = shapes.maker(prefix.tokens, f"{where}.tokens")
        self._members = _members(prefix)
        self._lengths: dict[int, tuple[int, int]] = {}  # by group: memory goes with the groups that were drawn

    def sampler(self, seed: int, correlation: float = 0.0) -> Callable[[], tuple[int, int]]:
        """Draws the beginning of each session from `seed`: its key and its tokens, (0, 0) for none. With `correlation`
        c a session has that of the one before with probability c."""
        group = _correlate(_chooser(self._prefix, self._members, seed), correlation, seed)
        lengths, measure = self._lengths, self._measure

        def draw() -> tuple[int, int]:
            member = group()
            return (0, 0) if member < 0 else lengths.get(member) or measure(member)

        return draw

    def _measure(self, member: int) -> tuple[int, int]:
        """A group's key and length. A listed group's depend on its name alone, the same for every tenant."""
        tokens, number, name = self._prefix.tokens, self._base + member, str(member)
        seed, common_seed = self._seeds
        if self._groups is not None:
            group = self._groups[member]
            seed, name = common_seed, f"named.{group.name}"
            tokens = tokens if group.tokens is None else group.tokens
            number = NAMED + hashing.stable("prefix group", group.name) % NAMED
        if not isinstance(tokens, int):
            assert self._tokens is not None
            tokens = self._tokens(stream(seed, f"workload.prefix.tokens.{name}"))()
        measured = self._lengths[member] = (hashing.key(hashing.GROUP, number), tokens)
        return measured


def _members(prefix: Prefix) -> shapes.Maker:
    """Draws of groups by their popularity."""
    popularity, groups = prefix.popularity, prefix.groups
    weights: Iterable[float] | None = None
    if isinstance(groups, list):
        weights = [group.popularity for group in groups]
    elif isinstance(popularity, list):
        weights = [float(weight) for weight in popularity]
    elif isinstance(popularity, dict):
        weights = (rank ** -popularity["s"] for rank in range(1, groups + 1))
    return pickers(range(groups if isinstance(groups, int) else len(groups)), weights)


def _chooser(prefix: Prefix, members: shapes.Maker, seed: int) -> Callable[[], int]:
    """A function that draws each session's group, `NO_GROUP` for none."""
    draw, share = members(stream(seed, "workload.prefix.group")), prefix.share
    reuse = [group.reuse for group in prefix.groups] if isinstance(prefix.groups, list) else [1.0]
    if min(reuse) < 1:
        shares = [share * probability for probability in reuse]
    elif share == 1.0:
        return draw
    else:
        shares = None
    uniform = stream(seed, "workload.prefix.share").random

    def choose() -> int:
        member = draw()  # for every session, so that `share` decides which sessions belong, and not to which group
        return member if uniform() < (share if shares is None else shares[member]) else NO_GROUP

    return choose


def _correlate(draw: Callable[[], int], correlation: float, seed: int) -> Callable[[], int]:
    """Each as the one before with probability `correlation`, else drawn afresh: popularity stays what it is."""
    if not correlation:
        return draw
    uniform, last = stream(seed, "workload.correlations.prefix").random, draw()

    def draw_next() -> int:
        nonlocal last
        if uniform() >= correlation:
            last = draw()
        return last

    return draw_next
