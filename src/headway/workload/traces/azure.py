"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` under a header. Stamps are date and time with up
to seven digits of a second (2023) or with `+00:00` (2024); the first row is time 0. Nothing is said of content, so no
two prompts share any."""

import pathlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from headway.config.wording import cut
from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.csv_file import has_columns, parse_length, stamped_rows
from headway.workload.traces.objects import epoch_seconds
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.writing import Losses, open_text

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
WRITTEN_FROM: Final = datetime(2023, 11, 16)  # a trace's time 0 where nothing says when that was
PS_PER_DIGIT: Final = PS_PER_SECOND // 10**7  # the seventh
MAX_ZONE_HOURS: Final = 14  # no clock on Earth is further from UTC
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return has_columns(first, COLUMNS)


def read(path: pathlib.Path, options: Options) -> Reader:
    return Reader(Info("azure"), _records(path))


def _records(path: pathlib.Path) -> Iterator[Record]:
    for place, row, at_ps in stamped_rows(path, COLUMNS, stamp_ps):
        prompt, output = parse_length(row, "ContextTokens", place), parse_length(row, "GeneratedTokens", place)
        yield Record(prompt, output, at_ps=at_ps)


def stamp_ps(text: str, place: str) -> int:
    """A stamp as picoseconds since 1970, exactly; one without a zone counts as UTC."""
    match = STAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, clock, digits, zone = match.groups()
        if zone and zone != "Z" and (int(zone[1:3]) > MAX_ZONE_HOURS or int(zone[4:6]) > 59):
            raise ValueError
        return epoch_seconds(date, clock, zone) * PS_PER_SECOND + int((digits or "0").ljust(12, "0"))
    except ValueError:
        wrong = f"TIMESTAMP {cut(text, 60)!r} is not a time like 2023-11-16 18:17:03.9799600"
        raise HeadwayError(f"{place}: {wrong}.") from None


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Stamps as in 2023, to the tenth of a microsecond."""
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
