"""The sizes of captured CUDA graphs. An engine pads the tokens of a step to the next size, up to the largest one. A
larger step runs without padding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from headway.config.keys import Form, Unit
from headway.config.wording import shown, suggest
from headway.errors import HeadwayError

MOST_TOKENS: Final = 1 << 20
# The sizes that vLLM captures by default with 256 sequences or more (its versions of 2026): up to 512 tokens.
VLLM: Final = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
LISTS: Final[dict[str, tuple[int, ...]]] = {"vllm": VLLM, "none": ()}


def padded(tokens: int, sizes: Sequence[int]) -> int:
    """Return the number of tokens that a step with this number of tokens computes."""
    place = bisect_left(sizes, tokens)
    return sizes[place] if place < len(sizes) else tokens


def _read(value: Any, where: str) -> tuple[int, ...]:
    if isinstance(value, str):
        if value not in LISTS:
            right = f"give a list of numbers, or one of {', '.join(LISTS)}"
            raise HeadwayError(f"{where}: no list of sizes is called {shown(value)}; {right}.{suggest(value, LISTS)}")
        return LISTS[value]
    if not isinstance(value, list | tuple):
        raise HeadwayError(f"{where}: expected a list of numbers of tokens, such as [1, 2, 4, 8], got {shown(value)}.")
    sizes = tuple(value)
    for place, size in enumerate(sizes):
        if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_TOKENS:
            raise HeadwayError(
                f"{where}[{place}]: must be a whole number from 1 to {MOST_TOKENS:,}, got {shown(size)}."
            )
    if any(size <= before for before, size in pairwise(sizes)):
        raise HeadwayError(f"{where}: the numbers must increase, got {shown(list(sizes))}.")
    return sizes


def _auto_or_sizes(value: Any, where: str) -> tuple[int, ...] | Literal["auto"]:
    return "auto" if value == "auto" else _read(value, where)


def _write(sizes: tuple[int, ...] | Literal["auto"]) -> str | list[int]:
    if isinstance(sizes, str):
        return sizes
    return next((name for name, known in LISTS.items() if known == sizes), list(sizes))


SIZES: Final = {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": MOST_TOKENS}}
GraphSizes = Annotated[tuple[int, ...], Unit("list", _read, _write, form=Form.of(Literal["vllm", "none"], SIZES))]
AutoGraphSizes = Annotated[
    tuple[int, ...] | Literal["auto"],
    Unit("list or name", _auto_or_sizes, _write, form=Form.of(Literal["auto", "vllm", "none"], SIZES)),
]
