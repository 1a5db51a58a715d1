"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` below a header.

Timestamps have up to seven decimals of a second (2023) or end in `+00:00` (2024). The first row has time 0. The file
does not describe content, so prompts share no content.
"""

import pathlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.csv_file import has_columns, parse_length, stamped_rows
from headway.workload.traces.objects import stamp_ps
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.writing import Losses, open_text

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
WRITTEN_FROM: Final = datetime(2023, 11, 16)  # date of time 0 in files that this module writes
PS_PER_DIGIT: Final = PS_PER_SECOND // 10**7  # value of the seventh decimal of a second


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return has_columns(first, COLUMNS)


def read(path: pathlib.Path, options: Options) -> Reader:
    return Reader(Info("azure"), _records(path))


def _records(path: pathlib.Path) -> Iterator[Record]:
    for place, row, at_ps in stamped_rows(path, COLUMNS, parse_stamp):
        prompt, output = parse_length(row, "ContextTokens", place), parse_length(row, "GeneratedTokens", place)
        yield Record(prompt, output, at_ps=at_ps)


def parse_stamp(text: str, place: str) -> int:
    """Return a timestamp as exact picoseconds since 1970."""
    at_ps = stamp_ps(text)
    if at_ps is None:
        wrong = f"TIMESTAMP {cut(text, 60)!r} is not a time like 2023-11-16 18:17:03.9799600"
        raise HeadwayError(f"{place}: {wrong}.")
    return at_ps


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Write the records, with timestamps as in the 2023 files: seven decimals of a second."""
    lost = Losses()
    with open_text(path) as file:
        file.write(",".join(COLUMNS) + "\n")
        for record in records:
            lost.see(record)
            at_ps = lost.stamp(info, record, path, from_first=True)
            seconds, digits = divmod(lost.round_time(at_ps, PS_PER_DIGIT, "0.1 µs"), 10**7)
            at = WRITTEN_FROM + timedelta(seconds=seconds)
            file.write(f"{at:%Y-%m-%d %H:%M:%S}.{digits:07d},{record.prompt_tokens},{record.output_tokens}\n")
    return lost.phrases()


FORMAT: Final = Format(
    "azure", "Azure LLM inference CSV, 2023 and 2024: times and lengths", tell, read, write, blocks=False
)
