"""Azure LLM inference CSV: `TIMESTAMP,ContextTokens,GeneratedTokens` under a header. Stamps are date and time with up
to seven digits of a second (2023) or with `+00:00` (2024); the first row is time 0. Nothing is said of content, so no
two prompts share any."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Final

from headway.errors import HeadwayError
from headway.types import PS_PER_SECOND
from headway.workload.traces.record import Format, Info, Options, Reader, Record
from headway.workload.traces.source import cells, columns, lines
from headway.workload.traces.table import LAST_PS, MAX_LENGTH, too_late
from headway.workload.traces.writing import Losses, open_text

COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
EPOCH: Final = datetime(1970, 1, 1)
SECOND: Final = timedelta(seconds=1)
WRITTEN_FROM: Final = datetime(2023, 11, 16)  # a trace's time 0 where nothing says when that was
PS_PER_DIGIT: Final = PS_PER_SECOND // 10**7  # the seventh
MAX_ZONE_HOURS: Final = 14  # no clock on Earth is further from UTC
STAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,12}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def tell(path: pathlib.Path, first: list[bytes]) -> bool:
    return bool(first) and set(COLUMNS) <= {name.strip(b' "').decode(errors="replace") for name in first[0].split(b",")}


def read(path: pathlib.Path, options: Options) -> Reader:
    return Reader(Info("azure"), _records(path))


def _records(path: pathlib.Path) -> Iterator[Record]:
    places: list[int] | None = None
    width = 0
    first_ps: int | None = None
    last_ps = 0
    for number, line in lines(path):
        place = f"{path.name} line {number}"
        row = cells(line, place)
        if places is None:
            places, width = columns(row, COLUMNS, place), len(row)
            continue
        if len(row) != width:
            raise HeadwayError(f"{place}: {len(row)} values where the header names {width} columns.")
        stamp, prompt, output = (row[at] for at in places)
        at_ps = stamp_ps(stamp, place)
        if first_ps is None:
            first_ps = last_ps = at_ps
        if at_ps < last_ps:
            raise HeadwayError(f"{place}: TIMESTAMP {stamp} is before an earlier line's; sort the file by time.")
        if at_ps - first_ps > LAST_PS:
            raise HeadwayError(f"{place}: TIMESTAMP {stamp} is too late, {too_late(at_ps - first_ps)}.")
        last_ps = at_ps
        yield Record(
            length(prompt, "ContextTokens", place), length(output, "GeneratedTokens", place), at_ps=at_ps - first_ps
        )


def stamp_ps(text: str, place: str) -> int:
    """A stamp as picoseconds since 1970, exactly; one without a zone counts as UTC."""
    match = STAMP.fullmatch(text)
    try:
        if match is None:
            raise ValueError
        date, clock, digits, zone = match.groups()
        seconds = (datetime.fromisoformat(f"{date}T{clock}") - EPOCH) // SECOND
        if zone and zone != "Z":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > MAX_ZONE_HOURS or minutes > 59:
                raise ValueError
            away = hours * 3600 + minutes * 60
            seconds -= away if zone[0] == "+" else -away
    except ValueError:
        shown = repr(text if len(text) <= 60 else text[:60] + "...")
        raise HeadwayError(f"{place}: TIMESTAMP {shown} is not a time like 2023-11-16 18:17:03.9799600.") from None
    return seconds * PS_PER_SECOND + int((digits or "0").ljust(12, "0"))


def length(text: str, name: str, place: str, least: int = 1) -> int:
    """A cell as a number of tokens."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18 and least <= int(text) <= MAX_LENGTH):
        wanted = f"a whole number between {least} and {MAX_LENGTH}"
        raise HeadwayError(f"{place}: {name} must be {wanted}, got {text[:40]!r}.")
    return int(text)


def write(path: pathlib.Path, info: Info, records: Iterable[Record]) -> list[str]:
    """Stamps as in 2023, to the tenth of a microsecond."""
    lost = Losses()
    first = True
    with open_text(path) as file:
        file.write(",".join(COLUMNS) + "\n")
        for record in records:
            lost.see(record)
            at_ps = lost.stamp(info, record, path)
            if first:
                first = False
                if at_ps:
                    lost.add("the time before the first request")
            ticks = (2 * at_ps + PS_PER_DIGIT) // (2 * PS_PER_DIGIT)
            if ticks * PS_PER_DIGIT != at_ps:
                lost.add("times finer than 0.1 µs")
            seconds, digits = divmod(ticks, 10**7)
            at = WRITTEN_FROM + timedelta(seconds=seconds)
            file.write(f"{at:%Y-%m-%d %H:%M:%S}.{digits:07d},{record.prompt_tokens},{record.output_tokens}\n")
    return lost.phrases()


FORMAT: Final = Format(
    "azure", "Azure LLM inference CSV, 2023 and 2024: times and lengths", tell, read, write, blocks=False
)
