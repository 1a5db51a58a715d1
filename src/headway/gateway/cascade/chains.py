"""Chains of models, from the smallest to the largest, and how confident an answer of each but the last has to be."""

import math
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.keys import Doc
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError

THRESHOLD: Final = -1.5
LONGEST: Final = 16  # models of a chain


class CascadeKeys(Struct):
    chains: Annotated[dict[str, list[str]], "a name to 2 to 16 models, each once; a model begins at most one chain"]
    threshold: Annotated[
        Any,
        Doc(
            "mean log-probability under which the next model is asked; a list has one for each model but the last",
            type="number or list",
        ),
    ] = THRESHOLD
    confident_tokens: Annotated[
        int, Meta(ge=1, le=4096), "of a stream: how many tokens are judged before any of it is passed on"
    ] = 16


class Chain(Struct, frozen=True):
    models: tuple[str, ...]
    thresholds: tuple[float, ...]  # of each model but the last
    confident_tokens: int  # of a stream, before any of it is passed on


def read_chains(data: Any, where: str = "cascade") -> dict[str, Chain]:
    """Return chains by the names that clients ask for: a chain's own, and its first model's."""
    keys = read(CascadeKeys, data, where)
    if not keys.chains:
        raise HeadwayError(f"{where}.chains: name at least one, as in {{answer: [small, large]}}.")
    own: dict[str, Chain] = {}
    first: dict[str, Chain] = {}
    for name, models in keys.chains.items():
        place = f"{where}.chains.{name}"
        _check_names([name, *models], place)
        if not 2 <= len(models) <= LONGEST or len(dict.fromkeys(models)) < len(models):
            raise HeadwayError(f"{place}: expected 2 to {LONGEST} models, each once, got {shown(models)}.")
        if models[0] in first:
            raise HeadwayError(f"{place}: another chain begins with {shown(models[0])}; a model begins one chain.")
        thresholds = _thresholds(keys.threshold, len(models) - 1, f"{where}.threshold", place)
        own[name] = first[models[0]] = Chain(tuple(models), thresholds, keys.confident_tokens)
    return {**first, **own}


def _check_names(names: list[str], where: str) -> None:
    for name in names:
        if not name or not name.isascii() or not name.isprintable():
            raise HeadwayError(f"{where}: a model's name is made of letters, digits and signs, got {shown(name)}.")


def _thresholds(data: Any, steps: int, where: str, chain: str) -> tuple[float, ...]:
    values = data if isinstance(data, list) else [data] * steps
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 0:
            raise HeadwayError(f"{where}: expected a mean log-probability such as {THRESHOLD}, got {shown(value)}.")
    if len(values) != steps:
        raise HeadwayError(f"{where}: has {len(values)} numbers, and {chain} needs {steps}, one for all but the last.")
    return tuple(float(value) for value in values)
