"""`scale`: a trace faster or slower, with longer or shorter prompts and outputs."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from msgspec import UNSET, Struct
from msgspec.structs import replace

from headway.errors import HeadwayError
from headway.workload.traces.blocks import Run, beginning, block_count
from headway.workload.traces.limits import LAST_PS, MAX_LENGTH, too_late
from headway.workload.traces.record import Info, Reader, Record
from headway.workload.transforms.base import Transform, factor, multiply, with_records
from headway.workload.transforms.numbering import Numbering, Numbers


class Spec(Struct, frozen=True):
    rate: Any = UNSET
    prompt_tokens: Any = UNSET
    output_tokens: Any = UNSET


def transform(spec: Spec, where: str) -> Transform:
    """Every time (arrivals and delays alike) divided by `rate`, so that 2 is twice as fast, and rounded to the
    picosecond; lengths multiplied by their factors, a declared `max_tokens` with the outputs. A length of 1 or more
    never becomes 0.

    A shorter prompt is cut to the blocks it still fills. A longer one goes on with content of its own from the last
    full block on, so that what prompts had in common they still have, and nothing more; all block ids are given anew.
    """
    rate, prompts, outputs = (
        Fraction(1) if value is None or value is UNSET else factor(value, f"{where}.{name}")
        for name, value in (
            ("rate", spec.rate),
            ("prompt_tokens", spec.prompt_tokens),
            ("output_tokens", spec.output_tokens),
        )
    )
    if spec == Spec():
        raise HeadwayError(f"{where}: says nothing to scale; give rate, prompt_tokens or output_tokens.")

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
            raise HeadwayError(f"{where}.rate: request {number} would come {too_late(late)}; raise it.")
        yield replace(record, at_ps=at_ps, delay_ps=delay_ps)


def _length(tokens: int, by: Fraction, place: str) -> int:
    length = max(min(1, tokens), multiply(tokens, by))
    if length > MAX_LENGTH:
        raise HeadwayError(f"{place}: makes {length} tokens of {tokens}, but lengths end at {MAX_LENGTH}; lower it.")
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
