"""`scale`: make a trace faster or slower, or its prompts and outputs longer or shorter."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Annotated, Any

from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from headway.errors import HeadwayError
from headway.workload.traces.blocks import Run, beginning, block_count
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, too_late
from headway.workload.traces.record import Info, Reader, Record
from headway.workload.transforms.base import FACTOR, Transform, factor, multiply, with_records
from headway.workload.transforms.numbering import Numbering, Numbers


class Spec(Struct, frozen=True):
    rate: Annotated[Any, FACTOR, "factor of the rate; 2 is twice as fast"] = UNSET
    prompt_tokens: Annotated[Any, FACTOR, "factor of the prompts' lengths"] = UNSET
    output_tokens: Annotated[Any, FACTOR, "factor of the outputs' lengths, and of `max_tokens`"] = UNSET


def transform(spec: Spec, where: str) -> Transform:
    """Divide all times by `rate` (2 is twice as fast), and multiply lengths by their factors.

    `output_tokens` also scales `max_tokens`. A length of 1 or more never becomes 0. If a prompt becomes shorter, it
    keeps the blocks that it still fills. If a prompt becomes longer, unique content follows its last full block, so
    that shared content stays shared; blocks are then renumbered.
    """
    rate, prompts, outputs = (
        Fraction(1) if value is None or value is UNSET else factor(value, f"{where}.{name}")
        for name, value in asdict(spec).items()
    )
    if spec == Spec():
        raise HeadwayError(f"{where}: has nothing to scale. Set rate, prompt_tokens or output_tokens.")

    def scale(reader: Reader) -> Reader:
        records = reader.records
        if rate != 1:
            records = _times(records, rate, where)
        if prompts != 1:
            records = _prompts(records, reader.info, prompts, where)
        if outputs != 1:
            records = _outputs(records, outputs, where)
        return with_records(reader, records)

    return scale


def _times(records: Iterator[Record], rate: Fraction, where: str) -> Iterator[Record]:
    by = 1 / rate
    for number, record in enumerate(records, 1):
        at_ps = None if record.at_ps is None else multiply(record.at_ps, by)
        delay_ps = None if record.delay_ps is None else multiply(record.delay_ps, by)
        late = max(at_ps or 0, delay_ps or 0)
        if late > LAST_PS:
            raise HeadwayError(f"{where}.rate: request {number} would arrive {too_late(late)}. Raise the rate.")
        yield replace(record, at_ps=at_ps, delay_ps=delay_ps)


def _length(tokens: int, by: Fraction, place: str) -> int:
    length = max(min(1, tokens), multiply(tokens, by))
    if length > MAX_LENGTH:
        raise HeadwayError(
            f"{place}: this factor makes {length} tokens of {tokens}; the limit is {MAX_LENGTH}. Lower the factor."
        )
    return length


def _outputs(records: Iterator[Record], by: Fraction, where: str) -> Iterator[Record]:
    place = f"{where}.output_tokens"
    for record in records:
        declared = None if record.max_tokens is None else _length(record.max_tokens, by, place)
        yield replace(record, output_tokens=_length(record.output_tokens, by, place), max_tokens=declared)


def _prompts(records: Iterator[Record], info: Info, by: Fraction, where: str) -> Iterator[Record]:
    numbers = Numbers(info.scope)
    for record in records:
        tokens = _length(record.prompt_tokens, by, f"{where}.prompt_tokens")
        shared = min(record.shared_prefix_tokens, tokens)
        blocks = record.blocks
        if blocks is not None and info.block_tokens is not None:
            if by > 1:
                blocks = _longer(blocks, record.prompt_tokens, tokens, info, numbers.of(record))
            else:
                blocks = beginning(blocks, block_count(tokens, info.block_tokens, info.whole_blocks))
        yield replace(record, prompt_tokens=tokens, blocks=blocks, shared_prefix_tokens=shared)


def _longer(blocks: Any, before: int, tokens: int, info: Info, numbering: Numbering) -> list[Run]:
    size = info.block_tokens
    assert size is not None
    needed = block_count(tokens, size, info.whole_blocks)
    runs = numbering.runs(beginning(blocks, before // size if tokens > before else needed))
    missing = needed - sum(count for _, count in runs)
    return [*runs, (numbering.counter.take(missing), missing)] if missing > 0 else runs
