"""Settings of cascades: chains of models, from the smallest to the largest, and confidence thresholds."""

import math
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from headway.config.keys import Doc, Form
from headway.config.section import read
from headway.config.wording import shown
from headway.errors import HeadwayError
from headway.gateway.request_body import LONGEST_MODEL
from headway.gateway.settings import check_name

THRESHOLD: Final = -1.5
LogProbability = Annotated[float, Meta(le=0)]
LONGEST: Final = 16  # maximum number of models in a chain


class CascadeKeys(Struct):
    chains: Annotated[
        dict[str, list[str]], "chain names to lists of 2 to 16 different models; a model may begin only one chain"
    ]
    threshold: Annotated[
        Any,
        Form.of(LogProbability, list[LogProbability]),
        Doc(
            "mean log-probability below which the gateway asks the next model; a list holds one value for each model "
            "except the last",
            type="number or list",
        ),
    ] = THRESHOLD
    confident_tokens: Annotated[
        int,
        Meta(ge=1, le=4096),
        "tokens of a stream that the gateway judges before it forwards any of them; a client may allow more",
    ] = 16


class Chain(Struct, frozen=True):
    models: tuple[str, ...]
    thresholds: tuple[float, ...]  # threshold of each model except the last one
    confident_tokens: int


def read_chains(data: Any, where: str = "cascade") -> dict[str, Chain]:
    """Return the chains by the model names that select them: the chain's own name and the name of its first model."""
    keys = read(CascadeKeys, data, where)
    if not keys.chains:
        raise HeadwayError(f"{where}.chains: name at least one chain, as in {{answer: [small, large]}}.")
    by_name: dict[str, Chain] = {}
    by_first_model: dict[str, Chain] = {}
    for name, models in keys.chains.items():
        place = f"{where}.chains.{name}"
        for model in (name, *models):
            check_name(model, place, LONGEST_MODEL, ascii_only=True)
        if not 2 <= len(models) <= LONGEST or len(dict.fromkeys(models)) < len(models):
            raise HeadwayError(f"{place}: expected 2 to {LONGEST} different models, got {shown(models)}.")
        first = models[0]
        if first in by_first_model:
            raise HeadwayError(f"{place}: another chain also begins with {shown(first)}. Use another first model.")
        thresholds = _thresholds(keys.threshold, len(models) - 1, f"{where}.threshold", place)
        by_name[name] = by_first_model[first] = Chain(tuple(models), thresholds, keys.confident_tokens)
    return {**by_first_model, **by_name}


def _thresholds(data: Any, steps: int, where: str, chain: str) -> tuple[float, ...]:
    values = data if isinstance(data, list) else [data] * steps
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value > 0:
            raise HeadwayError(f"{where}: expected a mean log-probability such as {THRESHOLD}, got {shown(value)}.")
    if len(values) != steps:
        raise HeadwayError(f"{where}: {chain} needs {steps} values, for all models except the last, got {len(values)}.")
    return tuple(float(value) for value in values)
