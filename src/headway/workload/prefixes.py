"""Shared-prefix groups: all prompts of a group begin with the same tokens, such as a common system prompt.

The first `tokens` tokens of a prompt are the group's prefix. By default they are part of `prompt_tokens`; with `added`,
they come in addition to `prompt_tokens`. If `tokens` is a distribution, the length of each group's prefix is drawn
once. `groups` is a number of groups or a list of named groups; all tenants that list a name share the same prefix.
`within` nests the prefixes: each group belongs to an outer group, and its prefix begins with that of the outer group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import isfinite
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from headway import hashing
from headway.config.keys import Doc, Form
from headway.config.section import check_range, read
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError
from headway.streams import stream
from headway.types import Json
from headway.workload import shapes
from headway.workload.shapes import MAX_TOKENS, check_probability, check_weights, pickers
from headway.workload.traces.record import present

MAX_GROUPS: Final = 10_000_000
NO_GROUP: Final = -1
POPULARITIES: Final = ("uniform", "zipf")
NAMED: Final = 1 << 60  # first number of named groups; it is above the numbers of all other groups


class Group(Struct, frozen=True):
    """An entry of the list `groups`: a named group."""

    name: Annotated[str, "name of the group; tenants that list the same name share its text"]
    tokens: Annotated[int | None, Doc("length of its prefix", default="`tokens` of all groups")] = None
    popularity: Annotated[float, "weight of the group"] = 1.0
    reuse: Annotated[float, shapes.PROBABILITY, "share of its sessions that begin with the prefix"] = 1.0


class Popularity(Struct, frozen=True):
    """The `popularity` key as a mapping."""

    dist: Annotated[str, Form.of(Literal[POPULARITIES]), "how sessions choose their group"]
    s: Annotated[float | None, Doc("exponent of zipf, 0 to 20", default="1")] = None


class Outer(Struct, frozen=True):
    """The `within` key: outer groups, whose prefixes begin those of the groups."""

    groups: Annotated[
        int, Meta(ge=1, le=MAX_GROUPS), "number of outer groups; group k belongs to outer group k modulo it"
    ]
    tokens: Annotated[int, Meta(ge=1, le=MAX_TOKENS), "length of the prefix of each outer group"]


class Prefix(Struct, frozen=True):
    """The `prefix` key."""

    groups: Annotated[
        Any, Form.of(Annotated[int, Meta(ge=1, le=MAX_GROUPS)], list[Group]), "number of groups, or named groups"
    ]
    tokens: Annotated[shapes.Lengths, "length of a group's prefix; each group draws it once"] = None
    share: Annotated[float, shapes.PROBABILITY, "share of sessions that belong to a group"] = 1.0
    popularity: Annotated[
        Any, Form.of(Literal[POPULARITIES], Popularity, list[float]), "how sessions choose their group; or weights"
    ] = "uniform"
    added: Annotated[bool, "whether the prefix comes in addition to `prompt_tokens`"] = False
    within: Annotated[
        Outer | None, "outer groups: the first tokens of a group's prefix are those of its outer group"
    ] = None


def parse(spec: object, where: str) -> Prefix:
    """Read and check the `prefix` key."""
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
    if prefix.within is not None:
        _check_within(prefix.within, prefix, f"{where}.within")
    return msgspec.structs.replace(prefix, popularity=_popularity(prefix, f"{where}.popularity"))


def _check_within(outer: Outer, prefix: Prefix, where: str) -> None:
    if isinstance(prefix.groups, list) or not isinstance(prefix.tokens, int):
        raise HeadwayError(f"{where}: needs a number of groups and a fixed length. Set both as whole numbers.")
    if outer.tokens >= prefix.tokens:
        raise HeadwayError(f"{where}.tokens: must be less than {prefix.tokens}, the length of the whole prefix.")


def explicit(prefix: Prefix) -> Json:
    """Return a parsed `prefix` key as a mapping."""
    keys = present(msgspec.to_builtins(prefix))
    if not prefix.added:
        del keys["added"]
    if isinstance(prefix.groups, list):
        del keys["popularity"]  # each group has its own popularity
        keys["groups"] = [present(group) for group in keys["groups"]]
    return keys


def _check_tokens(tokens: object, where: str) -> None:
    if isinstance(tokens, int) and not isinstance(tokens, bool):
        check_range(tokens, 1, MAX_TOKENS, where)
    elif tokens is not None:
        shapes.parse(tokens, where)


def _read_groups(prefix: Prefix, where: str) -> list[Group]:
    if prefix.popularity != "uniform":
        raise HeadwayError(f"{where}.popularity: is not valid with a list of groups. Set it in each group.")
    if not prefix.groups:
        raise HeadwayError(f"{where}.groups: list at least one group.")
    groups: dict[str, Group] = {}
    for number, entry in enumerate(prefix.groups):
        place = f"{where}.groups[{number}]"
        group = read(Group, entry, place)
        if group.name in groups:
            raise HeadwayError(f"{place}.name: {shown(group.name)} is listed twice. Remove one of the two.")
        groups[group.name] = group
        if group.tokens is None and prefix.tokens is None:
            raise HeadwayError(f"{place}: 'tokens' is missing. Set it here, or for all groups in {where}.tokens.")
        _check_tokens(group.tokens, f"{place}.tokens")
        check_probability(group.reuse, f"{place}.reuse")
    check_weights([group.popularity for group in groups.values()], len(groups), "groups", f"{where}.groups")
    return list(groups.values())


def _popularity(prefix: Prefix, where: str) -> str | Json | list[Any]:
    """Return the checked `popularity` key: "uniform", a zipf distribution with its exponent, or a list of weights."""
    spec = prefix.popularity
    if isinstance(spec, list):
        try:
            weights = msgspec.convert(spec, list[float])
        except msgspec.ValidationError as error:
            raise HeadwayError(f"{where}: {error}.") from None
        check_weights(weights, prefix.groups, "groups", where)
        return spec
    popularity = Popularity(spec) if isinstance(spec, str) else read(Popularity, spec, where)
    if popularity.dist not in POPULARITIES:
        known = suggest(popularity.dist, POPULARITIES)
        raise HeadwayError(f"{where}: no popularity is called {shown(popularity.dist)}.{known}")
    if popularity.dist == "uniform":
        if popularity.s is not None:
            raise HeadwayError(f"{where}.s: only zipf has an exponent. Remove it.")
        return "uniform"
    exponent = 1.0 if popularity.s is None else popularity.s
    if not (isfinite(exponent) and 0 <= exponent <= 20):
        raise HeadwayError(f"{where}.s: must lie between 0 and 20, got {exponent:g}.")
    return {"dist": "zipf", "s": exponent}


class Beginnings:
    """The shared prefixes of a tenant's sessions. All users of a closed loop have the same groups, keys and lengths."""

    def __init__(self, prefix: Prefix, seed: int, base: int, common_seed: int, where: str) -> None:
        """`seed` is the seed of the tenant; `common_seed` is the seed that all tenants share."""
        self._prefix = prefix
        self._groups: list[Group] | None = prefix.groups if isinstance(prefix.groups, list) else None
        self._base = base
        self._seeds = (seed, common_seed)
        self._tokens = None
        if prefix.tokens is not None and not isinstance(prefix.tokens, int):
            self._tokens = shapes.maker(prefix.tokens, f"{where}.tokens")
        self._members = _members(prefix)
        self._lengths: dict[int, tuple[int, int]] = {}  # index of a drawn group -> (key, length) of its prefix
        self.outer: dict[int, tuple[int, int]] = {}  # key of a drawn group -> (key, length) of its outer group's prefix

    def sampler(self, seed: int, correlation: float = 0.0) -> Callable[[], tuple[int, int]]:
        """Return a function that draws the prefix of each session as (key, tokens). (0, 0) means no prefix.

        `correlation` is the probability that a session has the same prefix as the previous session.
        """
        group = _correlate(_chooser(self._prefix, self._members, seed), correlation, seed)
        lengths, measure = self._lengths, self._measure

        def draw() -> tuple[int, int]:
            member = group()
            return (0, 0) if member < 0 else lengths.get(member) or measure(member)

        return draw

    def _measure(self, member: int) -> tuple[int, int]:
        """Return the content key and the length of a group's prefix, and remember them. A named group has the same key
        in all tenants, so that the tenants share its prefix."""
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
        within = self._prefix.within
        if within is not None:
            outer = hashing.stable("outer prefix group", self._base + member % within.groups) % NAMED
            self.outer[measured[0]] = (hashing.key(hashing.GROUP, NAMED + outer), within.tokens)
        return measured


def _members(prefix: Prefix) -> shapes.Maker:
    """Return a function that creates samplers, which draw groups by popularity."""
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
    """Return a function that draws the group of each session, or `NO_GROUP` for a session without a group."""
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
        member = draw()  # draw for every session, so that `share` does not change the groups of other sessions
        return member if uniform() < (share if shares is None else shares[member]) else NO_GROUP

    return choose


def _correlate(draw: Callable[[], int], correlation: float, seed: int) -> Callable[[], int]:
    """Return a function that repeats the previous result of `draw` with probability `correlation`, and otherwise calls
    `draw`. This does not change the popularity of groups."""
    if not correlation:
        return draw
    uniform, last = stream(seed, "workload.correlations.prefix").random, draw()

    def draw_next() -> int:
        nonlocal last
        if uniform() >= correlation:
            last = draw()
        return last

    return draw_next
