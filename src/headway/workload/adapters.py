"""Adapters (LoRA): which of them a tenant's sessions ask for, by weight; `base` stands for none."""

from collections import Counter
from sys import float_info
from typing import Any, Final

from msgspec import Struct

from headway import hashing
from headway.config.wording import cut, shown
from headway.errors import HeadwayError
from headway.types import Json, Path
from headway.workload.shapes import check_weights

BASE: Final = "base"
LONGEST_NAME: Final = 100


class Share(Struct, frozen=True):
    """An adapter's part of a tenant's sessions."""

    adapter: str | None = None  # None: the model as it is
    weight: float = 1.0


NONE: Final = (Share(),)


def parse(spec: Any, where: str) -> tuple[Share, ...]:
    """The checked key."""
    if spec is None:
        return NONE
    if not isinstance(spec, dict | list) or not spec:
        raise HeadwayError(f"{where}: expected a list of adapters or a mapping to their weights, got {shown(spec)}.")
    for name in spec:
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
            raise HeadwayError(f"{where}: {shown(name)} is not an adapter's name; it is a text, or {BASE} for none.")
    if isinstance(spec, list):
        twice = [name for name, count in Counter(spec).items() if count > 1]
        if twice:
            raise HeadwayError(f"{where}: {shown(twice[0])} is listed twice; give weights to tell them apart.")
        spec = dict.fromkeys(spec, 1.0)
    for name, weight in spec.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 < weight <= float_info.max:
            raise HeadwayError(f"{where}.{cut(name)}: a weight is a positive number, got {shown(weight)}.")
    check_weights([float(weight) for weight in spec.values()], len(spec), "adapters", where)
    return tuple(Share(None if name == BASE else name, float(weight)) for name, weight in spec.items())


def explicit(shares: tuple[Share, ...]) -> Json:
    """A parsed key as it would be written."""
    return {share.adapter or BASE: share.weight for share in shares}


def salt_content(path: Path, output_key: int, adapter: str) -> tuple[Path, int]:
    """A prompt and what becomes of it, computed with an adapter: KV content that no other adapter shares."""
    salt = hashing.stable("adapter", adapter) >> 2  # as many bits as keys have
    return Path(tuple([key ^ salt for key in path.keys]), path.ends), output_key ^ salt
