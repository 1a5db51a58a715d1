"""Shared-prefix groups: requests of one group begin with the same tokens, as under a common system prompt.

`prefix: {groups: 20, tokens: 256}`. The first `tokens` tokens of a prompt, or all of a shorter one, are its group's;
they are part of the prompt's length. `share` is the probability that a request belongs to any group (default 1);
`popularity` says how the groups are drawn: `uniform`, `{dist: zipf, s: 1.1}` (group k has weight 1 / k^s) or a list
of weights.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, Final

import msgspec
from msgspec import Struct

from headway.section import read
from headway.streams import stream
from headway.types import HeadwayError, Json
from headway.wording import suggest
from headway.workload.shapes import MAX_TOKENS, check_weights, picker

MAX_GROUPS: Final = 10_000_000
NO_GROUP: Final = -1


class Prefix(Struct, frozen=True):
    """The `prefix` key."""

    groups: int
    tokens: int
    share: float = 1.0
    popularity: Any = "uniform"


class Popularity(Struct, frozen=True):
    """`popularity` as a mapping."""

    dist: str
    s: float | None = None


def parse(spec: object, where: str) -> Prefix:
    prefix = read(Prefix, spec, where)
    if not 1 <= prefix.groups <= MAX_GROUPS:
        raise HeadwayError(f"{where}.groups: must lie between 1 and {MAX_GROUPS}, got {prefix.groups}.")
    if not 1 <= prefix.tokens <= MAX_TOKENS:
        raise HeadwayError(f"{where}.tokens: must lie between 1 and {MAX_TOKENS}, got {prefix.tokens}.")
    if not 0 <= prefix.share <= 1:
        raise HeadwayError(f"{where}.share: a probability lies between 0 and 1, got {prefix.share:g}.")
    return msgspec.structs.replace(prefix, popularity=_popularity(prefix, f"{where}.popularity"))


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
        raise HeadwayError(f"{where}: no popularity is called {popularity.dist!r}.{known}")
    if popularity.dist == "uniform":
        if popularity.s is not None:
            raise HeadwayError(f"{where}.s: only zipf takes an exponent.")
        return "uniform"
    exponent = 1.0 if popularity.s is None else popularity.s
    if not (isfinite(exponent) and 0 <= exponent <= 20):
        raise HeadwayError(f"{where}.s: must lie between 0 and 20, got {exponent:g}.")
    return {"dist": "zipf", "s": exponent}


def chooser(prefix: Prefix, seed: int) -> Callable[[], int]:
    """A function that draws each request's group, `NO_GROUP` for none, of a prefix that `parse` gave."""
    popularity = prefix.popularity
    weights = [float(weight) for weight in popularity] if isinstance(popularity, list) else None
    if isinstance(popularity, dict):
        weights = [rank ** -popularity["s"] for rank in range(1, prefix.groups + 1)]
    group = picker(range(prefix.groups), weights, stream(seed, "workload.prefix.group"))
    share = prefix.share
    if share == 1.0:
        return group
    uniform = stream(seed, "workload.prefix.share").random

    def chosen() -> int:
        drawn = group()  # drawn for every request, so that `share` decides who belongs and not where
        return drawn if uniform() < share else NO_GROUP

    return chosen
