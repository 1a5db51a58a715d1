"""LoRA adapters that a tenant's sessions request. Each adapter has a weight; the name `base` means no adapter."""

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
    """An adapter and its weight. Among a tenant's sessions, the fraction with this adapter is proportional to the
    weight."""

    adapter: str | None = None  # None: the model without an adapter
    weight: float = 1.0


NONE: Final = (Share(),)


def parse(spec: Any, where: str) -> tuple[Share, ...]:
    """Read and check the `adapters` key."""
    if spec is None:
        return NONE
    if not isinstance(spec, dict | list) or not spec:
        raise HeadwayError(f"{where}: expected a list of adapters, or weights by adapter, got {shown(spec)}.")
    for name in spec:
        if not isinstance(name, str) or not name or len(name) > LONGEST_NAME:
            raise HeadwayError(f"{where}: {shown(name)} is not a valid name. Use 1 to {LONGEST_NAME} characters.")
    if isinstance(spec, list):
        twice = [name for name, count in Counter(spec).items() if count > 1]
        if twice:
            raise HeadwayError(f"{where}: {shown(twice[0])} is listed twice. Use a mapping to set weights.")
        spec = dict.fromkeys(spec, 1.0)
    for name, weight in spec.items():
        number = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not number or not 0 < weight <= float_info.max:
            raise HeadwayError(f"{where}.{cut(name)}: a weight is a positive number, got {shown(weight)}.")
    check_weights([float(weight) for weight in spec.values()], len(spec), "adapters", where)
    return tuple(Share(None if name == BASE else name, float(weight)) for name, weight in spec.items())


def explicit(shares: tuple[Share, ...]) -> Json:
    """Return a parsed `adapters` key as a mapping of adapter names to weights."""
    return {share.adapter or BASE: share.weight for share in shares}


def salt_content(path: Path, output_key: int, adapter: str) -> tuple[Path, int]:
    """Return the content keys of a prompt and of its output, changed so that they are unique to the adapter. Therefore
    two adapters never share KV blocks, even for equal text."""
    salt = hashing.stable("adapter", adapter) >> 2  # a salt of 62 bits, because a key has 62 bits
    return Path(tuple([key ^ salt for key in path.keys]), path.ends), output_key ^ salt
